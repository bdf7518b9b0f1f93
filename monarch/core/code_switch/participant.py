"""A participant of a code switch is an owner or a proc. It carries out each order itself, and
passes it to the procs that it spawned, so that the order goes down the ownership tree. See
``table``.

A participant's own actors reach a fence first, and then its procs: an actor that calls them within
an endpoint needs them until it is done. Procs that are spawned meanwhile must prepare before they
get the fence; once all have reached it, no proc may be spawned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from monarch.core.code_switch.barrier import SwitchBarrier, Telling
from monarch.core.code_switch.effects import (
    AnswerOrder,
    AskProcs,
    Do,
    Effect,
    Effects,
    Reason,
    TellProcs,
    Work,
    answer_to,
)
from monarch.core.code_switch.round import Round
from monarch.core.code_switch.table import (
    PARTICIPANT,
    IllegalEvent,
    ParticipantState,
    SwitchEvent,
    Vote,
    next_of,
)
from monarch.wire.message import Order, SwitchOrder

_PREPARE_SECONDS = 300.0
_PATCH_SECONDS = 120.0
_REVERT_SECONDS = 15.0
_TELL_SECONDS = (3.0, 10.0, 30.0)

_NOT_FOR_STRANGERS = (SwitchOrder.LIFT, SwitchOrder.RESUME, SwitchOrder.GO, SwitchOrder.REVERT)
"""Where the switch is over, or is another coordinator's, there is nothing to do for these."""


