"""Threads that poll in the I/O loop's place while they wait: see ``monarch.net.poll_turn``."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from monarch.net.cork import flush, sent_one
from monarch.net.io_loop import IoLoop

_local = threading.local()


def invite(loop: IoLoop | None) -> None:
    """From here on this thread polls for ``loop`` when it waits."""
    _local.loop = loop


os.register_at_fork(after_in_child=lambda: invite(None))  # The loop's thread is not there.


def wait_until(
    done: Callable[[], bool],
    timeout: float | None = None,
    subscribe: Callable[[Callable[[], None]], None] | None = None,
) -> None:
    """Before this thread blocks: write what is held back, and, if it is a guest of a loop, poll
    for it until ``done()`` or for ``timeout`` seconds. May return early: block then.

    ``subscribe`` is given what must be called when ``done()`` has come true by another thread's
    doing: the polling thread would not notice.
    """
    flush()
    loop: IoLoop | None = getattr(_local, "loop", None)
    if loop is not None:
        if subscribe is not None:
            subscribe(loop.nudge)
        loop.serve(done, timeout, is_eager=sent_one())


def wait_a_moment(done: Callable[[], bool]) -> bool:
    """Before this thread goes on with an asyncio loop that has nothing to do: write what is held
    back, and, if it is a guest of an I/O loop, look for an answer that may come at once.

    Whether it is ``done()``.
    """
    flush()
    loop: IoLoop | None = getattr(_local, "loop", None)
    if loop is not None and sent_one():
        loop.serve_a_moment(done)
    return done()
