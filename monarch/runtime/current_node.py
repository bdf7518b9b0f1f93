"""The node of this process, for those that the agents themselves are made of."""

from __future__ import annotations

from monarch.runtime.node import Node

__all__ = ["current_node", "set_current_node"]

_current: Node | None = None


def set_current_node(node: Node | None) -> None:
    global _current
    _current = node


def current_node() -> Node:
    """The node of this process, which must have joined the network."""
    if _current is None:
        raise RuntimeError("this process has not joined the network (any more)")
    return _current
