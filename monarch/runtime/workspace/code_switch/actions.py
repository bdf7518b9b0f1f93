"""Carries out the decisions of a participant of a code switch: work in this process, orders to the
procs that it owns, and the answer to the process that gave the order."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Iterable, Sequence

import msgspec

from monarch.config import settings
from monarch.core.code_switch import effects
from monarch.core.code_switch.participant import Participant
from monarch.core.code_switch.table import Vote
from monarch.errors import format_remote
from monarch.mesh.ranges import ranges_in_words
from monarch.net.loop import Loop
from monarch.runtime.answers import Response, collect
from monarch.runtime.ends.exit_words import has_ended_itself
from monarch.runtime.node import Node
from monarch.runtime.procs.proc_agent import ProcAgent
from monarch.runtime.promise import Promise
from monarch.runtime.workspace.code_switch.fencing import Fencing
from monarch.runtime.workspace.code_switch.open_order import OpenOrder, in_background
from monarch.runtime.workspace.local_reload import LocalReload
from monarch.runtime.workspace.reload_plan import RefusedFile, ReloadOutcome, ReloadPlan
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.host_code import HostCode
from monarch.wire.message import (
    Body,
    BusyActor,
    HeldUp,
    LeftBehind,
    ReplaceProcs,
    SwitchOrder,
    Waiting,
)

_log = logging.getLogger("monarch.reload")

_UP_SECONDS = 120.0

Event = Callable[[float], Sequence[effects.Effect]]
"""Something that happens to a participant, at a time; it comes to effects."""


class SwitchUnderWay(msgspec.Struct, kw_only=True, eq=False):
    """The switch that this process takes part in."""

    plan: ReloadPlan
    #: The process that pushes; "" if it is this one.
    asker: Uid
    #: The procs that switch with this process; None for all that it owns.
    targets: Sequence[ProcAddress] | None
    #: Prepares the plan in this process.
    prepare_here: Callable[[ReloadPlan], ReloadOutcome]
    #: Actors of this process that push, and so wait for the switch themselves.
    exempt: frozenset[Uid] = frozenset()
    #: The busy actors that were reported, each with the seconds.
    reported: set[tuple[BusyActor, float]] = msgspec.field(default_factory=set)
    #: Whether the user was told that procs will be replaced.
    is_loss_told: bool = False
    #: Refusals by procs that arrived while no order waited for an answer.
    unheard: list[RefusedFile] = msgspec.field(default_factory=list)


class Actions:
    """Carries out the effects of the switch's state machine one after the other, in the order in
    which they came.

    Work that takes time is done on the thread that waits for the order, or on a new thread. Its
    outcome is an event, which is passed to ``feed`` from any thread. ``tell`` is called with a text
    about the actors that the switch waits for.
    """

    def __init__(
        self,
        agent: ProcAgent,
        reload: LocalReload,
        *,
        feed: Callable[[Event], None],
        tell: Callable[[str], None],
        on_replacing: Callable[[ReloadPlan, int], None],
        on_over: Callable[[ReloadPlan], None],
    ) -> None:
        self.machine = Participant(self._members, is_root=agent.is_root, uid=agent.node.uid)
        self.fencing = Fencing(
            agent, lambda: self.machine.fence, lambda: feed(lambda now: self.machine.held(0, now))
        )
        #: The switch in progress; None between switches.
        self.switch: SwitchUnderWay | None = None
        #: The orders that wait for their answers, by token.
        self.orders: dict[int, OpenOrder] = {}
        self._agent = agent
        self._node = agent.node
        self._reload = reload
        self._feed = feed
        #: The reports of all processes about busy actors; used by the client only.
        self.busy = BusyActors(agent.node.loop, tell)
        #: Called with each plan that was switched to.
        self._on_over = on_over
        #: Called before the fence, with the number of procs that will be replaced.
        self._on_replacing = on_replacing
        #: The procs that took part in a switch, by uid, also those that have ended.
        self._procs: dict[Uid, ProcAddress] = {}

    def carry_out(self, effect: effects.Effect) -> None:
        if isinstance(effect, effects.Do):
            self._do(effect)
        elif isinstance(effect, effects.AskProcs):
            self._ask_procs(effect)
        elif isinstance(effect, effects.TellProcs):
            with self._node.casting:
                for uid in effect.procs:
                    self._node.order(self._procs[uid], effect.order)
        elif isinstance(effect, effects.AnswerOrder):
            self._answer(effect)
        elif isinstance(effect, effects.Look):
            self.fencing.look()
        elif isinstance(effect, effects.TellHeld):
            owner = self._node.address_of(self.machine.coordinator)
            self._node.send(owner, HeldUp(self.machine.generation, effect.attempt))
        elif isinstance(effect, effects.Say) and self.switch is not None:
            self.tell(self.switch, self.fencing.busy(), effect.seconds)

    def members_on(self, hosts: Sequence[Uid]) -> list[Uid]:
        """Return the procs on ``hosts`` that take part in this process's switch."""
        members = self._members() if hosts else []
        return [uid for uid in members if self._procs[uid].host_uid in hosts]

    def tell(self, switch: SwitchUnderWay, busy: Sequence[BusyActor], seconds: float) -> None:
        """Report the actors that the switch has waited for, and for how many ``seconds``.

        The root shows them to the user. The process that ordered the switch gets them as a message.
        An actor that was already reported with the same number of seconds is left out.
        """
        # The process that asked may be a proc of ours, which would report the same to us again.
        untold = [actor for actor in busy if (actor, seconds) not in switch.reported]
        if not untold:
            return
        switch.reported.update((actor, seconds) for actor in untold)
        generation = switch.plan.generation
        if self._agent.is_root:
            self.busy.add(generation, untold, seconds)
        if switch.asker:
            asker = self._node.address_of(switch.asker)
            self._node.send(asker, Waiting(generation, tuple(untold), seconds))

    def _members(self) -> list[Uid]:
        """Return the procs that switch with this process."""
        switch = self.switch
        if switch is not None and switch.targets is not None:
            procs = list(switch.targets)
        else:
            behind = switch.plan.behind if switch is not None else ()
            procs = [proc for proc in self._agent.owned_procs() if proc.host_uid not in behind]
        self._procs.update((proc.uid, proc) for proc in procs)
        return [proc.uid for proc in procs]

    def _do(self, effect: effects.Do) -> None:
        work, switch = effect.work, self.switch
        did = functools.partial(self._did, effect.number)
        if work is effects.Work.RAISE_FENCE:
            assert switch is not None
            sender = self._node.uid if self._agent.is_root else switch.asker or self._node.uid
            self.fencing.raise_for(sender, lambda: switch.exempt, did)
        elif work is effects.Work.CLOSE_GATE:
            self.fencing.close_gate(self.machine.generation, did)
        elif work is effects.Work.LIFT_FENCE:
            self.fencing.lift()
        elif work is effects.Work.HALT:
            self.fencing.halt(did)
        elif work is effects.Work.RESUME:
            self.fencing.resume()
        elif work is effects.Work.END:
            self._end()
        elif work is effects.Work.GO:
            self._go(effect.token)
        else:
            if work is effects.Work.REVERT:
                self.fencing.release()
            order = self.orders.get(effect.token)
            run = functools.partial(self._work, effect, switch)
            (in_background if order is None else order.work)(run)

    def _did(self, number: int) -> None:
        self._feed(lambda now: self.machine.did(number, Vote.YES, now))

    def _work(self, effect: effects.Do, switch: SwitchUnderWay | None) -> None:
        """Do a piece of work that takes time, without any lock."""
        reload, number = self._reload, self.machine.generation if switch is None else 0
        number = switch.plan.generation if switch is not None else number
        try:
            if effect.work is effects.Work.PREPARE and switch is not None:
                if effect.generation:
                    reload.revert(effect.generation)
                outcome = switch.prepare_here(switch.plan)
            elif effect.work is effects.Work.CATCH_UP:
                outcome = reload.catch_up(number)
            elif effect.work is effects.Work.PATCH and switch is not None:
                outcome = reload.switch(number, switch.exempt)
            else:
                reload.revert(effect.generation)
                outcome = ReloadOutcome()
        except Exception as error:
            text = f"{effect.work.value} failed there: {format_remote(error)}"
            outcome = ReloadOutcome(refused=[RefusedFile(reload.label, text)])
        vote = outcome.vote

        def event(now: float) -> Sequence[effects.Effect]:
            order = self.orders.get(effect.token)
            if order is not None:
                order.outcome.add(outcome)
                order.outcome.is_replaced |= outcome.is_replaced
            return self.machine.did(effect.number, vote, now)

        self._feed(event)

    def _answer(self, answer: effects.AnswerOrder) -> None:
        order, switch = self.orders.pop(answer.token), self.switch
        if self._agent.begins_anew:
            order.outcome.begins_anew()
        gate, outcome = self._agent.gate, order.outcome
        has_switched = switch is not None and gate.generation == switch.plan.generation
        if has_switched and (outcome.modules or outcome.replaced):  # here, or in procs of ours
            gate.code_generation = gate.generation
        order.answer(
            answer,
            label=self._reload.label,
            author=switch.plan.author if switch is not None else "",
            unheard=switch.unheard if switch is not None else (),
            busy=self.fencing.busy,
        )

    def _ask_procs(self, effect: effects.AskProcs) -> None:
        order, switch = effect.order, self.switch
        assert switch is not None
        is_new = order.kind is SwitchOrder.PREPARE
        data = switch.plan.for_procs().encode() if is_new else b""
        going = msgspec.structs.replace(order, gives_way=True)
        replaced = self.machine.replaced if order.kind is SwitchOrder.FENCE else ()
        if replaced and not switch.is_loss_told:
            switch.is_loss_told = True
            self._on_replacing(switch.plan, len(replaced))
        self.fencing.keep(uid for _, uid in effect.asked if uid in replaced)
        answers = []
        # In one cast, so that no other message of ours comes between the procs' fences.
        with self._node.casting:
            for number, uid in sorted(effect.asked, key=lambda asked: asked[1] in replaced):
                sent = going if uid in replaced else order
                answers.append((number, uid, self._node.ask(self._procs[uid], sent, data)))
        for number, uid, answer in answers:
            answer.on_set(
                functools.partial(
                    self._heard, answer, uid, number=number, token=effect.token, order=order.kind
                )
            )

    def _heard(
        self,
        answer: Promise[Response[Body]],
        uid: Uid,
        *,
        number: int,
        token: int,
        order: SwitchOrder,
    ) -> None:
        """Handle a proc's answer to an order of the switch. If the proc has ended, handle that as
        its answer.
        """
        response = answer.value
        outcome = ReloadOutcome()
        if response.is_down and order is SwitchOrder.PREPARE and has_ended_itself(response.error):
            failure = self._node.address_book.failure_of(uid)
            name = uid if failure is None else failure.mesh_name
            why = f"its process ended as it tried the new code: {response.error}"
            outcome.refused.append(RefusedFile(name, why))
        elif response.is_down:
            # It has no code to switch; its owner is told of its end elsewhere.
            _log.info("a proc has ended during a push: %s", response.error)
        elif response.error:
            outcome.refused.append(RefusedFile(uid, response.error))
        else:
            outcome = msgspec.convert(response.answer, ReloadOutcome)

        def event(now: float) -> Sequence[effects.Effect]:
            machine, switch = self.machine, self.switch
            gives_way = outcome.is_replaced and order is not SwitchOrder.PATCH
            if gives_way and uid not in machine.replaced:
                outcome.refused += self._why_not_again(uid)
            vote = outcome.vote
            asked = self.orders.get(token)
            if order is not SwitchOrder.REVERT and asked is not None:
                asked.outcome.add(outcome)
            elif order is SwitchOrder.PREPARE and switch is not None:
                switch.unheard += outcome.refused
            vote = Vote.GONE if response.is_down and not outcome.refused else vote
            return machine.voted(number, vote, now, gives_way=gives_way)

        self._feed(event)

    def _why_not_again(self, uid: Uid) -> list[RefusedFile]:
        """Return a refusal for each mesh whose actors on the proc ``uid`` cannot be made again: the
        arguments of these actors were not kept.
        """
        return [
            RefusedFile(
                self._reload.label,
                f"a proc needs a new process, but the arguments of {spawn.name} cannot be given "
                f"again: {spawn.why_not}; stop these actors, or pass that to an endpoint",
            )
            for spawn in self._agent.kept_spawns.on(uid)
            if spawn.data is None
        ]

    def _end(self) -> None:
        switch = self.switch
        self.busy.forget()
        self._agent.code_states.expect_nothing()
        self.fencing.end()
        if switch is not None and switch.asker:
            self._node.failure_detector.unexpect(switch.asker)

    def _go(self, token: int) -> None:
        """Run the new code, and replace the procs that cannot take it."""
        switch, order = self.switch, self.orders.get(token)
        assert switch is not None
        self.fencing.forget_kept()
        self.switch = None
        plan = switch.plan
        if plan.upgrade is None:
            self._node.gate.why_behind = ""
            self._on_over(plan)
        codes = self._agent.code_states.to_inherit()
        for proc in self._agent.owned_procs() if plan.behind else ():
            if proc.host_uid in plan.behind:
                self._node.send(proc, LeftBehind(codes))
        replaced = [self._procs[uid] for uid in sorted(self.machine.replaced)]

        def replace() -> None:
            problems = _replace_procs(self._node, replaced, codes)
            if order is not None:
                order.outcome.problems += problems
                self._feed(lambda now: [effects.AnswerOrder(token)])

        if replaced:
            (in_background if order is None else order.work)(replace)
        elif order is not None:
            self._answer(effects.AnswerOrder(token))


