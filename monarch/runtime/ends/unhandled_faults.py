"""Unhandled failures: the program's hook is asked about each.

- If the program has set a hook of its own, it is called at once. If it returns, the failure is
  handled; if it raises, the program ends.
- Without such a hook, a failure is handled once the program knows of it: a call of the client has
  raised it as ``SupervisionError``, which the program catches or ends by. If the program does not
  know of a failure after ``fault_patience_seconds``, or at its end, it ends with status 1. One bug
  often makes ranks fail one after the other. So if a call to many ranks has raised the failure of
  one, the program counts as knowing of all others that fail within that time.
- The loss of a host does not count at the end of the program. Nor does it count at any time if this
  program started the host's agent itself, without a job, as it may have ended it: then a warning is
  logged.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection
from typing import NamedTuple

from monarch.config import settings
from monarch.errors import MeshFailure
from monarch.runtime.ends.end_program import end_program
from monarch.runtime.ends.exit_status import fail_at_exit
from monarch.runtime.ends.late_thread import run_aside

FaultHook = Callable[[MeshFailure], object]

_log = logging.getLogger("monarch.host")

_LOOK_SECONDS = 0.1

_REMEDIES = """\
Nobody has handled this, so the program ends with status 1. To go on after such a failure: catch
SupervisionError around the calls to these actors, or give the actor that spawns them a method
`__supervise__(self, failure)` that returns True, or set monarch.actor.unhandled_fault_hook to a
function that returns.
"""


def _end_with_status_1(failure: MeshFailure) -> object:
    sys.exit(1)


_default_hook: FaultHook = _end_with_status_1
_fault_hook: Callable[[], FaultHook] = lambda: _default_hook  # noqa: E731


def set_fault_hook_source(source: Callable[[], FaultHook]) -> None:
    """Set the function that returns the hook for unhandled faults, when a fault arrives.

    The hook at the time of this call counts as the default hook.
    """
    global _fault_hook, _default_hook
    _fault_hook = source
    _default_hook = source()


class Lost(NamedTuple):
    """A loss to report to the program.

    ``keys`` name what has failed: uids of procs, ``actor mesh[rank]``, or the failure's origin.
    ``is_host``: a host was lost. ``is_own_child``: this program had started that host.
    """

    failure: MeshFailure
    keys: Collection[str]
    is_host: bool = False
    is_own_child: bool = False


class UnhandledFaults:
    """The unhandled failures of one client. ``flush`` prints the output of its procs so far."""

    def __init__(self, flush: Callable[[], object]) -> None:
        self._flush = flush
        self._is_closed = False
        self._is_ending = False
        self._asking: list[threading.Thread] = []
        #: By key of a failure: until when the program knows of it. A later failure is a new one.
        self._heard: dict[str, float] = {}
        self._changed = threading.Condition()
        self.has_ended_program = False

    def close(self) -> None:
        """Ignore later faults, because the program ends anyway."""
        self._is_closed = True

    def heard(self, keys: Collection[str], others: Collection[str] = ()) -> None:
        """Note that the error of a call has told the program of the failures ``keys``.

        ``others`` are further members that were called: their failures count as told for a while.
        """
        now = time.monotonic()
        with self._changed:
            self._heard = {key: until for key, until in self._heard.items() if until > now}
            for key in others:
                self._heard.setdefault(key, now + settings().fault_patience_seconds)
            self._heard.update(dict.fromkeys(keys, math.inf))
            self._changed.notify_all()

    def forget(self, uid: str) -> None:
        """Note that a process of this uid was restarted: its next end is a new one."""
        with self._changed:
            self._heard.pop(uid, None)

    def tell(self, lost: Lost) -> None:
        """Start a thread that handles a loss: it calls the program's hook, or ends the program.

        With the default hook, the thread first waits for a while. If the error of a call tells the
        program of the loss meanwhile, it does nothing.
        """
        thread = run_aside(lambda: self._decide(lost), name="monarch-fault")
        self._asking = [asking for asking in self._asking if asking.is_alive()]
        if thread is not None:
            self._asking.append(thread)

    def settle(self, seconds: float) -> None:
        """Let the threads that handle losses finish: the program ends or leaves the network.

        They stop waiting for errors of calls. Waits for the threads for at most ``seconds``.
        """
        deadline = time.monotonic() + seconds
        with self._changed:
            self._is_ending = True
            self._changed.notify_all()
        for thread in self._asking:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _decide(self, lost: Lost) -> None:
        if _fault_hook() is _default_hook and self._is_heard_in_time(lost):
            return
        failure = lost.failure
        if _fault_hook() is _default_hook and lost.is_host:
            if self._is_over():
                return
            if lost.is_own_child:
                _log.warning(
                    "a host that this program had started itself has ended, and calls to what was "
                    "on it will raise SupervisionError: %s",
                    failure.report(),
                )
                return
        try:
            _fault_hook()(failure)
        except BaseException as error:
            with self._changed:
                # The program is about to end, and reports the first cause only.
                if self.has_ended_program or self._is_closed:
                    return
                self.has_ended_program = True
            self._end_program(failure, error)

    def _is_heard_in_time(self, lost: Lost) -> bool:
        arrived = time.monotonic()

        def is_heard() -> bool:
            return any(self._heard.get(key, 0.0) > arrived for key in lost.keys)

        over = arrived + settings().fault_patience_seconds
        with self._changed:
            while not (is_heard() or self._is_over()) and time.monotonic() < over:
                # The end of the main thread does not wake a wait.
                self._changed.wait(_LOOK_SECONDS)
            return is_heard()

    def _is_over(self) -> bool:
        """Return whether the program ends, and so will make no more calls."""
        return self._is_ending or not any(map(_is_users, threading.enumerate()))

    def _end_program(self, failure: MeshFailure, error: BaseException) -> None:
        when = time.strftime("%Y-%m-%d %H:%M:%S")
        self._flush()
        sys.stderr.write(
            f"Unhandled monarch error on the root actor, hostname={socket.gethostname()}, "
            f"PID={os.getpid()} at time {when}:\n{failure.report()}\n"
        )
        if isinstance(error, SystemExit):
            sys.stderr.write(_REMEDIES)
        else:
            traceback.print_exception(error)
        sys.stderr.flush()
        fail_at_exit()
        end_program()


def _is_users(thread: threading.Thread) -> bool:
    """Return whether a thread is the user's own and keeps the program running."""
    return not (thread.daemon or thread.name.startswith("monarch-"))
