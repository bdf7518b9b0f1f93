"""The tree of a run's generations, from its events.

A generation's parent is the code before it. Code that failed, and code that a rollback has left, is
a branch; the line to the current code is the trunk (``depth`` 0).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from monarch.runs.record.measured import int_or_none

_FAILURES = ("held", "failed_edit")


@dataclass
class Generation:
    """One generation of the tree.

    ``parent`` is the list index of the generation that it follows; ``None`` for the first. ``like``
    is the number of an earlier generation with the same code; 0 if its code is new.
    """

    generation: int
    parent: int | None = None
    state: str = "good"
    step: int | None = None
    time: float = 0.0
    seconds: float | None = None
    files: list[str] = field(default_factory=list)
    diff: str = ""
    error: str = ""
    like: int = 0
    depth: int = 0
    is_now: bool = False


def generation_tree(events: Iterable[Mapping[str, Any]]) -> list[Generation]:
    """Return the generations, oldest first."""
    tree = _GenerationTree()
    for event in events:
        number = event.get("generation")
        if isinstance(number, int | float) and not isinstance(number, bool):
            tree.take(int(number), event)
    return tree.laid_out()


class _GenerationTree:
    def __init__(self) -> None:
        self._nodes: list[Generation] = []
        #: The index of the node with each digest.
        self._digests: dict[str, int] = {}
        #: Generations that rollbacks have made, each with the one that it repeats.
        self._rollbacks: dict[int, int] = {}
        #: The index of the code that succeeded last, and of the current code.
        self._head: int | None = None
        self._current: int | None = None

    def take(self, number: int, event: Mapping[str, Any]) -> None:
        kind = event.get("kind")
        if kind in _FAILURES:
            self._fail(number, event)
        elif kind == "rolled_back":
            self._rollbacks[number] = int(event.get("good") or 0)
        elif kind in ("begun", "generation"):
            self._move(number, event)

    def _find(self, number: int) -> int | None:
        return next((n for n, node in enumerate(self._nodes) if node.generation == number), None)

    def _add(self, number: int, event: Mapping[str, Any]) -> int:
        self._nodes.append(Generation(number, self._head, time=event.get("time", 0.0)))
        return len(self._nodes) - 1

    def _fail(self, number: int, event: Mapping[str, Any]) -> None:
        index = self._find(number)
        if index is None:
            index = self._add(number, event)
        error = (str(event.get("error") or event.get("text") or "").splitlines() or [""])[0]
        if event.get("file"):
            error = f"{event['file']}:{event.get('line')}: {error}"
        self._nodes[index].state, self._nodes[index].error = "failed", error
        self._current = index

    def _move(self, number: int, event: Mapping[str, Any]) -> None:
        digest = str(event.get("digest") or "")
        like = self._digests.get(digest) if digest else self._find(self._rollbacks.get(number, 0))
        index = self._find(number)
        if index is not None and index == self._head and self._nodes[index].state == "good":
            return  # The run continues with it.
        if index is None:
            index = self._add(number, event)
        node = self._nodes[index]
        node.state, node.step = "good", int_or_none(event.get("step"))
        node.files = [str(file) for file in event.get("files") or ()]
        node.diff = str(event.get("diff") or "")
        node.seconds = event.get("save_to_step_seconds")
        self._current = index
        if like is not None and like != index:
            node.like, node.parent, self._head = self._nodes[like].generation, like, like
            return
        if digest:
            self._digests[digest] = index
        self._head = index

    def laid_out(self) -> list[Generation]:
        """Return all nodes, with their depths, and the current one marked."""
        trunk = set()
        ancestor = self._head
        while ancestor is not None and ancestor not in trunk:
            trunk.add(ancestor)
            ancestor = self._nodes[ancestor].parent
        if self._current is not None:
            self._nodes[self._current].is_now = True
        with_child: set[int] = set()
        for index, node in enumerate(self._nodes):
            if index in trunk or node.parent is None:
                continue
            parent = self._nodes[node.parent]
            goes_on = node.parent not in trunk and node.parent not in with_child
            node.depth = parent.depth + (0 if goes_on else 1)
            with_child.add(node.parent)
        return self._nodes
