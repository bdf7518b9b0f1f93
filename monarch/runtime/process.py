"""The agent of this process: there is one, made on first use in a client."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from monarch.runtime.current_node import set_current_node
from monarch.runtime.proc_agent import ProcAgent

__all__ = ["current", "install", "is_bootstrapped", "on_first_use", "uninstall"]

_lock = threading.RLock()
_current: ProcAgent | None = None
_make_client: Callable[[], ProcAgent] | None = None


def current() -> ProcAgent:
    """The agent of this process. In a program that has none yet, this makes it a client."""
    if _current is None:
        with _lock:
            if _current is None:
                if _make_client is None:
                    raise RuntimeError("import monarch.actor before using the runtime")
                install(_make_client())
    assert _current is not None
    return _current


def is_bootstrapped() -> bool:
    return _current is not None


def install(agent: ProcAgent) -> None:
    """Make ``agent`` the one of this process."""
    global _current
    _current = agent
    set_current_node(agent.node)


def uninstall() -> None:
    """The client has left the network; the next use makes a new one."""
    global _current
    _current = None
    set_current_node(None)


# A forked child is not this process: it must not end what its parent owns when it exits.
os.register_at_fork(after_in_child=uninstall)


def on_first_use(make: Callable[[], ProcAgent]) -> None:
    """How to make a client agent when a program first needs one."""
    global _make_client
    _make_client = make
