"""The receivers of a message, for arguments that are lent to them rather than pickled.

A distributed tensor among the arguments is already in the receivers' procs. It asks this module who
the receivers are, and is notified when the message has been pickled and when the call has ended.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from typing import Any, Protocol

from monarch.runtime.promise import Promise
from monarch.wire.address import Uid


class Loan(Protocol):
    def is_dumped(self) -> None:
        """Called when all arguments of the message have been pickled."""

    def has_ended(self, answer: Any) -> None:
        """Called, on any thread, when the call has its answer: a value or an error."""


class LentMessage:
    """A message to the processes ``uids`` whose arguments are being pickled.

    ``answers`` says whether the sender learns when the call ends.
    """

    def __init__(self, uids: Sequence[Uid], answers: bool = True) -> None:
        self.uids = uids
        self.answers = answers
        self.loans: list[Loan] = []

    def __enter__(self) -> None:
        self._outer = _thread.message  # A loan may send another message first.
        _thread.message = self

    def __exit__(self, kind: object, *error: object) -> None:
        _thread.message = self._outer
        for loan in self.loans:
            loan.is_dumped()
            if kind is not None:
                loan.has_ended(None)  # It will not be sent.

    def sent(self, *promises: Promise[Any]) -> None:
        """Record that the message has been sent; each promise is set by one of its answers."""
        for promise in promises if self.loans else ():
            promise.on_set(functools.partial(self._tell, promise))

    def _tell(self, promise: Promise[Any]) -> None:
        for loan in self.loans:
            loan.has_ended(promise.value)


class _Thread(threading.local):
    message: LentMessage | None = None


_thread = _Thread()


def being_pickled() -> LentMessage | None:
    """Return the message that this thread is pickling, or ``None``."""
    return _thread.message
