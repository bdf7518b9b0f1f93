"""Says what a program waits for, when a wait takes long."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_FIRST_SECONDS = 1.0
_LONGEST_SECONDS = 60.0

_shown_elsewhere = 0


@contextmanager
def shown_elsewhere() -> Iterator[None]:
    """Print no waiting messages in the block, as the wait is shown otherwise, by a spinner."""
    global _shown_elsewhere
    _shown_elsewhere += 1
    try:
        yield
    finally:
        _shown_elsewhere -= 1


@contextmanager
def told_if_long(what: Callable[[], str], seconds: float = _FIRST_SECONDS) -> Iterator[None]:
    """Print on standard error what the program waits for, if the block takes longer than
    ``seconds``; ``what`` returns its description.

    The message is repeated each time that the wait has doubled, or after another minute.
    """
    is_over = threading.Event()

    def tell() -> None:
        began, pause = time.monotonic(), seconds
        while not is_over.wait(pause):
            took = time.monotonic() - began
            pause = min(max(took, seconds), _LONGEST_SECONDS)
            if not _shown_elsewhere:
                so_far = f", {took:.0f} s so far" if took >= 2 * seconds else ""
                sys.stderr.write(f"monarch: waiting for {what()}{so_far}\n")
                sys.stderr.flush()

    teller = threading.Thread(target=tell, name="monarch-waiting", daemon=True)
    teller.start()
    try:
        yield
    finally:
        is_over.set()
        teller.join()
