"""Work on a thread of its own, or on this thread if an ending interpreter can start none."""

from __future__ import annotations

import threading
from collections.abc import Callable


def run_aside(work: Callable[[], object], name: str) -> threading.Thread | None:
    """Run ``work`` on a new thread, and return the thread. The program does not end before it.

    An interpreter that is ending starts no threads. Then ``work`` runs here, and None is returned.
    """
    thread = threading.Thread(target=work, name=name)
    try:
        thread.start()
    except RuntimeError:
        work()
        return None
    return thread
