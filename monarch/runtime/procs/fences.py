"""The fences and halts of one process: a barrier for its actors while new code is switched in.

A fence has its place in the order of one sender: an actor has reached it when it has finished that
sender's earlier messages. Messages of other senders pass, so that an actor which is still busy may
call one that already waits. Once the actors of all ranks have reached their fences, a halt stops
them: each finishes its current message, and begins no other until it may go on.

A fence may be lifted: an actor that waits at it goes on, and an actor that reaches it later passes.
Each has a number, so that an old fence in a mailbox is not taken for its successor.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from monarch.core.mailbox import Delivery, Fence, Halt, Lift, Reached, Resume
from monarch.runtime.context import ActorRecord
from monarch.wire.address import Uid


class Fenced(Protocol):
    """The parts of an actor's cell that fences use."""

    record: ActorRecord
    method: str
    held_at: str

    @property
    def is_holding(self) -> bool: ...

    def deliver(self, event: Delivery | Fence | Lift | Halt | Resume) -> None: ...


@dataclass
class _RaisedFence:
    """A fence that is up. If a halt was ordered for it, also the state of the halt."""

    sender: Uid
    #: The actors that wait for the switch itself.
    exempt: set[Uid]
    #: The actors that have not reached the fence, and what is called when all have.
    missing: dict[Uid, Fenced]
    reached: Callable[[], None]
    is_given_up: bool = False
    is_halted: bool = False
    #: The actors that have not stopped for the halt, and what is called when all have.
    moving: dict[Uid, Fenced] = field(default_factory=dict)
    halted: Callable[[], None] = lambda: None


class Fences:
    """Raises fences for all cells of a process, and knows the cells that have not reached them.

    ``lock`` guards the cells too, so that each actor is either before or after a fence.
    """

    def __init__(self, cells: Callable[[], Iterable[Fenced]], lock: threading.Lock) -> None:
        self._cells = cells
        self._lock = lock
        #: By number: the fences that were raised and not lifted.
        self._open: dict[int, _RaisedFence] = {}
        #: The number of the last fence.
        self._last = 0

    def raise_for(
        self,
        sender: Uid,
        reached: Callable[[], None],
        exempt: Callable[[], Collection[Uid]] = tuple,
    ) -> int:
        """Raise a fence: hold back all messages of ``sender`` that arrive from now on. Returns the
        fence's number.

        ``reached`` is called when all actors have handled their earlier messages, on the thread of
        the last of them. ``exempt`` returns actors for which the fence does not wait, because they
        wait for the switch themselves.
        """
        with self._lock:
            # Fences that were given up can be forgotten.
            self._open = {n: fence for n, fence in self._open.items() if not fence.is_given_up}
            number = self._last = self._last + 1
            waiting = exempt()
            cells = {c.record.uid: c for c in self._cells() if c.record.uid not in waiting}
            self._open[number] = _RaisedFence(sender, set(waiting), dict(cells), reached)
        for cell in cells.values():
            cell.deliver(Fence(sender, number))
        if not cells:
            reached()
        return number

    def halt(self, number: int, halted: Callable[[], None]) -> None:
        """Stop every actor once it has finished its current message."""
        with self._lock:
            fence = self._open.get(number)
            if fence is None:
                cells = {}
            else:
                cells = {c.record.uid: c for c in self._cells() if c.record.uid not in fence.exempt}
                fence.moving = dict(cells)
                fence.halted = halted
                fence.is_halted = True
        for cell in cells.values():
            cell.deliver(Halt(number))
        if not cells:
            halted()

    def resume(self, number: int) -> None:
        """End the halt of this fence: actors take up messages again."""
        with self._lock:
            fence = self._open.get(number)
            if fence is None or not fence.is_halted:
                return
            fence.is_halted = False
            fence.moving = {}
            cells = list(self._cells())
        for cell in cells:
            cell.deliver(Resume(number))

    def give_up(self, number: int) -> None:
        """Lift the fence: all actors continue.

        ``reached`` is still called, once all actors have handled the messages before the fence.
        """
        with self._lock:
            fence = self._open.get(number)
            if fence is None:
                return
            fence.is_given_up, fence.is_halted, fence.moving = True, False, {}
            cells = list(self._cells())
        for cell in cells:
            cell.deliver(Lift(number))

    def lift(self, number: int) -> None:
        """Lift the fence: all cells continue."""
        with self._lock:
            if self._open.pop(number, None) is None:
                return
            cells = list(self._cells())
        for cell in cells:
            cell.deliver(Lift(number))

    def begins(self, cell: Fenced, sender: Uid) -> None:
        """Handle a new actor that ``sender`` makes and that is not among the cells yet. Call it
        under the lock."""
        for number, fence in self._open.items():
            # The order to make it was sent after the fence, so the actor waits behind the fence.
            if fence.sender == sender and not fence.is_given_up:
                fence.missing[cell.record.uid] = cell
                cell.deliver(Fence(sender, number))
            if fence.is_halted:
                cell.deliver(Halt(number))

    def reached(self, cell: Fenced, item: Reached) -> None:
        """Note that a cell has taken a fence or a halt out of its mailbox."""
        with self._lock:
            fence = self._open.get(item.number)
        if fence is None or fence.is_given_up:
            cell.deliver(Lift(item.number))
        if fence is not None:
            self._strike(fence, cell.record.uid, is_halt=item.is_halt)

    def exempt(self, actor: Uid) -> None:
        """Note that an actor waits for the switch. The fence does not wait for the actor any
        longer, because each would wait for the other.
        """
        with self._lock:
            for fence in self._open.values():
                fence.exempt.add(actor)
        self.ended(actor)

    def ended(self, actor: Uid) -> None:
        """Note that an actor has ended: the fence does not wait for it."""
        with self._lock:
            fences = list(self._open.values())
        for fence in fences:
            self._strike(fence, actor, is_halt=False)
            self._strike(fence, actor, is_halt=True)

    def awaits(self, actor: Uid) -> bool:
        """Return whether a fence waits for this actor to reach it."""
        with self._lock:
            return any(actor in f.missing for f in self._open.values() if not f.is_given_up)

    def waiting_for(self, number: int) -> list[Fenced]:
        """Return the actors that have not reached the fence or, if there is a halt, have not
        stopped."""
        with self._lock:
            fence = self._open.get(number)
            return [] if fence is None else [*(fence.missing or fence.moving).values()]

    def holds_up_any(self) -> bool:
        """Return whether any actor waits at a fence while messages for it wait behind the fence."""
        return any(cell.is_holding for cell in self._cells())

    def _strike(self, fence: _RaisedFence, actor: Uid, *, is_halt: bool) -> None:
        """Note that a fence (with ``is_halt``, its halt) no longer waits for ``actor``.

        If ``actor`` was the last that it waited for, ``reached`` or ``halted`` of the fence is
        called.
        """
        with self._lock:
            missing = fence.moving if is_halt else fence.missing
            if missing.pop(actor, None) is None or missing:
                return
            over = fence.halted if is_halt else fence.reached
        over()
