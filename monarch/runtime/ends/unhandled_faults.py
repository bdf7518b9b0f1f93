"""What becomes of a failure that nobody has handled: the program's hook is asked about it.

By default that ends the program. So does a hook that raises; and the failure is told on stderr.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable

from monarch.errors import MeshFailure
from monarch.runtime.ends.exit_status import fail_at_exit
from monarch.runtime.ends.late_thread import run_aside

__all__ = ["UnhandledFaults", "set_fault_hook_source"]

FaultHook = Callable[[MeshFailure], object]


def _no_hook() -> FaultHook:
    return lambda failure: sys.exit(1)


_fault_hook: Callable[[], FaultHook] = _no_hook


def set_fault_hook_source(source: Callable[[], FaultHook]) -> None:
    """Where to look up the hook for unhandled faults, at the moment when one arrives."""
    global _fault_hook
    _fault_hook = source


class UnhandledFaults:
    """Those of one client. ``flush`` prints what its procs have printed so far."""

    def __init__(self, flush: Callable[[], object]) -> None:
        self._flush = flush
        self._is_closed = False
        self._asking: list[threading.Thread] = []
        self._lock = threading.Lock()
        self.has_ended_program = False

    def close(self) -> None:
        """From here on the program ends anyway, and is told of nothing more."""
        self._is_closed = True

    def tell(self, failure: MeshFailure) -> None:
        """On a thread of its own: the hook may take as long as it likes."""
        thread = run_aside(lambda: self._ask_hook(failure), name="monarch-fault")
        self._asking = [one for one in self._asking if one.is_alive()]
        if thread is not None:
            self._asking.append(thread)

    def settle(self, seconds: float) -> None:
        """Wait, for so long at most, until the hook was asked about all that was told so far."""
        deadline = time.monotonic() + seconds
        for thread in self._asking:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _ask_hook(self, failure: MeshFailure) -> None:
        try:
            _fault_hook()(failure)
        except BaseException as error:
            with self._lock:
                # The program is about to end: one report, for the first cause.
                if self.has_ended_program or self._is_closed:
                    return
                self.has_ended_program = True
            self._end_program(failure, error)

    def _end_program(self, failure: MeshFailure, error: BaseException) -> None:
        when = time.strftime("%Y-%m-%d %H:%M:%S")
        self._flush()
        sys.stderr.write(
            f"Unhandled monarch error on the root actor, hostname={socket.gethostname()}, "
            f"PID={os.getpid()} at time {when}:\n{failure.report()}\n"
        )
        if not isinstance(error, SystemExit):
            traceback.print_exception(error)
        sys.stderr.flush()
        fail_at_exit()
        # A real signal, because only that wakes a main thread that waits for a lock.
        main = threading.main_thread()
        if main.is_alive() and main.ident is not None:
            signal.pthread_kill(main.ident, signal.SIGINT)
