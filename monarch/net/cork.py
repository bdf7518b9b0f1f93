"""Small messages that follow each other closely share one write.

A write costs a system call here and may wake a process there; a burst of small messages spends
most of its time on that. So a connection writes its first message at once, and keeps what is sent
next until the sender is about to wait for something: then nothing more will come, and it calls
``flush``. A sender that never waits is covered by the I/O loop, which flushes after a moment.
"""

from __future__ import annotations

import threading
from typing import Protocol

__all__ = ["Corked", "cork", "flush", "waits"]


class Corked(Protocol):
    """Something that holds small messages back."""

    def uncork(self) -> None: ...


waits = 0
"""How often anybody in this process was about to wait: tells a burst from question and answer."""

_held: set[Corked] = set()
_lock = threading.Lock()


def cork(connection: Corked) -> None:
    """``connection`` holds something back: remember to flush it."""
    with _lock:
        _held.add(connection)


def flush() -> None:
    """Write all that is held back in this process. Call it before waiting. From any thread."""
    global waits
    waits += 1
    if not _held:
        return
    with _lock:
        held = list(_held)
        _held.clear()
    for connection in held:
        connection.uncork()
