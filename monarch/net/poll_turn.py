"""The turn to poll: the loop's own thread has it, or a guest thread with nothing else to do.

A guest takes the turn, and gives it back when it goes off with a message. It will probably be back
soon, so no thread is woken. If it is not, an alarm wakes the loop's own thread. Setting the alarm
is the most expensive part of this, so it stays set: the thread that it wakes checks how long the
guest has been away.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable

_AWAY_SECONDS = 0.001
_TAKEOVER_SECONDS = 0.05


_CLOEXEC = os.O_CLOEXEC


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _TimeSpec), ("value", _TimeSpec))


# Python has timerfd from 3.13 on. PyDLL keeps the GIL: these calls do not block.
_libc = ctypes.PyDLL(None, use_errno=True)


def has_alarms() -> bool:
    """Return whether the system has timers that are file descriptors; only Linux has."""
    return hasattr(_libc, "timerfd_create")


class Alarm:
    """A timer file descriptor of the kernel."""

    def __init__(self) -> None:
        self._fd: int = _libc.timerfd_create(time.CLOCK_MONOTONIC, _CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "no timer could be made")
        self._off = ctypes.byref(_TimerSpec())

    def set(self, seconds: float) -> None:
        """Set the alarm to go off in ``seconds``. Replaces an earlier setting."""
        nanoseconds = max(1, int(seconds * 1e9))
        spec = _TimerSpec(_TimeSpec(), _TimeSpec(*divmod(nanoseconds, 1_000_000_000)))
        _libc.timerfd_settime(self._fd, 0, ctypes.byref(spec), None)

    def unset(self) -> None:
        _libc.timerfd_settime(self._fd, 0, self._off, None)

    def wait(self) -> None:
        """Block until the alarm goes off."""
        os.read(self._fd, 8)

    def close(self) -> None:
        os.close(self._fd)


class PollTurn:
    """The right to poll, which at most one thread has. It is lent to guests only if ``lends``, and
    if the system has alarms."""

    def __init__(self, lends: bool) -> None:
        self.holder = 0
        self.is_wanted = False
        self._turn = threading.Lock()
        self._guest = threading.Lock()
        self._alarm = Alarm() if lends and has_alarms() else None
        self._is_set = False
        self._left_at = 0.0
        self._has_ended = False

    def begin(self) -> None:
        """Take the first turn. Call it on the loop's own thread."""
        self._turn.acquire()
        self.holder = threading.get_ident()

    def take(self, wake: Callable[[], bool]) -> bool:
        """Take the turn for the calling guest; return whether it polls from now on. ``wake`` ends a
        poll in progress."""
        if self._alarm is None or not self._guest.acquire(blocking=False):
            return False
        if not self._turn.acquire(blocking=False):
            self.is_wanted = True
            # A callback that blocks is a fault, but must not block the guest as well.
            has_turn = wake() and self._turn.acquire(timeout=_TAKEOVER_SECONDS)
            # Also if the turn was free by chance: otherwise it would be lent later for nothing.
            self.is_wanted = False
            if not has_turn:
                self._guest.release()
                return False
        if self._has_ended:
            self._turn.release()
            self._guest.release()
            return False
        self.holder = threading.get_ident()
        return True

    def give_back(self, *, at_once: bool) -> None:
        """Give the turn back, because the guest goes away. ``at_once``: have the loop's own thread
        poll at once."""
        assert self._alarm is not None
        self.holder = 0
        self._left_at = 0.0 if at_once else time.monotonic()
        self._turn.release()
        # Only now: an alarm that goes off while the turn is held would have no effect.
        if at_once or not self._is_set:
            self._is_set = True
            self._alarm.set(0.0 if at_once else _AWAY_SECONDS)
        self._guest.release()

    def hurry(self) -> None:
        """Have the loop's own thread poll at once, if no thread does. For a guest that has left."""
        if self._alarm is not None and self.holder == 0:
            self._left_at = 0.0
            self._is_set = True
            self._alarm.set(0.0)

    def lend(self) -> None:
        """Let a guest poll; return when the turn comes back. Call it on the loop's own thread."""
        assert self._alarm is not None
        self.is_wanted = False
        self.holder = 0
        self._left_at = 0.0
        # Not counted as set: a guest that leaves earlier sets it to an earlier time.
        self._alarm.set(_TAKEOVER_SECONDS)  # The guest may have given up waiting.
        self._turn.release()
        while True:
            self._alarm.wait()
            # Before the look: a guest that leaves after it sets the alarm again.
            self._is_set = False
            if not self._turn.acquire(blocking=False):
                continue
            if time.monotonic() - self._left_at >= _AWAY_SECONDS / 2:
                self.holder = threading.get_ident()
                return
            self._is_set = True
            self._turn.release()
            self._alarm.set(_AWAY_SECONDS)

    def end(self) -> None:
        """End all polling. Call it on the loop's own thread, in its turn."""
        self._has_ended = True
        self.holder = 0  # A later thread may get our number.
        self._turn.release()
        if self._alarm is not None:
            with self._guest:
                self._alarm.close()
