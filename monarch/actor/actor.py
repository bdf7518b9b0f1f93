"""The base class of actors."""

from __future__ import annotations

import functools
import logging
from typing import Any, NoReturn


class OfRay:
    """A class method of Ray's actors, such as ``remote``: it raises an error when called.

    The error is an ``AttributeError`` that says what to use here. Libraries that look for such a
    method expect that error. The name itself can be looked up, as ``dir`` lists it.
    """

    def __init__(self, name: str, owner: type | None = None) -> None:
        self._name = name
        self._owner = owner

    def __get__(self, instance: object, owner: type) -> OfRay:
        return OfRay(self._name, owner)

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        name = getattr(self._owner, "__name__", "")
        raise AttributeError(
            f"type object {name!r} has no attribute {self._name!r}: that is Ray's. Actors are "
            f"spawned in processes here: `this_host().spawn_procs({{'gpus': 2}})"
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
    remote = OfRay("remote")
    options = OfRay("options")

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
