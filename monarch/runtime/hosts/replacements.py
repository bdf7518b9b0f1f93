"""Procs of a host that are replaced by new ones of the same uid, because their code cannot
change."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from monarch.runtime.node import Node
from monarch.wire.address import Uid
from monarch.wire.message import ReplaceProcs

End = Callable[[Sequence[Uid], ReplaceProcs], None]


class Replacements:
    """Carries out orders to replace procs. All methods run on the node's I/O loop.

    ``procs`` are the existing procs. ``end`` is called with the uids of procs to end, and with the
    order.
    """

    def __init__(self, node: Node, procs: Collection[Uid], end: End) -> None:
        self._node = node
        self._procs = procs
        self._end = end
        self._wanted: set[Uid] = set()
        self._orders: list[_Replacing] = []
        node.on(ReplaceProcs, self._on_order)

    def _on_order(self, order: ReplaceProcs) -> None:
        present = [uid for uid in order.uids if uid in self._procs]
        waiting = _Replacing(order, set(present), sorted(set(order.uids) - set(present)))
        self._orders.append(waiting)
        self._end(present, order)
        self._wanted.update(present)
        self._settle()

    def is_wanted(self, uid: Uid) -> bool:
        """Return whether a new proc must take the place of a proc that has ended. After this call
        the answer is false, so that one end is replaced once.
        """
        if uid not in self._wanted:
            return False
        self._wanted.discard(uid)
        return True

    def cancel(self, uids: Sequence[Uid]) -> None:
        """Cancel the replacement of these procs, which must end for good."""
        for uid in self._wanted.intersection(uids):
            self._wanted.discard(uid)

    def is_up(self, uid: Uid) -> None:
        for order in self._orders:
            if uid not in self._wanted:
                order.missing.discard(uid)
        self._settle()

    def is_lost(self, uid: Uid, reason: str) -> None:
        """Handle that a new proc has ended before it was up, or could not be made."""
        for order in self._orders:
            if uid in order.missing:
                order.missing.discard(uid)
                order.lost.append(f"{uid}: {reason}")
        self._settle()

    def _settle(self) -> None:
        done = [order for order in self._orders if not order.missing]
        self._orders = [order for order in self._orders if order.missing]
        for order in done:
            error = f"not replaced: {'; '.join(order.lost)}" if order.lost else ""
            self._node.answer(order.message, error=error)


class _Replacing(NamedTuple):
    """An order to replace procs.

    ``missing`` are the procs that are not up yet; ``lost`` says why others will not come up.
    """

    message: ReplaceProcs
    missing: set[Uid]
    lost: list[str]
