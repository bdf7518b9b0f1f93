"""The interface of a watch over a process's calls: a debugger that holds some of them."""

from __future__ import annotations

from typing import Protocol

from monarch.runtime.cells.hooks import users_part


class RunAgain(BaseException):
    """The call in hand ends here, and must be run again from its beginning."""


class CallWatch(Protocol):
    """Everything here is called on the thread that runs the call."""

    def begins(self) -> None:
        """The call in hand begins."""
        ...

    def raised(self, error: BaseException) -> bool:
        """A call has raised. Returns whether it must be run again, instead of being answered with
        that."""
        ...

    def ended(self) -> None:
        """A call is over, and is answered next."""
        ...

    def is_early(self, actor: str) -> bool:
        """Whether a call that must be run again was let go before the code came that it waits
        for."""
        ...

    def await_code(self, actor: str) -> None:
        """A call of this actor must be run again: wait a while for new code, if none is there."""
        ...


def is_again(watch: CallWatch, error: BaseException) -> bool:
    """Whether a call that raised, and is over now, must be run again."""
    try:
        error.__traceback__ = users_part(error)
        return isinstance(error, RunAgain) or watch.raised(error)
    finally:
        watch.ended()
