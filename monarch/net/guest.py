"""Threads that poll in the I/O loop's place while they wait: see ``monarch.net.poll_turn``."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from monarch.net.cork import flush, sent_one
from monarch.net.io_loop import IoLoop

_local = threading.local()


def invite(loop: IoLoop | None) -> None:
    """Have this thread poll for ``loop`` whenever it waits; with None, no longer."""
    _local.loop = loop


os.register_at_fork(after_in_child=lambda: invite(None))  # The loop's thread is not there.


def wait_until(
    done: Callable[[], bool],
    timeout: float | None = None,
    subscribe: Callable[[Callable[[], None]], None] | None = None,
) -> None:
    """Wait until ``done()``, for ``timeout`` seconds at most. For a thread that is about to block.

    First writes the messages that are held back. If the thread is a guest of a loop, it polls for
    the loop meanwhile; otherwise this returns at once. It may return early in any case, so the
    caller must then block in its own way.

    ``subscribe`` is called with a function that another thread must call when it has made
    ``done()`` true: the polling thread would not notice.
    """
    flush()
    loop: IoLoop | None = getattr(_local, "loop", None)
    if loop is not None:
        if subscribe is not None:
            subscribe(loop.nudge)
        loop.serve(done, timeout, is_eager=sent_one())


def wait_a_moment(done: Callable[[], bool]) -> bool:
    """Write the messages that are held back, and poll for a moment for an answer that may come at
    once, if the thread is a guest of an I/O loop. For a thread whose asyncio loop has nothing to
    do.

    Returns ``done()``.
    """
    flush()
    loop: IoLoop | None = getattr(_local, "loop", None)
    if loop is not None and sent_one():
        loop.serve_a_moment(done)
    return done()
