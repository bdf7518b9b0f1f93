"""Work on a thread of its own, or on this thread if an ending interpreter can start none."""

from __future__ import annotations

import threading
from collections.abc import Callable


def run_aside(work: Callable[[], object], name: str) -> threading.Thread | None:
    """Run ``work`` on a thread, which the program waits for; at the program's end, here.

    An interpreter of Python 3.12 that ends takes no new threads: not in handlers of ``atexit``, and
    not while it waits for other threads either.
    """
    thread = threading.Thread(target=work, name=name)
    try:
        thread.start()
    except RuntimeError:
        work()
        return None
    return thread
