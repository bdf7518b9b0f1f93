"""Sends the lines that procs print the usual way: to their host agent, and so to the client."""

from __future__ import annotations

import sys
from typing import Any, TextIO

from monarch.testing.threads import owner_of_thread

_STREAMS = (("stdout", 1), ("stderr", 2))


class _Output:
    """``sys.stdout`` or ``sys.stderr`` of the proc whose thread prints."""

    def __init__(self, real: TextIO, stream: int) -> None:
        self.real = real
        self._stream = stream

    def write(self, text: str) -> int:
        proc = owner_of_thread()
        if proc is None:
            return self.real.write(text)
        proc.write(self._stream, text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


def route_output() -> None:
    """Make ``sys.stdout`` and ``sys.stderr`` those of the proc whose thread prints.

    It must be called again before user code runs: test frameworks replace these streams between the
    phases of a test.
    """
    for name, stream in _STREAMS:
        current = getattr(sys, name)
        if not isinstance(current, _Output):
            setattr(sys, name, _Output(current, stream))


def unroute_output() -> None:
    """Undo `route_output`."""
    for name, _ in _STREAMS:
        current = getattr(sys, name)
        if isinstance(current, _Output):
            setattr(sys, name, current.real)