class Participant:
    """Follows the orders of one ``coordinator`` at a time.

    ``members`` returns the procs that switch with this process at the moment of the call. If
    ``is_root``, the participant reverts a switch whose author dies. ``uid`` is this process's own,
    because messages to its own actors wait at the fence too.

    Events are methods; each returns the effects to carry out, in order. An effect that asks for
    work or for an answer has a ``number``, which comes back with the outcome; outcomes with an old
    number are ignored. ``wakes_at`` is the time to call ``tick``.
    """

    def __init__(
        self, members: Callable[[], Sequence[str]], *, is_root: bool, uid: str = ""
    ) -> None:
        self.state = ParticipantState.IDLE
        #: The process whose orders are obeyed; "" before the first switch.
        self.coordinator = ""
        #: The generation of the last switch that was begun.
        self.generation = 0
        #: The highest attempt whose fence was lifted in this switch; 0 for none.
        self.num_lifted = 0
        #: The procs that new ones replace when the switch is decided.
        self.replaced: set[str] = set()
        #: The last fence of this switch; None before the first.
        self.fence: SwitchBarrier | None = None
        #: Our own uid.
        self._uid = uid
        self._members = members
        self._is_root = is_root
        #: The last number that was given to a piece of work or to a question.
        self._number = 0
        #: The procs that were asked to prepare.
        self._prepared: set[str] = set()
        #: The procs that have not answered whether they can prepare, by number.
        self._preparing: dict[int, str] = {}
        #: Whether a proc that was spawned meanwhile cannot take the new code.
        self._is_refused = False
        #: The round of votes that is not over; None if no order waits for votes.
        self._round: Round | None = None
        #: The token of an order to lift that waits until all have passed, and its deadline.
        self._lifting: tuple[int, float] | None = None
        #: After how many seconds people are told what a switch waits for.
        self.tell_seconds: Sequence[float] = _TELL_SECONDS
        self._telling = Telling(self.tell_seconds)

    @property
    def is_idle(self) -> bool:
        return self.state is ParticipantState.IDLE

    def accepts(self, sender: str) -> bool:
        """Return whether a ``PREPARE`` of this sender would be obeyed."""
        is_again = sender == self.coordinator and self.state is not ParticipantState.REVERTING
        return self.is_idle or is_again

    def on(
        self, order: Order, sender: str, token: int, now: float, leaving: Iterable[str] = ()
    ) -> Effects:
        """Handle an order of ``sender``. The answer gets the number ``token``; 0: the order needs
        no answer.

        Raises ``IllegalEvent`` if the order is too late, or if its sender may not give it.
        ``leaving`` are the procs on the hosts that are left behind.
        """
        kind = order.kind
        if kind is SwitchOrder.PREPARE:
            return self._prepare(order, sender, token, now)
        is_known = self._knows(sender, order.generation)
        if kind is SwitchOrder.FENCE and is_known and order.attempt <= self.num_lifted:
            return answer_to(token)  # The order to lift it has overtaken the fence.
        if kind is SwitchOrder.LIFT and is_known:
            return self._lift(order, token, now)
        if not is_known and kind in _NOT_FOR_STRANGERS:
            return answer_to(token)
        if not is_known:
            raise IllegalEvent(
                f"{kind.value!r} of generation {order.generation} by {sender!r}, in the middle of "
                f"{self.generation} by {self.coordinator!r} ({self.state.value})"
            )
        if kind is SwitchOrder.REVERT:
            return self._revert(order, token, now)
        self._go_to(kind)
        if kind is SwitchOrder.SWITCH:
            self.coordinator = self._uid  # From here on we order alone.
            return answer_to(token)
        if kind is SwitchOrder.FENCE:
            return self._raise_fence(order, token, now)
        if kind is SwitchOrder.HALT:
            return self._halt(order, token, now)
        if kind is SwitchOrder.RESUME:
            resume = self._tell(SwitchOrder.RESUME, self._fenced())
            return [*self._drop_round(), resume, Do(0, Work.RESUME), *answer_to(token)]
        if kind is SwitchOrder.PATCH:
            return self._patch(order, token, now, [*leaving])
        return self._go(token)

    def _prepare(self, order: Order, sender: str, token: int, now: float) -> Effects:
        """Start a switch for ``sender``, unless another coordinator's switch is in progress here.

        An earlier switch of the same coordinator is dropped.
        """
        effects: list[Effect] = []
        unfinished = 0
        if not self.is_idle:
            if not self.accepts(sender):
                return [AnswerOrder(token, [(Reason.OTHERS, self.coordinator)])]
            unfinished = self.generation
            effects += [*self._drop_orders(), Do(0, Work.LIFT_FENCE)]
        self._go_to(SwitchOrder.PREPARE)
        self._number += 1
        self.coordinator, self.generation, self.num_lifted = sender, order.generation, 0
        self.replaced, self._prepared, self._is_refused = set(), set(), False
        self._preparing.clear()
        self.fence, self._telling = None, Telling(self.tell_seconds)
        votes = self._begin(SwitchOrder.PREPARE, token, now, _PREPARE_SECONDS)
        effects += self._prepare_new(token)
        votes.own_work.add(self._next())
        return [*effects, Do(self._number, Work.PREPARE, token, unfinished)]

    def _raise_fence(self, order: Order, token: int, now: float) -> Effects:
        """Raise a fence for all members.

        If the order has no ``seconds``, the fence is part of another process's fence. Then the
        fence is raised in this process at once. The order is answered when all members have passed
        the fence, even if it was lifted meanwhile.
        """
        self._telling.begin(now)
        fence = self.fence = SwitchBarrier(order.attempt, token, order.seconds, now)
        if order.seconds is None:
            return [fence.raise_here(self._next(), self._uid), *self._advance()]
        return self._advance()

    def _lift(self, order: Order, token: int, now: float) -> Effects:
        """Lift a fence: all processes continue, and a process that reaches it later passes."""
        fence = self.fence
        self.num_lifted = max(self.num_lifted, order.attempt)
        if fence is None or fence.attempt != order.attempt:
            return answer_to(token)
        effects: list[Effect] = []
        if not fence.is_lifted:
            self._go_to(SwitchOrder.LIFT)
            fence.is_lifted = True
            lift = self._tell(SwitchOrder.LIFT, self._fenced())
            effects = [*self._drop_round(), lift, Do(0, Work.LIFT_FENCE)]
            if fence.seconds is not None and fence.token:
                effects += fence.answer(Reason.PROCS)
        if not order.seconds or fence.is_passed:
            return [*effects, *answer_to(token), *self._pass(fence)]
        self._lifting = token, now + order.seconds
        return effects

    def _halt(self, order: Order, token: int, now: float) -> Effects:
        """Halt all actors between two messages."""
        seconds = order.seconds or 0.0
        votes = self._begin(SwitchOrder.HALT, token, now, seconds + _PREPARE_SECONDS)
        votes.halts_at = now + seconds
        effects = self._ask(votes.asked, SwitchOrder.HALT, self._fenced(), token, seconds)
        votes.own_work.add(self._next())
        return [*effects, Do(self._number, Work.HALT, token)]

    def _patch(self, order: Order, token: int, now: float, leaving: Sequence[str]) -> Effects:
        """Change the code. Procs that are ``leaving`` revert first, because their hosts could not
        show the new files.
        """
        votes = self._begin(SwitchOrder.PATCH, token, now, _PATCH_SECONDS)
        self.replaced.difference_update(leaving)
        effects = self._ask(votes.leaving, SwitchOrder.REVERT, leaving, token)
        staying = [proc for proc in self._fenced() if proc not in leaving]
        effects += self._ask(votes.asked, SwitchOrder.PATCH, staying, token, behind=order.behind)
        votes.own_work.add(self._next())
        return effects if votes.leaving else [*effects, Do(self._number, Work.PATCH, token)]

    def _go(self, token: int) -> Effects:
        """Handle that the switch is decided: run the new code. A proc that will be replaced by a
        new proc ends in an orderly way, with its old code.
        """
        fenced = self._fenced()
        staying = [proc for proc in fenced if proc not in self.replaced]
        going = [proc for proc in fenced if proc in self.replaced]
        effects = [self._tell(SwitchOrder.GO, staying), self._tell(SwitchOrder.RESUME, going)]
        return [
            *(effect for effect in effects if effect.procs),
            *self._drop_orders(),
            Do(0, Work.END),
            Do(0, Work.GO, token),
        ]

    def _revert(self, order: Order, token: int, now: float) -> Effects:
        """Go back to the code from before the switch."""
        effects = [*self._drop_orders()]
        self._go_to(SwitchOrder.REVERT)
        votes = self._begin(SwitchOrder.REVERT, token, now, _REVERT_SECONDS)
        effects += self._ask(votes.asked, SwitchOrder.REVERT, self._members(), token)
        votes.own_work.add(self._next())
        return [*effects, Do(self._number, Work.REVERT, token, order.generation)]

    def did(self, number: int, vote: Vote, now: float) -> Effects:
        """Handle the end of a piece of this process's own work, with its vote."""
        self._check(number)
        votes, fence = self._round, self.fence
        if fence is not None and number == fence.own_number and not fence.has_own_come:
            fence.has_own_come = True
            held = fence.hold(now) if fence.came(self._uid) else []
            return [*held, *self._advance(), *self._pass(fence)]
        if fence is not None and number == fence.gate:
            fence.is_gate_closed = True
            return self._advance()
        if votes is None or number not in votes.own_work:
            return []
        return [*votes.did(number, vote), *self._check_round()]

    def voted(self, number: int, vote: Vote, now: float, *, gives_way: bool = False) -> Effects:
        """Handle the answer of a proc, or its end.

        ``gives_way``: the proc will be replaced by a new one when the switch is done.
        """
        self._check(number)
        votes, fence = self._round, self.fence
        if number in self._preparing:
            proc = self._preparing.pop(number)
            self._is_refused |= vote is Vote.NO
            if gives_way:
                self.replaced.add(proc)
            if votes is not None and votes.order is SwitchOrder.PREPARE:
                votes.add(vote)
                return self._check_round()
            return self._advance()
        if fence is not None and number in fence.asked:
            proc = fence.asked.pop(number)
            self._is_refused |= vote is Vote.NO
            held = fence.hold(now) if fence.came(proc) else []
            return [*held, *self._advance(), *self._pass(fence)]
        if votes is None:
            return []
        effects = votes.voted(number, vote, gives_way=gives_way, replaced=self.replaced)
        return [*effects, *self._check_round()]

    def held(self, attempt: int, now: float) -> Effects:
        """Note that a fence delays a sender of messages.

        ``attempt`` is 0 for the fence in this process. Otherwise a proc has reported it, and it is
        the number of the fence there.
        """
        fence = self.fence
        return fence.hold(now) if fence and attempt in (0, fence.attempt) else []

    def author_gone(self, uid: str, now: float) -> Effects:
        """Handle the end of an author.

        If it is the coordinator of the present switch, a root reverts the switch, and any process
        reverts an upgrade. Other procs do nothing, because they end with their owner.
        """
        if self.is_idle or self.coordinator != uid or not uid:
            return []
        if self.state is ParticipantState.REVERTING or not (self._is_root or self.generation < 0):
            return []
        return self._revert(Order(SwitchOrder.REVERT, self.generation), 0, now)

    def tick(self, now: float) -> Effects:
        """Handle everything that is due at ``now``."""
        effects: list[Effect] = []
        fence, votes = self._awaited(), self._round
        if fence is not None:
            effects += [*fence.tick(now), *self._telling.tick(now)]
            if fence.gives_up_at is not None and now >= fence.gives_up_at:
                fence.is_late = True
                effects += fence.answer(Reason.NEW_PROC if self._preparing else fence.why_late)
        if self._lifting is not None and now >= self._lifting[1]:
            effects += self._end_lift(Reason.NOT_PASSED)
        if votes is not None:
            effects += [*votes.tick(now, self._preparing), *self._check_round()]
        return effects

    def wakes_at(self) -> float | None:
        """Return the latest time for the next call of ``tick``; ``None`` if nothing is due."""
        fence, votes = self._awaited(), self._round
        times = [] if fence is None else [fence.wakes_at, self._telling.wakes_at]
        times += [] if self._lifting is None else [self._lifting[1]]
        times += [] if votes is None else [votes.wakes_at]
        return min(times, default=None)

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _check(self, number: int) -> None:
        if not 0 < number <= self._number:
            raise IllegalEvent(f"nothing was asked under the number {number}")

    def _knows(self, sender: str, generation: int) -> bool:
        """Return whether a switch is in progress here, ``sender`` is its coordinator, and it is the
        switch to ``generation``.
        """
        return not self.is_idle and (sender, generation) == (self.coordinator, self.generation)

    def _go_to(self, event: SwitchOrder | SwitchEvent) -> None:
        self.state = next_of(PARTICIPANT, self.state, event)

    def _begin(self, order: SwitchOrder, token: int, now: float, seconds: float) -> Round:
        self._round = Round(
            order=order, token=token, ends_at=now + seconds, seconds=seconds, next_number=self._next
        )
        return self._round

    def _fenced(self) -> list[str]:
        """Return the procs to which the last fence was sent."""
        if self.fence is None:
            return []
        return [proc for proc in self._members() if proc in self.fence.fenced]

    def _ask(
        self,
        into: dict[int, str],
        kind: SwitchOrder,
        procs: Sequence[str],
        token: int,
        seconds: float | None = 0.0,
        behind: tuple[str, ...] = (),
    ) -> list[Effect]:
        asked = [(self._next(), proc) for proc in procs]
        into.update(asked)
        order = self._order(kind, seconds=seconds, behind=behind)
        return [AskProcs(asked, order, token)] if asked else []

    def _tell(self, kind: SwitchOrder, procs: Sequence[str]) -> TellProcs:
        return TellProcs(procs, self._order(kind))

    def _order(
        self, kind: SwitchOrder, seconds: float | None = 0.0, behind: tuple[str, ...] = ()
    ) -> Order:
        """Return an order of the present switch, to be sent to procs."""
        attempt = self.fence.attempt if self.fence is not None else 0
        return Order(kind, self.generation, attempt, seconds, behind)

    def _prepare_new(self, token: int) -> list[Effect]:
        """Ask the procs that have started since the last order to prepare, because they were not
        asked before.
        """
        new = [proc for proc in self._members() if proc not in self._prepared]
        self._prepared.update(new)
        return self._ask(self._preparing, SwitchOrder.PREPARE, new, token)

    def _advance(self) -> list[Effect]:
        """Do the next step of the fence that is under way.

        The new procs prepare, the actors of this process reach the fence, all procs reach it, and
        then spawns are forbidden. In the end, the order is answered.
        """
        fence = self._awaited()
        if fence is None:
            return []
        effects: list[Effect] = []
        if not fence.own_number or fence.has_own_come:
            effects += self._prepare_new(fence.token)
        if self._is_refused:
            fence.is_late = True
            return [*effects, *fence.answer(Reason.REFUSED)]
        if self._preparing:
            return effects
        if not fence.own_number:
            return [*effects, fence.raise_here(self._next(), self._uid)]
        if not fence.has_own_come:
            return effects
        late = [proc for proc in self._members() if proc not in fence.fenced]
        if late:
            fence.fenced.update(late)
            return [*effects, *self._ask(fence.asked, SwitchOrder.FENCE, late, fence.token, None)]
        if fence.asked:
            return effects
        if not fence.is_gate_closed:
            return [*effects, *fence.close_gate(self._next)]
        self._go_to(SwitchEvent.ALL)
        return [*effects, *fence.answer()]

    def _awaited(self) -> SwitchBarrier | None:
        """Return the present fence if some processes have not passed it yet; else None."""
        fence = self.fence if self.state is ParticipantState.FENCING else None
        return fence if fence is not None and fence.is_awaited else None

    def _pass(self, fence: SwitchBarrier) -> list[Effect]:
        """If ``fence`` was lifted and all processes have passed it, answer the orders that wait for
        that; otherwise return no effects.
        """
        if not (fence.is_lifted and fence.is_passed):
            return []
        return [*fence.answer(), *self._end_lift()]

    def _end_lift(self, *reasons: Reason) -> list[Effect]:
        lifting, self._lifting = self._lifting, None
        return [] if lifting is None else answer_to(lifting[0], *reasons)

    def _check_round(self) -> list[Effect]:
        votes = self._round
        if votes is None or votes.is_open:
            return []
        if votes.order is SwitchOrder.PREPARE and self._preparing:
            return []
        self._round = None
        if votes.vote is Vote.YES or votes.order in (SwitchOrder.REVERT, SwitchOrder.PREPARE):
            self._go_to(SwitchEvent.ALL)
        return votes.answer()

    def _drop_orders(self) -> list[Effect]:
        """Answer all orders that are still open, so that their senders stop waiting."""
        effects, fence = self._drop_round(), self.fence
        if fence is not None:
            effects += fence.answer()
            fence.is_lifted = True
        return [*effects, *self._end_lift()]

    def _drop_round(self) -> list[Effect]:
        votes, self._round = self._round, None
        return [] if votes is None else answer_to(votes.token)
