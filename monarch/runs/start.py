"""How long this program has been running, interpreter and imports included."""

from __future__ import annotations

import os
import time

from monarch.runtime.ends.process_start import process_start

__all__ = ["seconds_since_start"]


def seconds_since_start() -> float:
    """Seconds since the kernel started this process."""
    started = process_start(os.getpid()) or 0
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK")