def _replace_procs(
    node: Node, procs: Sequence[ProcAddress], codes: tuple[HostCode, ...]
) -> list[str]:
    """Have the hosts of ``procs`` end these procs and start new procs with the same uids.

    Returns texts about problems, when the new procs are up. A proc that is not up within two
    minutes is not waited for. ``codes`` says which code each host runs, if the hosts run different
    code.
    """
    grace = settings().stop_timeout_seconds
    hosts: dict[Uid, list[ProcAddress]] = {}
    for proc in procs:
        hosts.setdefault(proc.host_uid, []).append(proc)
    asked: dict[str, Promise[Response[None]]] = {}
    reason = "its code could not be changed in place"
    for uid, members in hosts.items():
        host = ProcAddress(uid, members[0].host_urls, members[0].machine)
        uids = tuple(proc.uid for proc in members)
        asked[uid] = node.ask(host, ReplaceProcs(uids, reason, grace, codes))
    seconds = grace + _UP_SECONDS
    answers = collect(asked, seconds, "")
    problems = []
    for uid, members in hosts.items():
        where = next(iter(members[0].host_urls), uid)
        if not asked[uid].is_set:
            problems.append(f"new procs on {where} are not up after {seconds:g} s")
        elif error := answers[uid].error:
            problems.append(error)
    return problems


