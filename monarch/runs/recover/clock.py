"""The clock of a run's limits, which stands still while a person holds a rank in a debugger."""

from __future__ import annotations

import time

from monarch.runtime import process


def unheld_time() -> float:
    """Seconds, of which only differences mean anything."""
    return time.monotonic() - held_seconds()


def is_held() -> bool:
    """Whether a call of this program waits in the debugger now. Starts nothing."""
    return process.is_bootstrapped() and process.current().held_time.is_held


def held_seconds() -> float:
    """For how long calls of this program have stood in `monarch debug` by now; in a proc, since it
    began."""
    agent = process.current()
    return agent.held_time.seconds(agent.node.loop.time())
