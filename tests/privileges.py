"""Permission bits that forbid something, which root would not notice."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import TypeVar

__all__ = ["unprivileged"]

T = TypeVar("T")
_PAST_FILE_RULES = 0b110  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH, which root has


def unprivileged(work: Callable[[], T]) -> T:
    """Run something as permission bits say, also where the tests run as root."""
    results: list[T] = []

    def run() -> None:
        # Capabilities are a thread's own.
        libc = ctypes.CDLL(None, use_errno=True)
        head, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
        assert libc.capget(head, sets) == 0
        sets[0] &= ~_PAST_FILE_RULES
        assert libc.capset(head, sets) == 0
        results.append(work())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    [result] = results
    return result
