"""Follows the waits of this process's actors that take long: see ``core.rings``.

It looks at actors only while one of them waits. All methods run on the node's I/O loop.
"""

from __future__ import annotations

from collections.abc import Callable

from monarch.core.call_table import LIFE_BITS
from monarch.core.rings import MOST_ASKED, Asked, Path, Waits, follow
from monarch.runtime.answers import Response
from monarch.runtime.cells.actor_cell import ActorCell
from monarch.runtime.cells.cell_table import CellTable
from monarch.runtime.cells.endpoint_spec import endpoint_specs
from monarch.runtime.node import Node
from monarch.runtime.waits import Wait
from monarch.wire.address import ProcAddress
from monarch.wire.message import AnswerWaits, AskWait, Chase, RingFound, Waiter

_LOOK_SECONDS = 0.5


class RingWatch:
    """Looks for rings of waiting actors and reports them to the client ``root``."""

    def __init__(self, node: Node, cells: CellTable, root: Callable[[], ProcAddress]) -> None:
        self._node = node
        self._cells = cells
        self._root = root
        self._waits = Waits(node.life << LIFE_BITS)
        self._is_ticking = False
        self._is_awake = False
        node.on(AskWait, self._on_ask)
        node.on(Chase, self._on_chase)

    def wake(self) -> None:
        """Begin to watch an actor that waits, in case the wait takes long. From any thread."""
        if not self._is_awake:
            self._is_awake = True
            self._node.loop.call_soon(self._begin)

    def _begin(self) -> None:
        if not self._is_ticking:
            self._is_ticking = True
            self._node.loop.call_later(_LOOK_SECONDS, self._tick)

    def _tick(self) -> None:
        self._is_ticking = False
        # Before the look: an actor that begins to wait during it wakes us again.
        self._is_awake = False
        now = self._node.loop.time()
        cells = self._cells.all()
        self._waits.keep(cell.record.uid for cell in cells)
        for cell in cells:
            attempt = self._waits.due(cell.record.uid, cell.wait_in_hand(), now)
            if attempt and (waiter := self._waiter(cell)) is not None:
                self._chase(cell, (waiter,), attempt)
        if self._waits:
            self._is_awake = True
            self._begin()

    def _waiter(self, cell: ActorCell) -> Waiter | None:
        """Return the call that an actor waits in; None if it does not wait."""
        wait, record = cell.wait_in_hand(), cell.record
        number = self._waits.number(record.uid, wait, self._node.loop.time())
        if not number:
            return None
        # The number is forgotten after the next look that does not find the wait.
        self.wake()
        return Waiter(
            proc=self._node.address,
            actor=record.uid,
            number=number,
            name=record.name,
            rank=record.rank,
            endpoint=cell.method or "__init__",
        )

    def _still(self, waiter: Waiter) -> ActorCell | None:
        """Return the actor, if it is in the same wait as when ``waiter`` was made; else None."""
        cell = self._cells.get(waiter.actor)
        current = None if cell is None else self._waiter(cell)
        return cell if current is not None and current.number == waiter.number else None

    def _chase(self, cell: ActorCell, path: Path, attempt: int) -> None:
        wait = cell.wait_in_hand()
        if wait is not None and self._waits.is_first(path, attempt):
            for asked in self.asked(wait):
                self._ask(path, attempt, asked)

    def asked(self, wait: Wait) -> list[Asked]:
        """Return the actors whose answers a wait is for; empty if none, or too many to follow."""
        for sink in self._node.calls.sinks():
            if getattr(sink, "awaits", None) is not None:
                asked: list[Asked] = sink.awaits(wait.promise)  # type: ignore[attr-defined]
                if asked:
                    return asked if len(asked) <= MOST_ASKED else []
        return []

    def _ask(self, path: Path, attempt: int, asked: Asked) -> None:
        def answered(response: Response[AnswerWaits | None]) -> None:
            self._answered(path, attempt, asked, response.or_else(None))

        self._node.ask_on_loop(asked.proc, AskWait(asked.actor, asked.method), answered)

    def _answered(self, path: Path, attempt: int, asked: Asked, wait: AnswerWaits | None) -> None:
        if wait is None or self._still(path[-1]) is None:
            return
        waiter = Waiter(
            proc=asked.proc,
            actor=asked.actor,
            number=wait.number,
            name=wait.name,
            rank=wait.rank,
            endpoint=wait.endpoint,
        )
        path, is_ring = follow(path, asked, waiter)
        if is_ring:
            self._node.send(self._root(), RingFound(path))
        elif path:
            self._node.send(asked.proc, Chase(path, attempt))

    def _on_ask(self, ask: AskWait) -> None:
        cell = self._cells.get(ask.actor)
        waiter = self._waiter(cell) if cell is not None and _holds_up(cell, ask.method) else None
        if waiter is None:
            self._node.answer(ask)
            return
        wait = AnswerWaits(waiter.number, waiter.name, waiter.rank, waiter.endpoint)
        self._node.answer(ask, wait)

    def _on_chase(self, chase: Chase) -> None:
        cell = self._still(chase.path[-1]) if chase.path else None
        if cell is not None:
            self._chase(cell, chase.path, chase.attempt)


def _holds_up(cell: ActorCell, method: str) -> bool:
    """Return whether a call of ``method`` is answered only by its return, so that a wait of the
    actor delays the answer."""
    if cell.failure is not None or cell.is_ending or cell.is_ended or cell.cls is None:
        return False
    spec = endpoint_specs(cell.cls).get(method)
    return spec is None or not (spec.explicit_response_port or spec.is_concurrent)
