"""The base class of actors."""

from __future__ import annotations

import functools
import logging
from typing import Any


class Actor:
    """State that lives in one process of a mesh, and the endpoints that others may call.

    Subclasses need not call ``super().__init__()``. Optional hooks:

    - ``__supervise__(self, failure: MeshFailure) -> bool``: something that this actor spawned
      has failed; true says that it is handled. Plain or async.
    - ``__cleanup__(self, error: Exception | None)``: the actor ends.
    - ``__reload__(self, change)``: its class was patched, between two messages.
    """

    @functools.cached_property
    def logger(self) -> logging.Logger:
        logger = logging.getLogger(type(self).__name__)
        logger.setLevel(logging.DEBUG)
        return logger

    def _handle_undeliverable_message(self, message: Any) -> bool:
        """A message of this actor, sent without waiting for an answer, could not be delivered.

        ``message`` has ``sender()``, ``dest()`` and ``error_msg()``. A class that overrides this
        fails where its answer is not true. Without an override such messages are dropped: the
        owner of the dead actor is told of that anyway, and a dead rank does not fail others.
        """
        return False
