"""The base class of actors."""

from __future__ import annotations

import functools
import logging
from typing import Any, NoReturn


class OfRay:
    """A name of Ray's API that a class does not have: looking it up says what to use here.

    The error is the ``AttributeError`` of a missing attribute, so ``hasattr`` is false.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> NoReturn:
        name = owner.__name__
        whose = f"type object {name!r}" if instance is None else f"{name!r} object"
        raise AttributeError(
            f"{whose} has no attribute {self._name!r}: that is Ray's. Actors are spawned in "
            f"processes here: `this_host().spawn_procs({{'gpus': 2}})"
            f".spawn({name.lower()!r}, {name}, ...)`"
        )


class Actor:
    """State that lives in one process of a mesh, and the endpoints that others may call.

    Subclasses need not call ``super().__init__()``. Optional hooks:

    - ``__supervise__(self, failure: MeshFailure) -> bool``: a mesh that this actor spawned
      has failed; true says that it is handled. Plain or async.
    - ``__cleanup__(self, error: Exception | None)``: called when the actor ends.
    - ``__reload__(self, change)``: called between two messages, after its class was patched.
    """

    # What users of Ray type first.
    remote = OfRay()
    options = OfRay()

    @functools.cached_property
    def logger(self) -> logging.Logger:
        logger = logging.getLogger(type(self).__name__)
        logger.setLevel(logging.DEBUG)
        return logger

    def _handle_undeliverable_message(self, message: Any) -> bool:
        """Called when a message that this actor sent without waiting could not be delivered.

        ``message`` has ``sender()``, ``dest()`` and ``error_msg()``. Return true if the actor has
        dealt with it; any other value fails the actor. Without an override such messages are
        dropped: the owner of the dead actor hears of its death anyway, and a dead rank does not
        fail others.
        """
        return False
