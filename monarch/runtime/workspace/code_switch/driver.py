"""A process's part in a code switch: it handles the orders that arrive, and all other events.

Each is passed to a ``Participant``, one after the other, from any thread. ``actions`` carries out
its decisions.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import msgspec

from monarch.core.code_switch.coordinator import FENCE_SECONDS
from monarch.core.code_switch.effects import AnswerOrder, Effect
from monarch.core.code_switch.table import IllegalEvent, ParticipantState
from monarch.errors import format_remote
from monarch.net.loop import Timer
from monarch.runtime.context import running
from monarch.runtime.procs.proc_agent import ProcAgent
from monarch.runtime.promise import Promise
from monarch.runtime.workspace.code_switch.actions import Actions, Event, SwitchUnderWay
from monarch.runtime.workspace.code_switch.audits import Audits
from monarch.runtime.workspace.code_switch.host_files import FilesHere, HostFiles
from monarch.runtime.workspace.code_switch.leading import CalledOff, Leading
from monarch.runtime.workspace.code_switch.open_order import Desk, OpenOrder, in_background
from monarch.runtime.workspace.local_reload import LocalReload
from monarch.runtime.workspace.reload_plan import (
    AuditOutcome,
    RefusedFile,
    ReloadOutcome,
    ReloadPlan,
    Switched,
)
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.codec import Envelope
from monarch.wire.message import HeldUp, LeftBehind, Order, SwitchOrder, Waiting

_log = logging.getLogger("monarch.reload")


class CodeSwitch:
    """A process's side of a push, and the ``Owner`` of its procs. One push at a time; others wait.

    ``on_over`` is called with the plan of each switch that was carried out. In methods, ``asker``
    is the process that pushes; "" if this process pushes.
    """

    def __init__(
        self, agent: ProcAgent, local_reload: LocalReload, on_over: Callable[[ReloadPlan], None]
    ) -> None:
        self.local_reload = local_reload
        #: Held by the thread of this process that pushes to what we own, from begin to end.
        self.alone = threading.Lock()
        #: Called with a text about the actors that the change waits for, if that takes seconds.
        self.on_waiting: Callable[[str], None] = lambda text: _log.warning("%s", text)
        #: Called with the plan and the number of procs that it will replace.
        self.on_replacing: Callable[[ReloadPlan, int], None] = lambda plan, num_procs: None
        #: How long the first fence may delay a sender.
        self.fence_seconds = FENCE_SECONDS
        self._agent = agent
        self.node = agent.node
        self.audits = Audits(
            agent.node, local_reload, lambda: self._num_at_work > 0 or not self.is_idle
        )
        #: How many pushes and switches this process runs now.
        self._num_at_work = 0
        #: The plan and the procs to search for old code when that number is 0.
        self._to_audit: tuple[ReloadPlan, list[ProcAddress]] | None = None

        def over(plan: ReloadPlan) -> None:
            on_over(plan)
            if plan.mode == "off":
                return
            # Only procs that have switched: a proc that starts later has no old code.
            procs = [
                proc
                for proc in agent.owned_procs()
                if proc.host_uid not in plan.behind and proc.uid not in self.machine.replaced
            ]
            if self._num_at_work:
                self._to_audit = plan, procs
            else:
                self.audits.begin(plan, procs)

        self._actions = Actions(
            agent,
            local_reload,
            feed=self._feed,
            tell=lambda text: self.on_waiting(text),
            on_replacing=lambda plan, num_procs: self.on_replacing(plan, num_procs),
            on_over=over,
        )
        self.machine = self._actions.machine
        #: The switch that this process drives for an author elsewhere; None if it drives none.
        self._leading: Leading | None = None
        #: The author of that switch, and the generation.
        self._led_for: tuple[Uid, int] | None = None
        #: The author's orders to stop that switch, which are answered at its end.
        self._stopping: list[OpenOrder] = []
        #: Guards all of this; held while an event is handled.
        self._lock = threading.RLock()
        #: Events that came while another one was handled.
        self._events: deque[Event] = deque()
        self._is_draining = False
        #: Calls ``tick`` when something is due in the state machine.
        self._timer: Timer | None = None
        self._last_token = 0
        #: The uids of actors of this process that push at this moment.
        self._pushing: list[Uid] = []
        self.node.peer_down.on_down.append(lambda uid, down: self.author_gone(uid))
        self.node.handle(Order, self._on_order, on_any_thread=True)
        self.node.handle(Waiting, self._on_waiting)
        self.node.handle(HeldUp, self._on_held_up)
        self.node.handle(LeftBehind, self._on_left_behind)

    @property
    def is_idle(self) -> bool:
        """Whether no switch is in progress here."""
        return self.machine.state is ParticipantState.IDLE

    @property
    def num_lifted(self) -> int:
        """The highest number of a fence that was lifted in the present switch; 0 if none was."""
        return self.machine.num_lifted

    @contextmanager
    def pushing(self) -> Iterator[None]:
        """Let no fence wait for the current actor during this block.

        The actor itself waits for a push, and a fence that waited for the actor would block the
        push.
        """
        actor = running.get()
        uid = "" if actor is None else actor.record.uid
        if uid:
            with self._lock:
                self._pushing.append(uid)
                if self._actions.switch is not None:
                    self._actions.switch.exempt |= {uid}
            # A fence that is already raised would wait for the actor, and the actor for the push of
            # that fence.
            self._agent.fences.exempt(uid)
        try:
            with self._at_work():
                yield
        finally:
            self._actions.busy.forget()
            if uid:
                with self._lock:
                    self._pushing.remove(uid)

    # As an owner. Work is done on the calling thread.

    @property
    def uid(self) -> Uid:
        return self.node.uid

    def prepare(self, plan: ReloadPlan) -> ReloadOutcome:
        return self._wait(lambda reply: self._ordered_to_prepare(plan, "", reply), Desk())

    def prepare_on(
        self,
        plan: ReloadPlan,
        targets: Sequence[ProcAddress],
        prepare_here: Callable[[ReloadPlan], ReloadOutcome],
    ) -> ReloadOutcome:
        """Prepare ``plan`` in the procs ``targets``, and in this process by ``prepare_here``.

        Returns the combined outcome.
        """
        switch = SwitchUnderWay(plan=plan, asker="", targets=targets, prepare_here=prepare_here)
        return self._wait(lambda reply: self._prepare(switch, reply), Desk())

    def switch(
        self, plan: ReloadPlan, own_files: FilesHere
    ) -> tuple[Switched, BaseException | None]:
        leading = Leading(
            lambda order, desk: self.ask(order, "", desk),
            plan,
            HostFiles(self.node, plan, self.uid, own_files=own_files),
            fence_seconds=self.fence_seconds,
        )
        return leading.run(), leading.error

    def call_off(self, generation: int) -> None:
        self.ask(Order(SwitchOrder.REVERT, generation), "", Desk())

    def audit(self, generation: int) -> Promise[AuditOutcome]:
        return self.audits.of(generation)

    def ask(self, order: Order, asker: Uid, desk: Desk) -> ReloadOutcome:
        """Carry out an order and wait for the outcome. The work of the order is done at ``desk``,
        by the thread that waits there.
        """
        return self._wait(lambda reply: self._obey_order(order, asker, reply), desk)

    def _wait(self, give: Callable[[OpenOrder], None], desk: Desk) -> ReloadOutcome:
        give(OpenOrder(desk.put, desk))
        return desk.wait()

    # Orders and news that arrive.

    def _ordered_to_prepare(self, plan: ReloadPlan, asker: Uid, reply: OpenOrder) -> None:
        # An upgrade goes to the procs of one mesh, and no further down.
        targets = None if plan.upgrade is None else ()
        switch = SwitchUnderWay(
            plan=plan, asker=asker, targets=targets, prepare_here=self.local_reload.prepare
        )
        self._prepare(switch, reply)

    def _prepare(self, switch: SwitchUnderWay, reply: OpenOrder) -> None:
        plan, machine = switch.plan, self.machine

        def event(token: int, now: float) -> Sequence[Effect]:
            if machine.accepts(switch.asker):
                self._actions.switch = switch
                if plan.upgrade is None:
                    # Calls that are sent from now on may arrive after the switch.
                    states = self._agent.code_states
                    if self._agent.is_root:
                        plan.others = states.left_by(plan.family, plan.covers)
                    states.expect(plan.code_change(self._agent.generation))
            order = Order(SwitchOrder.PREPARE, plan.generation)
            return machine.on(order, switch.asker, token, now)

        self._obey(event, reply)

    def _ordered_to_switch(self, order: Order, asker: Uid) -> None:
        """Drive the whole switch in this process, because the author ordered this.

        The switch goes on even if the author ends. The author gets the outcome as the answer.
        """
        leads: list[Leading] = []

        def answer(switched: Switched) -> None:
            self.node.answer(order, msgspec.to_builtins(switched))

        def lead() -> None:
            with self._at_work():
                answer(self._lead(leads[0]))

        def event(token: int, now: float) -> Sequence[Effect]:
            effects = self.machine.on(order, asker, token, now)
            switch = self._actions.switch
            assert switch is not None
            files = HostFiles(self.node, switch.plan, self.uid, author=asker)
            self._leading = Leading(
                lambda order, desk: self.ask(order, self.uid, desk),
                switch.plan,
                files,
                fence_seconds=self.fence_seconds,
            )
            self._led_for = asker, order.generation
            leads.append(self._leading)
            return effects

        def begun(outcome: ReloadOutcome) -> None:
            if not leads:
                answer(Switched(outcome=outcome))
                return
            in_background(lead)

        self._obey(event, OpenOrder(begun))

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """Mark this block as a push or a switch. The audit, which takes the processor from other
        threads, runs after it, so that nobody waits for it.
        """
        with self._lock:
            self._num_at_work += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_at_work -= 1
                audit, self._to_audit = self._to_audit, None
            if audit is not None:
                self.audits.begin(*audit)

    def _lead(self, leading: Leading) -> Switched:
        """Drive a switch to its end, and answer the orders to stop it. Blocks."""
        switched, error = leading.run(), leading.error
        if error is not None and not switched.is_done and not isinstance(error, CalledOff):
            why = f"the switch failed there: {format_remote(error)}"
            switched.outcome.refused.append(RefusedFile(self.local_reload.label, why))
        with self._lock:
            self._leading = self._led_for = None
            stopping, self._stopping = self._stopping, []
        for reply in stopping:
            reply.end()
        return switched

    def _obey_order(self, order: Order, asker: Uid, reply: OpenOrder) -> None:
        """Carry out and answer an order other than the order to drive the whole switch."""
        with self._lock:
            leading = self._leading
            is_stop = order.kind is SwitchOrder.REVERT
            if leading is not None and is_stop and self._led_for == (asker, order.generation):
                self._stopping.append(reply)
                leading.call_off()
                return

        def event(token: int, now: float) -> Sequence[Effect]:
            actions, leaving = self._actions, list[Uid]()
            switch = actions.switch
            if switch is not None and order.kind is SwitchOrder.FENCE:
                switch.exempt = frozenset(self._pushing)
            if order.kind is SwitchOrder.PATCH:
                leaving = actions.members_on(order.behind)
            effects = self.machine.on(order, asker, token, now, leaving=leaving)
            if order.kind is SwitchOrder.PATCH:
                if switch is not None:
                    switch.plan.behind += order.behind
                actions.fencing.release(leaving)
            return effects

        self._obey(event, reply)

    def _on_order(self, envelope: Envelope[Order]) -> None:
        """Take an order of our owner, or of an author elsewhere.

        An order to raise a fence is carried out at once, on the thread that receives messages. So
        the fence is raised before any later message of the sender is handled.
        """
        order = envelope.message
        asker = "" if order.sender == self.uid else order.sender
        reply = OpenOrder(lambda outcome: self.node.answer(order, msgspec.to_builtins(outcome)))
        if order.kind is SwitchOrder.PREPARE:
            self._ordered_to_prepare(ReloadPlan.decode(envelope.payload), asker, reply)
            if order.pid:
                author = self.node.address_of(asker)
                self.node.failure_detector.watch(
                    author, order.pid, lambda: self._author_left(asker)
                )
        elif order.kind is SwitchOrder.SWITCH:
            self._ordered_to_switch(order, asker)
        else:
            self._obey_order(order, asker, reply)

    def _author_left(self, uid: Uid) -> None:
        self.author_gone(uid)
        self.node.peer_down.left(uid)

    def _on_left_behind(self, envelope: Envelope[LeftBehind]) -> None:
        """Note which code the hosts run, after a push that left some hosts behind.

        From now on, no call from this process or from its procs may go both to hosts with the old
        code and to hosts with the new code. The procs of this process are told too.
        """
        codes = envelope.message.codes
        self._agent.code_states.inherit(codes)
        for proc in self._agent.owned_procs():
            self.node.send(proc, LeftBehind(codes))

    def _on_waiting(self, envelope: Envelope[Waiting]) -> None:
        """Report actors that the switch waits for in another process.

        The message is from a proc that this process owns, or from another client that it pushes to.
        """
        waiting, switch = envelope.message, self._actions.switch
        if switch is not None and switch.plan.generation == waiting.generation:
            self._actions.tell(switch, waiting.busy, waiting.seconds)
        elif self._agent.is_root:
            self._actions.busy.add(waiting.generation, waiting.busy, waiting.seconds)

    def _on_held_up(self, envelope: Envelope[HeldUp]) -> None:
        """Note that the fence in a proc that this process owns delays a sender of messages."""
        held_up = envelope.message
        if held_up.generation == self.machine.generation:
            self._feed(lambda now: self.machine.held(held_up.attempt, now))

    def author_gone(self, uid: Uid) -> None:
        """Handle the death of the push's author. Prepared code is dropped, and so are staged files.
        If this process was told to switch, it goes on with the switch.
        """
        if self.machine.coordinator != uid:
            return

        def event(now: float) -> Sequence[Effect]:
            effects, switch = self.machine.author_gone(uid, now), self._actions.switch
            if effects and switch is not None and switch.plan.staged is not None:
                # Before the next push comes, whose staged files have the same number.
                files = HostFiles(self.node, switch.plan, self.uid, author=uid)
                files.drop(waits=False)
                _log.warning(
                    "the push of generation %d ended with its author (%s): nothing has changed",
                    switch.plan.generation,
                    switch.plan.author,
                )
            return effects

        self._feed(event)

    def _obey(self, event: Callable[[int, float], Sequence[Effect]], reply: OpenOrder) -> None:
        """Handle an order, which is answered later.

        ``event`` passes the order to the state machine. If that finds the order illegal, because it
        is late or its sender may not give it, the order is dropped, and its sender is told so.
        """
        with self._lock:
            self._last_token += 1
            token, orders = self._last_token, self._actions.orders
            orders[token] = reply

            def fed(now: float) -> Sequence[Effect]:
                try:
                    return event(token, now)
                except IllegalEvent as error:
                    _log.debug("an order of a switch was dropped: %s", error)
                    if token in orders:
                        reply.refuse(self.local_reload.label, "nothing was prepared here")
                    return [AnswerOrder(token)]

            self._feed(fed)

    def _feed(self, event: Event) -> None:
        """Pass an event to the state machine, and carry out its effects. From any thread.

        Another event that comes while the effects are carried out is handled after them.
        """
        with self._lock:
            self._events.append(event)
            if self._is_draining:
                return
            self._is_draining = True
            try:
                while self._events:
                    for effect in self._events.popleft()(self.node.loop.time()):
                        self._actions.carry_out(effect)
            finally:
                self._is_draining = False
            self._set_timer()

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
