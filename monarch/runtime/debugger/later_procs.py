"""Variables and breakpoints that a person has set for procs that start later.

They are kept as long as the host agent lives.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from monarch.core.rank_sets import is_in, parse_set
from monarch.runtime.node import Node
from monarch.wire.message import BreakAnswer, BreakPlace, EnvSet


class _Setting(NamedTuple):
    value: str | None
    who: str
    when: float
    ranks: tuple[int, ...]


class LaterEnvironment:
    """Environment variables that were set for procs that start later.

    If a variable was set twice, the last value counts.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._set: list[tuple[str, _Setting]] = []
        node.on(EnvSet, self._on_set)

    def of(self, rank: int) -> dict[str, str | None]:
        """Return the variables for a new proc of that rank; ``None`` removes a variable."""
        return {
            name: setting.value
            for name, setting in self._set
            if not setting.ranks or rank in setting.ranks
        }

    def _on_set(self, order: EnvSet) -> None:
        for name, value in order.values.items():
            if not order.ranks:
                self._set = [(other, setting) for other, setting in self._set if other != name]
            self._set.append((name, _Setting(value, order.who, time.time(), order.ranks)))
        self._node.answer(order, {name: _note(setting) for name, setting in self._set})


def _note(setting: _Setting) -> str:
    change = "unset" if setting.value is None else "set"
    return f"{change} by {setting.who} {time.strftime('%H:%M', time.localtime(setting.when))}"


class LaterBreaks:
    """Keeps the breakpoints that were set for procs that start later, and lists them on request."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._places: dict[int, BreakPlace] = {}
        node.on(BreakPlace, self._on_place)

    def of(self, rank: int, labels: Sequence[str], sizes: Sequence[int]) -> tuple[BreakPlace, ...]:
        """Return the breakpoints for a new proc of that rank."""
        return tuple(
            place
            for place in self._places.values()
            if is_in(parse_set(place.ranks), rank, labels, sizes)
        )

    def _on_place(self, order: BreakPlace) -> None:
        error = ""
        try:
            parse_set(order.ranks)
        except ValueError as refused:
            error = str(refused)
        else:
            if order.is_gone:
                self._places.pop(order.number, None)
            elif order.number:
                self._places[order.number] = order
        self._node.answer(order, BreakAnswer(breaks=tuple(self._places.values())), error)