_MOST_NAMED = 3


class BusyActors:
    """Collects the reports of all processes about actors that a switch waits for.

    ``tell`` is called with one text for all, a moment after the first report: processes report at
    about the same times. From any thread.
    """

    def __init__(self, loop: Loop, tell: Callable[[str], None]) -> None:
        self._loop = loop
        self._tell = tell
        # Each process counts from the time at which it got the fence, so reports differ a little.
        self.gather_seconds = 0.3
        self._gathered: dict[tuple[int, float], list[BusyActor]] = {}
        self._lock = threading.Lock()

    def add(self, generation: int, busy: Iterable[BusyActor], seconds: float) -> None:
        """Add actors for which the switch to ``generation`` has waited for ``seconds``."""
        key = generation, seconds
        with self._lock:
            is_first = key not in self._gathered
            self._gathered.setdefault(key, []).extend(busy)
        if is_first:
            self._loop.call_later(self.gather_seconds, lambda: self._say(*key))

    def forget(self) -> None:
        """Drop the collected reports, because the switch waits for no actor any longer."""
        with self._lock:
            for busy in self._gathered.values():
                busy.clear()

    def _say(self, generation: int, seconds: float) -> None:
        with self._lock:
            busy = self._gathered.pop((generation, seconds))
        if busy:
            self._tell(waits_for(generation, busy, seconds))


def waits_for(generation: int, busy: Sequence[BusyActor], seconds: float) -> str:
    """Return a text for people: which actors the switch waits for, by mesh, and which methods they
    run.
    """
    ranks: dict[tuple[str, str], list[int]] = {}
    for actor in busy:
        ranks.setdefault((actor.name, actor.method), []).append(actor.rank)
    names = [
        f"{name} {ranges_in_words(numbers)}{f' (in {method})' if method else ''}"
        for (name, method), numbers in sorted(ranks.items())
    ]
    shown = ", ".join(names[:_MOST_NAMED])
    few = shown if len(names) <= _MOST_NAMED else f"{shown} and {len(names) - _MOST_NAMED} more"
    return f"generation {generation} waits for {few}, for {seconds:g} s"
