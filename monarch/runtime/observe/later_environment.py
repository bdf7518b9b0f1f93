"""What a host agent sets in the environment of procs that start later, on a person's word."""

from __future__ import annotations

import time
from typing import NamedTuple

from monarch.runtime.node import Node
from monarch.wire.codec import Envelope
from monarch.wire.message import EnvSet


class _Setting(NamedTuple):
    value: str | None
    who: str
    when: float
    ranks: tuple[int, ...]


class LaterEnvironment:
    """Remembered as long as the agent lives; what was set last counts."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._set: list[tuple[str, _Setting]] = []
        node.handle(EnvSet, self._on_set)

    def of(self, rank: int) -> dict[str, str | None]:
        """What a new proc of that rank is to have; ``None`` takes a variable out."""
        return {
            name: setting.value
            for name, setting in self._set
            if not setting.ranks or rank in setting.ranks
        }

    def _on_set(self, envelope: Envelope) -> None:
        order = envelope.message
        assert isinstance(order, EnvSet)
        for name, value in order.values.items():
            if not order.ranks:
                self._set = [(other, kept) for other, kept in self._set if other != name]
            self._set.append((name, _Setting(value, order.who, time.time(), order.ranks)))
        body = {"notes": {name: _note(setting) for name, setting in self._set}}
        self._node.answer(order.sender, order.port, body)


def _note(setting: _Setting) -> str:
    what = "unset" if setting.value is None else "set"
    return f"{what} by {setting.who} {time.strftime('%H:%M', time.localtime(setting.when))}"
