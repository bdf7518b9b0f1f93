"""The agent of this process: there is one, made on first use in a client.

Only a world of in-process hosts (``monarch.testing``) has several; it returns the agent that the
calling code belongs to.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from monarch.runtime.current_node import find_node_by, set_current_node
from monarch.runtime.procs.proc_agent import ProcAgent

_lock = threading.RLock()
_current: ProcAgent | None = None
_find: Callable[[], ProcAgent] | None = None
_make_client: Callable[[bool], ProcAgent] | None = None


def current(*, spawns: bool = False) -> ProcAgent:
    """Return the agent of this process. In a program that has none yet, this makes it a client.

    ``spawns``: the caller is about to spawn procs on this machine.
    """
    return _current or _look(spawns)


def _look(spawns: bool) -> ProcAgent:
    if _find is not None:
        return _find()
    with _lock:
        if _current is None:
            if _make_client is None:
                raise RuntimeError("import monarch.actor before using the runtime")
            install(_make_client(spawns))
    assert _current is not None
    return _current


def is_bootstrapped() -> bool:
    return _current is not None or _find is not None


def install(agent: ProcAgent) -> None:
    """Set the agent of this process."""
    global _current
    _current = agent
    set_current_node(agent.node)


def uninstall() -> None:
    """Forget the client, which has left the network. The next use makes a new client."""
    global _current
    _current = None
    set_current_node(None)


@contextmanager
def found_by(find: Callable[[], ProcAgent]) -> Iterator[None]:
    """Within this block, the agent of the calling thread is what ``find`` returns.

    For simulations, which have several agents in one process. The process's own agent is set aside
    until the block ends.
    """
    global _find
    agent_before, find_before = _current, _find
    uninstall()
    _find = find
    find_node_by(lambda: find().node)
    try:
        yield
    finally:
        _find = find_before
        find_node_by(None if find_before is None else lambda: find_before().node)
        if agent_before is not None:
            install(agent_before)


def _forget() -> None:
    global _find
    _find = None
    find_node_by(None)
    uninstall()


# A forked child must not end what its parent owns when it exits.
os.register_at_fork(after_in_child=_forget)


def on_first_use(make: Callable[[bool], ProcAgent]) -> None:
    """Set the function that makes a client agent on first use.

    Its argument is true if procs of this machine are about to be spawned.
    """
    global _make_client
    _make_client = make
