"""The node of this process, for modules that the agents themselves use."""

from __future__ import annotations

from collections.abc import Callable

from monarch.runtime.node import Node

_current: Node | None = None
_find: Callable[[], Node] | None = None


def set_current_node(node: Node | None) -> None:
    global _current
    _current = node


def find_node_by(find: Callable[[], Node] | None) -> None:
    """Set the function that finds the current node if a process has several: see
    ``process.found_by``."""
    global _find
    _find = find


def current_node() -> Node:
    """Return the node of this process, which must have joined the network."""
    if _current is not None:
        return _current
    if _find is None:
        raise RuntimeError("this process has not joined the network (any more)")
    return _find()
