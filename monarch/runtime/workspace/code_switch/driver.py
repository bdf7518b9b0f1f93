"""A process's part in a code switch: the orders that it is given, and what happens meanwhile.

Each is fed to a ``Participant``, one after the other, from any thread. ``actions``
carries out what that decides.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from monarch.core.code_switch.effects import AnswerOrder, Effect, TakeOver
from monarch.core.code_switch.table import IllegalEvent, ParticipantState, author_of
from monarch.net.loop import Timer
from monarch.runtime.context import running
from monarch.runtime.procs.proc_agent import ProcAgent
from monarch.runtime.promise import Promise
from monarch.runtime.workspace.code_switch.actions import Actions, Event, SwitchUnderWay
from monarch.runtime.workspace.code_switch.audits import Audits
from monarch.runtime.workspace.code_switch.open_order import Desk, OpenOrder
from monarch.runtime.workspace.code_switch.succeeding import Succeeding
from monarch.runtime.workspace.local_reload import LocalReload
from monarch.runtime.workspace.reload_plan import AuditOutcome, ReloadOutcome, ReloadPlan
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.host_code import HostCode
from monarch.wire.message import BusyActor, LeftBehind, ProcDown

_log = logging.getLogger("monarch.reload")


class CodeSwitch:
    """The owner's side of a push: see ``Owner``. One at a time; other pushes have to wait.

    ``on_over`` hears of each plan that has been switched to. ``on_waiting`` is told what the change
    waits for, when that takes seconds, ``on_replacing`` that a plan is about to replace so many
    procs. ``asker`` of an order is the process that pushes, if it is
    another.
    """

    def __init__(
        self, agent: ProcAgent, here: LocalReload, on_over: Callable[[ReloadPlan], None]
    ) -> None:
        self.here = here
        # Held by the thread that changes the code of what we own from this process, from begin to
        # end.
        self.alone = threading.Lock()
        self.on_waiting: Callable[[str], None] = lambda text: _log.warning("%s", text)
        self.on_replacing: Callable[[ReloadPlan, int], None] = lambda plan, num_procs: None
        self._agent = agent
        self.node = agent.node
        self.audits = Audits(agent, here)

        def over(plan: ReloadPlan) -> None:
            on_over(plan)
            if plan.mode != "off":
                self.audits.begin(plan)

        self._actions = actions = Actions(
            agent,
            here,
            feed=self._feed,
            tell=lambda text: self.on_waiting(text),
            on_replacing=lambda plan, num_procs: self.on_replacing(plan, num_procs),
            on_over=over,
        )
        self.machine = self._actions.machine
        self.succeeding = Succeeding(
            self.node,
            self.machine,
            plan=lambda: None if actions.switch is None else actions.switch.plan,
            own=lambda name: _InNameOf(self, name),
        )
        self._lock = threading.RLock()
        self._events: deque[Event] = deque()
        self._is_draining = False
        self._timer: Timer | None = None
        self._last_token = 0
        self._pushing: list[Uid] = []
        self.node.peer_down.on_down.append(self._on_peer_down)

    @property
    def is_idle(self) -> bool:
        """Whether no switch is under way here."""
        return self.machine.state is ParticipantState.IDLE

    @property
    def num_lifted(self) -> int:
        """The last fence of the switch that was lifted."""
        return self.machine.num_lifted

    @contextmanager
    def pushing(self) -> Iterator[None]:
        """Within the block, other processes do not wait for the actor that this is the context of:
        it waits for a change."""
        actor = running.get()
        uid = "" if actor is None else actor.record.uid
        if uid:
            with self._lock:
                self._pushing.append(uid)
                if self._actions.switch is not None:
                    self._actions.switch.exempt |= {uid}
            # A fence that is up already would wait for it, while it waits for the push that came
            # before it.
            self._agent.fences.exempt(uid)
        try:
            yield
        finally:
            self._actions.busy.forget()
            if uid:
                with self._lock:
                    self._pushing.remove(uid)

    # As an owner: each order is given, its work is done on the calling thread, and its answer
    # waited for.

    def prepare(self, plan: ReloadPlan, asker: Uid = "") -> ReloadOutcome:
        return self._wait(lambda order: self.ordered_to_prepare(plan, asker, order))

    def prepare_on(
        self,
        plan: ReloadPlan,
        targets: Sequence[ProcAddress],
        here: Callable[[ReloadPlan], ReloadOutcome],
    ) -> ReloadOutcome:
        """Get ``plan`` ready in these procs, and here, in another way than theirs."""
        switch = SwitchUnderWay(plan, asker="", targets=targets, here=here)
        return self._wait(lambda order: self._prepare(switch, order))

    def fence(
        self,
        generation: int,
        attempt: int,
        seconds: float,
        *,
        is_held: bool = False,
        asker: Uid = "",
    ) -> ReloadOutcome:
        return self._wait(
            lambda order: self.ordered_to_fence(
                generation, attempt, seconds, asker, order, is_held=is_held
            )
        )

    def lift(self, generation: int, attempt: int, seconds: float, asker: Uid = "") -> ReloadOutcome:
        return self._wait(
            lambda order: self.ordered_to_lift(generation, attempt, seconds, asker, order)
        )

    def halt(self, generation: int, seconds: float, asker: Uid = "") -> ReloadOutcome:
        return self._wait(lambda order: self.ordered_to_halt(generation, seconds, asker, order))

    def patch(self, generation: int, behind: Sequence[Uid] = (), asker: Uid = "") -> ReloadOutcome:
        return self._wait(lambda order: self.ordered_to_patch(generation, behind, asker, order))

    def go(self, generation: int, asker: Uid = "") -> ReloadOutcome:
        return self._wait(lambda order: self.ordered_to_go(generation, asker, order))

    def inquire(self, generation: int, asker: Uid = "") -> ReloadOutcome:
        return self._wait(lambda order: self.asked_how_far(generation, asker, order))

    def audit(self, generation: int) -> Promise[AuditOutcome]:
        return self.audits.of(generation)

    def revert(self, generation: int, asker: Uid = "") -> None:
        self._wait(lambda order: self.ordered_to_revert(generation, asker, order))

    def _wait(self, give: Callable[[OpenOrder], None]) -> ReloadOutcome:
        desk = Desk()
        give(OpenOrder(desk.put, desk))
        return desk.wait()

    def ordered_to_prepare(self, plan: ReloadPlan, asker: Uid, order: OpenOrder) -> None:
        # An upgrade goes to the procs of one mesh, and no further down.
        targets = None if plan.upgrade is None else ()
        switch = SwitchUnderWay(plan, asker=asker, targets=targets, here=self.here.prepare)
        self._prepare(switch, order)

    def _prepare(self, switch: SwitchUnderWay, order: OpenOrder) -> None:
        plan, machine = switch.plan, self.machine

        def event(token: int, now: float) -> Sequence[Effect]:
            if machine.accepts(switch.asker):
                self._actions.switch = switch
                if plan.upgrade is None:
                    self._look_ahead(plan)
            return machine.prepare(token, switch.asker, plan.generation, now)

        self._obey(event, order)

    def ordered_to_fence(
        self,
        generation: int,
        attempt: int,
        seconds: float | None,
        asker: Uid,
        order: OpenOrder,
        *,
        is_held: bool = False,
    ) -> None:
        """``seconds`` is ``None`` for a fence of our owner's, in its own order."""

        def event(token: int, now: float) -> Sequence[Effect]:
            if self._actions.switch is not None:
                self._actions.switch.exempt = frozenset(self._pushing)
            return self.machine.raise_fence(
                token, asker, generation, attempt, now, seconds, is_held=is_held
            )

        self._obey(event, order)

    def ordered_to_lift(
        self, generation: int, attempt: int, seconds: float, asker: Uid, order: OpenOrder
    ) -> None:
        self._obey(
            lambda token, now: self.machine.lift(token, asker, generation, attempt, seconds, now),
            order,
        )

    def ordered_to_halt(
        self, generation: int, seconds: float, asker: Uid, order: OpenOrder
    ) -> None:
        self._obey(
            lambda token, now: self.machine.halt(token, asker, generation, seconds, now), order
        )

    def ordered_to_resume(self, generation: int, asker: Uid) -> None:
        self._obey(
            lambda token, now: [*self.machine.resume(asker, generation), AnswerOrder(token)],
            OpenOrder(lambda outcome: None),
        )

    def ordered_to_patch(
        self, generation: int, behind: Sequence[Uid], asker: Uid, order: OpenOrder
    ) -> None:
        """``behind``: hosts that could not show their files; the procs there go back."""

        def event(token: int, now: float) -> Sequence[Effect]:
            actions = self._actions
            leaving = actions.members_on(behind)
            effects = self.machine.patch(token, asker, generation, now, leaving)
            if actions.switch is not None:
                actions.switch.behind = tuple(behind)
                actions.switch.plan.behind += behind
            actions.fencing.release(leaving)
            return effects

        self._obey(event, order)

    def ordered_to_go(self, generation: int, asker: Uid, order: OpenOrder) -> None:
        self._obey(lambda token, now: self.machine.go(token, asker, generation), order)

    def asked_how_far(self, generation: int, asker: Uid, order: OpenOrder) -> None:
        self._obey(lambda token, now: self.machine.inquire(token, asker, generation), order)

    def ordered_to_revert(self, generation: int, asker: Uid, order: OpenOrder) -> None:
        def event(token: int, now: float) -> Sequence[Effect]:
            if self.machine.state is ParticipantState.IDLE:
                # The generation that was switched to is taken back. An upgrade was for the procs of
                # one mesh.
                self._actions.switch = SwitchUnderWay(
                    ReloadPlan(generation, "", "off"),
                    asker=asker,
                    targets=None if generation > 0 else (),
                    here=self.here.prepare,
                )
            return self.machine.revert(token, asker, generation, now)

        self._obey(event, order)

    def left_behind(self, codes: tuple[HostCode, ...]) -> None:
        """A push could not come here: no call from here, or from what we own, may meet both."""
        self._agent.code_states.inherit(codes)
        for proc in self._agent.owned_procs():
            self.node.send(proc, LeftBehind(codes))

    def waits(self, generation: int, busy: Sequence[BusyActor], seconds: float) -> None:
        """A process below, or one of another client that we push to, waits for these."""
        switch = self._actions.switch
        if switch is not None and switch.plan.generation == generation:
            self._actions.tell(switch, busy, seconds)
        elif self._agent.is_root:
            self._actions.busy.add(generation, busy, seconds)

    def held_up(self, generation: int, attempt: int) -> None:
        """A process waits behind the fence of a process below."""
        if generation == self.machine.generation:
            self._feed(lambda now: self.machine.held(attempt, now))

    def author_gone(self, uid: Uid) -> None:
        """The author of the push has died half-way: its switch is finished here, or taken back."""
        if author_of(self.machine.coordinator) == uid:
            self._feed(lambda now: self.machine.author_gone(uid, now))

    def _on_peer_down(self, uid: Uid, down: ProcDown) -> None:
        self.author_gone(uid)

    def _look_ahead(self, plan: ReloadPlan) -> None:
        """Calls that are sent from here on may arrive when the plan has been switched to."""
        states = self._agent.code_states
        if self._agent.is_root:
            plan.others = states.left_by(plan.family, plan.covers)
        states.expect(plan.code_change(self._agent.generation))

    def _obey(self, event: Callable[[int, float], Sequence[Effect]], order: OpenOrder) -> None:
        """Feed an order, which is answered some time. One that is illegal here comes too late, or
        from a process that may not give it: it is dropped, and its sender is told so."""
        with self._lock:
            self._last_token += 1
            token, orders = self._last_token, self._actions.orders
            orders[token] = order

            def fed(now: float) -> Sequence[Effect]:
                try:
                    return event(token, now)
                except IllegalEvent as error:
                    _log.debug("an order of a switch was dropped: %s", error)
                    if token in orders:
                        order.refuse(self.here.label, "nothing was prepared here")
                    return [AnswerOrder(token)]

            self._feed(fed)

    def _feed(self, event: Event) -> None:
        """Tell the machine of something, and do what it wants. From any thread.

        Events that happen while that is being done come after it.
        """
        with self._lock:
            self._events.append(event)
            if self._is_draining:
                return
            self._is_draining = True
            try:
                while self._events:
                    for effect in self._events.popleft()(self.node.loop.time()):
                        if isinstance(effect, TakeOver):
                            self.succeeding.take_over(effect.author)
                        else:
                            self._actions.carry_out(effect)
            finally:
                self._is_draining = False
            self._set_timer()
        self.succeeding.look()

    def _set_timer(self) -> None:
        at = self.machine.wakes_at()
        if self._timer is not None and (at is None or self._timer.when > at):
            self._timer.cancel()
            self._timer = None
        if at is not None and at != math.inf and self._timer is None:
            self._timer = self.node.loop.call_later(at - self.node.loop.time(), self._tick)

    def _tick(self) -> None:
        with self._lock:
            self._timer = None
            self._feed(self.machine.tick)


