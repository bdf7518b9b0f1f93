"""Deaths that a recipe expects to survive: recorded, instead of ending the program."""

from __future__ import annotations

import threading
from types import TracebackType

import monarch.actor
from monarch.errors import MeshFailure
from monarch.runtime import process
from monarch.runtime.client_agent import ClientAgent

_SETTLE_SECONDS = 1.0


class Deaths:
    """A ``with`` block in which deaths and failures below this program do not end it.

    The calls that waited for a dead process raise ``SupervisionError`` all the same; ``take``
    returns the failures since its last call, in order. Blocks may be nested or run side by side in
    threads: each gets all failures.
    """

    _lock = threading.Condition()
    #: All open blocks of the program, which has only one hook.
    _open: list[Deaths] = []  # noqa: RUF012
    #: The hook from before the first block.
    _hook_before = staticmethod(monarch.actor.unhandled_fault_hook)

    def __init__(self) -> None:
        self._failures: list[MeshFailure] = []

    def take(self) -> list[MeshFailure]:
        """Return the failures since the last call."""
        with Deaths._lock:
            failures, self._failures = self._failures, []
        return failures

    def wait(self, seconds: float) -> list[MeshFailure]:
        """Wait for a failure, for at most ``seconds``, and return as ``take`` does.

        The failure of a process may arrive later than the error of a call that its death broke.
        """
        with Deaths._lock:
            Deaths._lock.wait_for(lambda: self._failures, seconds)
        return self.take()

    def __enter__(self) -> Deaths:
        with Deaths._lock:
            if not Deaths._open:
                Deaths._hook_before = staticmethod(monarch.actor.unhandled_fault_hook)
                monarch.actor.unhandled_fault_hook = _note
            Deaths._open.append(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if process.is_bootstrapped() and isinstance(agent := process.current(), ClientAgent):
            # Deaths in the block are handled on another thread, perhaps a moment later.
            agent.faults.settle(_SETTLE_SECONDS)
        with Deaths._lock:
            Deaths._open.remove(self)
            if not Deaths._open:
                monarch.actor.unhandled_fault_hook = Deaths._hook_before


def _note(failure: MeshFailure) -> None:
    with Deaths._lock:
        for deaths in Deaths._open:
            deaths._failures.append(failure)
        Deaths._lock.notify_all()
