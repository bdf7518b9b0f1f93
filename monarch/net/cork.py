"""Write coalescing: small messages that follow each other closely share one write.

Nagle's algorithm does the same inside TCP, where it waits for an acknowledgement instead.

A write costs a system call here and may wake a process there; a burst of small messages spends most
of its time on that. So a connection writes its first message at once, and keeps the next ones until
the sender is about to wait for something: then no more will come, and the sender calls ``flush``.
If the sender never waits, the I/O loop writes everything after 3 ms: one timer for all connections,
because each timer wakes the loop's thread.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol

from monarch.net.loop import Loop

_MAX_HELD_SECONDS = 0.003


class Corked(Protocol):
    """A connection that holds small messages back."""

    def uncork(self) -> None: ...


waits = 0
"""How often anybody in this process was about to wait: tells a burst from question and answer."""

_num_sent = 0
_held: set[Corked] = set()
_lock = threading.Lock()
_due = 0.0


def cork(connection: Corked, loop: Loop) -> None:
    """Register a connection that holds messages back: ``flush`` writes them, or ``loop`` after 3
    ms."""
    global _due
    now = time.perf_counter()
    with _lock:
        _held.add(connection)
        # By the clock and not by a flag: the loop that was asked may have ended before.
        is_covered = now < _due
        if not is_covered:
            _due = now + _MAX_HELD_SECONDS
    if not is_covered:
        loop.call_later(_MAX_HELD_SECONDS, _write_all)


def sent() -> None:
    """Count a sent message that is a question to a single process, or an answer. Casts, marks and
    orders do not count."""
    global _num_sent
    _num_sent += 1


def sent_one() -> bool:
    """Return whether exactly one question or answer was sent since the last call of this function:
    the wait may then be short.

    It is a guess, because other threads may send, too.
    """
    global _num_sent
    is_one, _num_sent = _num_sent == 1, 0
    return is_one


def flush() -> None:
    """Write all messages that are held back in this process. Call it before waiting. From any
    thread."""
    global waits
    waits += 1
    if _held:
        _write_all()


def _write_all() -> None:
    with _lock:
        held = list(_held)
        _held.clear()
    for connection in held:
        connection.uncork()