class _InNameOf:
    """Our own part, where we lead: orders in the name of an author that has died."""

    def __init__(self, switch: CodeSwitch, author: Uid) -> None:
        self._switch = switch
        self._author = author

    def prepare(self, plan: ReloadPlan) -> ReloadOutcome:
        return self._switch.prepare(plan, self._author)

    def fence(
        self, generation: int, attempt: int, seconds: float, *, is_held: bool = False
    ) -> ReloadOutcome:
        return self._switch.fence(generation, attempt, seconds, is_held=is_held, asker=self._author)

    def lift(self, generation: int, attempt: int, seconds: float) -> ReloadOutcome:
        return self._switch.lift(generation, attempt, seconds, self._author)

    def halt(self, generation: int, seconds: float) -> ReloadOutcome:
        return self._switch.halt(generation, seconds, self._author)

    def patch(self, generation: int, behind: Sequence[Uid] = ()) -> ReloadOutcome:
        return self._switch.patch(generation, behind, self._author)

    def go(self, generation: int) -> ReloadOutcome:
        return self._switch.go(generation, self._author)

    def inquire(self, generation: int) -> ReloadOutcome:
        return self._switch.inquire(generation, self._author)

    def audit(self, generation: int) -> Promise[AuditOutcome]:
        return self._switch.audit(generation)

    def revert(self, generation: int) -> None:
        self._switch.revert(generation, self._author)
