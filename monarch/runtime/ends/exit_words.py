"""Describes how a process ended, and reads such descriptions."""

from __future__ import annotations

import signal

_EXITED = "it exited with status"
_KILLED = "it was killed by"
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT)


def describe_exit(code: int | None) -> str:
    """Return in words how a process ended: by its exit code, or by signal ``-code``.

    ``None`` means that its template died, and the proc with it.
    """
    if code is None:
        return "its template process died"
    if code >= 0:
        return f"{_EXITED} {code}, unasked (by os._exit, or exit() of a library)"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"{_KILLED} {name} (process failure: Killed(sig={-code}))"


def has_ended_itself(words: str) -> bool:
    """Return whether the process ended by its own code: it exited, or crashed."""
    return words.startswith((_EXITED, *(f"{_KILLED} {number.name} " for number in _CRASHES)))
