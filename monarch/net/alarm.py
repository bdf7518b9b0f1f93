"""A timer that wakes one waiting thread, and costs the thread that sets it one system call."""

from __future__ import annotations

import ctypes
import os
import time

__all__ = ["Alarm", "has_alarms"]

_CLOEXEC = os.O_CLOEXEC


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _TimeSpec), ("value", _TimeSpec))


# Python has timerfd from 3.13 on. PyDLL keeps the GIL: these calls do not block.
_libc = ctypes.PyDLL(None, use_errno=True)


def has_alarms() -> bool:
    """Only Linux has timers that are file descriptors."""
    return hasattr(_libc, "timerfd_create")


class Alarm:
    """A timer file descriptor of the kernel."""

    def __init__(self) -> None:
        self._fd: int = _libc.timerfd_create(time.CLOCK_MONOTONIC, _CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "no timer could be made")
        self._off = ctypes.byref(_TimerSpec())

    def set(self, seconds: float) -> None:
        """Go off in ``seconds``; instead of what was set before."""
        nanoseconds = max(1, int(seconds * 1e9))
        spec = _TimerSpec(_TimeSpec(), _TimeSpec(*divmod(nanoseconds, 1_000_000_000)))
        _libc.timerfd_settime(self._fd, 0, ctypes.byref(spec), None)

    def unset(self) -> None:
        _libc.timerfd_settime(self._fd, 0, self._off, None)

    def wait(self) -> None:
        """Block until it goes off."""
        os.read(self._fd, 8)

    def close(self) -> None:
        os.close(self._fd)
