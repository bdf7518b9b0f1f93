"""The tree of a run's generations, from its events.

A generation's parent is the code before it. Code that failed, and code that a rollback has left, is
a branch; the line to the current code is the trunk (``depth`` 0).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

_FAILURES = ("held", "failed_edit")


@dataclass
class Generation:
    """One generation of the tree.

    ``parent`` is the index of the one before it in the list; ``like`` is the number of the
    generation whose code it has again, 0 if it is new.
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
        self._digests: dict[str, int] = {}
        self._backs: dict[int, int] = {}  # generations that are others again, as they were told
        self._head: int | None = None  # the place of the code that went well last
        self._now: int | None = None  # the place of the code that is there

    def take(self, number: int, event: Mapping[str, Any]) -> None:
        kind = event.get("kind")
        if kind in _FAILURES:
            self._fail(number, event)
        elif kind == "rolled_back":
            self._backs[number] = int(event.get("good") or 0)
        elif kind in ("begun", "generation"):
            self._move(number, event)

    def _find(self, number: int) -> int | None:
        places = (at for at, one in enumerate(self._nodes) if one.generation == number)
        return next(places, None)

    def _add(self, number: int, event: Mapping[str, Any]) -> int:
        made = Generation(number, self._head, time=event.get("time", 0.0))
        self._nodes.append(made)
        return len(self._nodes) - 1

    def _fail(self, number: int, event: Mapping[str, Any]) -> None:
        place = self._find(number)
        if place is None:
            place = self._add(number, event)
        self._nodes[place].state = "failed"
        self._nodes[place].error = _place_and_error(event)
        self._now = place

    def _move(self, number: int, event: Mapping[str, Any]) -> None:
        digest = str(event.get("digest") or "")
        like = self._digests.get(digest) if digest else self._find(self._backs.get(number, 0))
        at = self._find(number)
        if at is not None and at == self._head and self._nodes[at].state == "good":
            return  # The run goes on with it.
        if at is None:
            at = self._add(number, event)
        node = self._nodes[at]
        node.state, node.step = "good", _int(event.get("step"))
        node.files = [str(file) for file in event.get("files") or ()]
        node.diff = str(event.get("diff") or "")
        node.seconds = event.get("save_to_step_seconds")
        if like is not None and like != at:
            node.like, node.parent, self._head = self._nodes[like].generation, like, like
            self._now = at
            return
        if digest:
            self._digests[digest] = at
        self._head = self._now = at

    def laid_out(self) -> list[Generation]:
        trunk = set()
        at = self._head
        while at is not None and at not in trunk:
            trunk.add(at)
            at = self._nodes[at].parent
        if self._now is not None:
            self._nodes[self._now].is_now = True
        with_child: set[int] = set()
        for place, node in enumerate(self._nodes):
            if place in trunk or node.parent is None:
                continue
            parent = self._nodes[node.parent]
            goes_on = node.parent not in trunk and node.parent not in with_child
            node.depth = parent.depth + (0 if goes_on else 1)
            with_child.add(node.parent)
        return self._nodes


def _place_and_error(event: Mapping[str, Any]) -> str:
    error = (str(event.get("error") or event.get("text") or "").splitlines() or [""])[0]
    return f"{event['file']}:{event.get('line')}: {error}" if event.get("file") else error


def _int(value: Any) -> int | None:
    return value if isinstance(value, int) else None
