"""The clock of a run's limits, which stops while a person holds a rank in a debugger."""

from __future__ import annotations

import time

from monarch.runtime import process


def unheld_time() -> float:
    """Return a time in seconds that does not advance during holds; only differences have a
    meaning."""
    return time.monotonic() - held_seconds()


def is_held() -> bool:
    """Whether a call of this program waits in the debugger now. Starts no runtime."""
    return process.is_bootstrapped() and process.current().held_time.is_held


def held_seconds() -> float:
    """Return for how many seconds calls of this program were held so far; in a proc, since its
    start."""
    agent = process.current()
    return agent.held_time.seconds(agent.node.loop.time())
