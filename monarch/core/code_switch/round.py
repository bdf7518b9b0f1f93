"""One round of votes: a participant and its procs carry out an order and vote on it."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

from monarch.core.code_switch.effects import AnswerOrder, Do, Effect, Reason, Work
from monarch.core.code_switch.table import Vote
from monarch.wire.message import SwitchOrder


class Round(msgspec.Struct, kw_only=True, eq=False):
    """The votes of a participant and its procs on one order.

    The order is answered when all votes have arrived.
    """

    order: SwitchOrder
    #: Identifies the order that is answered; 0 if it needs no answer.
    token: int
    #: When a proc that has not voted counts as a no.
    ends_at: float
    #: How long the round may last, for the text about silent procs.
    seconds: float
    #: Returns a number for further work.
    next_number: Callable[[], int]
    #: The numbers of the participant's own work that is not done.
    own_work: set[int] = msgspec.field(default_factory=set)
    #: The procs that have not voted, by number.
    asked: dict[int, str] = msgspec.field(default_factory=dict)
    #: The procs that must revert before the others patch, by number.
    leaving: dict[int, str] = msgspec.field(default_factory=dict)
    #: When an actor that has not halted is late; None if no halt is under way.
    halts_at: float | None = None
    #: The combined vote so far.
    vote: Vote = Vote.YES
    #: Why not all voted yes, each reason with a proc, or "" for this process.
    reasons: list[tuple[Reason, str]] = msgspec.field(default_factory=list)

    @property
    def is_open(self) -> bool:
        return bool(self.own_work or self.asked or self.leaving)

    @property
    def wakes_at(self) -> float:
        """Return the time of the next call of ``tick``."""
        return self.ends_at if self.halts_at is None else self.halts_at

    def answer(self) -> list[Effect]:
        return [AnswerOrder(self.token, self.reasons, self.seconds)] if self.token else []

    def add(self, vote: Vote) -> None:
        """Count a vote. The combined vote is ``NO`` if one vote was ``NO``, else ``LATE`` if one
        was ``LATE``, else ``YES``.
        """
        if vote is Vote.NO or (vote is Vote.LATE and self.vote is Vote.YES):
            self.vote = vote

    def did(self, number: int, vote: Vote) -> list[Effect]:
        """Handle the end of a piece of own work, with its vote."""
        self.own_work.discard(number)
        self.add(vote)
        if self.order is SwitchOrder.HALT and self.halts_at is not None:
            self.halts_at = None
            further = self.next_number()
            self.own_work.add(further)
            return [Do(further, Work.CATCH_UP, self.token)]
        return [Do(0, Work.END)] if self.order is SwitchOrder.REVERT else []

    def voted(
        self, number: int, vote: Vote, *, gives_way: bool, replaced: set[str]
    ) -> list[Effect]:
        """Handle the vote or the death of a proc.

        ``replaced`` are the procs that new procs will replace. If a proc gives way while it halts
        (``gives_way``), it is added to them.
        """
        if number in self.leaving:
            self.leaving.pop(number)
            return [] if self.leaving else [self._patch()]
        if number in self.asked:
            proc = self.asked.pop(number)
            self.add(vote)
            if gives_way and self.order is SwitchOrder.HALT and proc not in replaced:
                # It has taken messages from behind the fence, which are for the new proc.
                replaced.add(proc)
                self.add(Vote.LATE)
                self.reasons.append((Reason.GIVES_WAY, proc))
        return []

    def tick(self, now: float, preparing: dict[int, str]) -> list[Effect]:
        """Handle everything that is due at ``now``. ``preparing`` are the procs that must still
        prepare."""
        if self.halts_at is not None:
            if now >= self.halts_at:
                self.halts_at = None
                self.own_work.clear()
                self.add(Vote.LATE)
                self.reasons.append((Reason.BUSY, ""))
            return []
        return self._end(preparing) if now >= self.ends_at else []

    def _end(self, preparing: dict[int, str]) -> list[Effect]:
        """Stop waiting for the procs that have not answered. They count as votes of ``NO``, unless
        the order is to revert.
        """
        silent = [*self.asked.values()]
        if self.order is SwitchOrder.PREPARE:
            silent += preparing.values()
            preparing.clear()
        self.asked.clear()
        effects: list[Effect] = []
        if self.leaving:
            self.leaving.clear()
            effects.append(self._patch())
        if silent and self.order is not SwitchOrder.REVERT:
            self.add(Vote.NO)
            self.reasons += [(Reason.SILENT, proc) for proc in silent]
        self.ends_at = math.inf  # Our own work always ends by itself.
        return effects

    def _patch(self) -> Effect:
        return Do(next(iter(self.own_work)), Work.PATCH, self.token)
