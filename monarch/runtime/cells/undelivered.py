"""A message that expected no answer and could not be delivered, as its sender sees it."""

from __future__ import annotations

from typing import Any, NamedTuple

HOOK = "_handle_undeliverable_message"


class Undelivered(NamedTuple):
    """The message that ``_handle_undeliverable_message`` is given."""

    source: str
    target: str
    method: str
    reason: str

    def sender(self) -> str:
        """The actor that sent it."""
        return self.source

    def dest(self) -> str:
        """The actor that it was for."""
        return self.target

    def error_msg(self) -> str:
        """Why it was not delivered."""
        return self.reason

    def __str__(self) -> str:
        message = f"{self.method}() to" if self.method else "a value to the port of"
        return f"{message} {self.target}, sent by {self.source}, was not delivered: {self.reason}"


def wants_undelivered(instance: Any) -> bool:
    """Return whether an actor's class handles messages that could not be delivered."""
    hook = getattr(type(instance), HOOK, None)
    return hook is not None and hook.__module__ != "monarch.actor.actor"
