"""The interface of a watch over a process's calls: a debugger that holds some of them."""

from __future__ import annotations

from typing import Protocol

from monarch.runtime.cells.hooks import users_part


class RunAgain(BaseException):
    """Raised to end the current call, which must be run again from its beginning."""


class CallWatch(Protocol):
    """Watches the calls of an actor. All methods run on the thread that runs the call."""

    def begins(self) -> None:
        """Called when a call begins, before its endpoint runs."""
        ...

    def raised(self, error: BaseException) -> bool:
        """Handle a call that raised. Returns true if it must be run again instead of being answered
        with the error.
        """
        ...

    def ended(self) -> None:
        """Called when a call has ended, before its answer is sent."""
        ...

    def is_early(self, actor: str) -> bool:
        """Return whether the new code that a call of this actor waits for has not arrived yet.

        The call must run again on that code.
        """
        ...

    def await_code(self, actor: str) -> None:
        """Wait for new code of this actor, at most for some seconds, before a call of it is run
        again."""
        ...


def is_again(watch: CallWatch, error: BaseException) -> bool:
    """End the watch of a call that raised, and return whether the call must be run again."""
    try:
        error.__traceback__ = users_part(error)
        return isinstance(error, RunAgain) or watch.raised(error)
    finally:
        watch.ended()
