"""A process's part in a code switch, and its part for the processes it owns.

What happens is fed to a ``Participant``, one thing after the other, whatever thread it happens on;
what that wants done is done here. What takes time is done on the thread that waits for the order,
or on one of its own.
"""

from __future__ import annotations

import functools
import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import msgspec

from monarch.core.code_switch.effects import (
    Answer,
    AskProcs,
    Do,
    Effect,
    Look,
    Reason,
    Say,
    TakeOver,
    TellHeld,
    TellProcs,
    Work,
)
from monarch.core.code_switch.participant import Participant
from monarch.core.code_switch.table import IllegalEvent, Order, Phase, Vote
from monarch.errors import format_remote
from monarch.net.loop import Timer
from monarch.runtime.answers import Outcome
from monarch.runtime.context import running
from monarch.runtime.procs.kept_spawns import KEPT_BYTES
from monarch.runtime.procs.proc_agent import ProcAgent
from monarch.runtime.workspace.code_switch.author_lost import AuthorLost
from monarch.runtime.workspace.code_switch.desk import Desk, in_background
from monarch.runtime.workspace.code_switch.fencing import Fencing
from monarch.runtime.workspace.code_switch.replacing import replace_procs
from monarch.runtime.workspace.code_switch.words import said_of, waits_for
from monarch.runtime.workspace.local_reload import LocalReload
from monarch.runtime.workspace.reload_plan import RefusedFile, ReloadOutcome, ReloadPlan
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.host_code import HostCode
from monarch.wire.message import (
    AnyMessage,
    HeldUp,
    LeftBehind,
    Prepare,
    ProcDown,
    Revert,
    Step,
    StepName,
    Switch,
    Waiting,
)

if TYPE_CHECKING:
    from monarch.runtime.workspace.code_switch.owner import Owner

__all__ = ["CodeSwitch"]

_log = logging.getLogger("monarch.reload")

_Reply = Callable[[ReloadOutcome], None]
_Event = Callable[[float], Sequence[Effect]]


class _Switch:
    """The switch that is under way. ``asker`` is who pushes, if it is not us; ``targets`` are the
    procs that switch with us: those that we own, where it is ``None``. ``here`` is how this process
    prepares. ``exempt`` are actors here that push, and so wait for the switch."""

    def __init__(
        self,
        plan: ReloadPlan,
        asker: Uid,
        targets: Sequence[ProcAddress] | None,
        here: Callable[[ReloadPlan], ReloadOutcome],
    ) -> None:
        self.plan = plan
        self.asker = asker
        self.targets = targets
        self.here = here
        self.exempt: frozenset[Uid] = frozenset()
        self.behind: tuple[Uid, ...] = ()
        self.told: set[str] = set()
        # Said by procs when nobody waited for an answer.
        self.unheard: list[RefusedFile] = []


class _Asked:
    """An order that waits for our answer; its work is done at ``desk``, if that is given."""

    def __init__(self, reply: _Reply, desk: Desk | None) -> None:
        self.reply = reply
        self.desk = desk
        self.outcome = ReloadOutcome()


class CodeSwitch:
    """The owner's side of a push: see ``Owner``. One at a time; who else pushes has to wait."""

    def __init__(self, agent: ProcAgent, here: LocalReload) -> None:
        self.here = here
        self._agent = agent
        self._node = agent.node
        self._machine = Participant(self._members, is_root=agent.is_root, uid=agent.node.uid)
        self._fencing = Fencing(agent, lambda: self._machine.fence, lambda: self._feed(self._held))
        self._switch: _Switch | None = None
        self._known: dict[Uid, ProcAddress] = {}
        self._lock = threading.RLock()
        self._events: deque[_Event] = deque()
        self._is_draining = False
        self._timer: Timer | None = None
        self._asked: dict[int, _Asked] = {}
        self._last_token = 0
        # Held by whoever changes the code of what we own from this process, from begin to end.
        self.alone = threading.Lock()
        self._pushing: list[Uid] = []
        # Told what the change waits for, when that takes seconds.
        self.on_waiting: Callable[[str], None] = lambda text: _log.warning("%s", text)
        # The digest of the workspace that a host has come to, as far as we were told.
        self.on_over: Callable[[ReloadPlan], None] = lambda plan: None
        self._node.peer_down.on_down.append(self._on_peer_down)

    @property
    def is_idle(self) -> bool:
        """Whether no switch is under way here."""
        return self._machine.phase is Phase.IDLE

    @property
    def num_lifted(self) -> int:
        """The last fence of the switch that was lifted."""
        return self._machine.num_lifted

    @contextmanager
    def pushing(self) -> Iterator[None]:
        """Within the block, nobody waits for the actor that this is the context of: it waits for
        a change."""
        actor = running.get()
        if actor is None:
            yield
            return
        uid = actor.record.uid
        with self._lock:
            self._pushing.append(uid)
            if self._switch is not None:
                self._switch.exempt |= {uid}
        # A fence that is up already would wait for it, while it waits for whoever pushes before it.
        self._agent.fences.exempt(uid)
        try:
            yield
        finally:
            with self._lock:
                self._pushing.remove(uid)

    # As an owner, for who waits: each order is given, and its work is done on the calling thread.

    def prepare(self, plan: ReloadPlan) -> ReloadOutcome:
        # An upgrade goes to the procs of one mesh, and no further down.
        return self.prepare_on(plan, None if plan.upgrade is None else ())

    def prepare_on(
        self,
        plan: ReloadPlan,
        targets: Sequence[ProcAddress] | None,
        here: Callable[[ReloadPlan], ReloadOutcome] | None = None,
    ) -> ReloadOutcome:
        """Get ``plan`` ready in these procs, and here, in another way than theirs if given."""
        switch = _Switch(plan, "", targets, here or self.here.prepare)
        return self._wait(lambda reply, desk: self._prepare(switch, reply, desk))

    def fence(
        self, generation: int, attempt: int, seconds: float, *, is_held: bool = False
    ) -> ReloadOutcome:
        return self._wait(
            lambda reply, desk: self.ordered_to_fence(
                generation, attempt, seconds, "", reply, desk, is_held=is_held
            )
        )

    def lift(self, generation: int, attempt: int, seconds: float) -> ReloadOutcome:
        return self._wait(
            lambda reply, desk: self.ordered_to_lift(generation, attempt, seconds, "", reply, desk)
        )

    def halt(self, generation: int, seconds: float) -> ReloadOutcome:
        return self._wait(
            lambda reply, desk: self.ordered_to_halt(generation, seconds, "", reply, desk)
        )

    def patch(self, generation: int, behind: Sequence[Uid] = (), asker: Uid = "") -> ReloadOutcome:
        return self._wait(
            lambda reply, desk: self.ordered_to_patch(generation, behind, asker, reply, desk)
        )

    def go(self, generation: int, asker: Uid = "") -> ReloadOutcome:
        return self._wait(lambda reply, desk: self.ordered_to_go(generation, asker, reply, desk))

    def revert(self, generation: int, asker: Uid = "") -> None:
        self._wait(lambda reply, desk: self.ordered_to_revert(generation, asker, reply, desk))

    def _wait(self, order: Callable[[_Reply, Desk], None]) -> ReloadOutcome:
        desk = Desk()
        order(desk.put, desk)
        return desk.wait()

    # The orders.

    def ordered_to_prepare(self, plan: ReloadPlan, asker: Uid, reply: _Reply) -> None:
        targets = None if plan.upgrade is None else ()
        self._prepare(_Switch(plan, asker, targets, self.here.prepare), reply)

    def _prepare(self, switch: _Switch, reply: _Reply, desk: Desk | None = None) -> None:
        plan, machine = switch.plan, self._machine

        def event(token: int, now: float) -> Sequence[Effect]:
            if machine.accepts(switch.asker):
                self._switch = switch
                if plan.upgrade is None:
                    self._look_ahead(plan)
            return machine.prepare(token, switch.asker, plan.generation, now)

        self._order(event, reply, desk)

    def ordered_to_fence(
        self, generation: int, attempt: int, seconds: float | None, asker: Uid, reply: _Reply,
        desk: Desk | None = None, *, is_held: bool = False,
    ) -> None:  # fmt: skip
        """``seconds`` is ``None`` for a fence of our owner's, in its own order."""

        def event(token: int, now: float) -> Sequence[Effect]:
            if self._switch is not None:
                self._switch.exempt = frozenset(self._pushing)
            return self._machine.raise_fence(
                token, asker, generation, attempt, now, seconds, is_held=is_held
            )

        self._order(event, reply, desk)

    def ordered_to_lift(
        self, generation: int, attempt: int, seconds: float, asker: Uid, reply: _Reply,
        desk: Desk | None = None,
    ) -> None:  # fmt: skip
        self._order(
            lambda token, now: self._machine.lift(token, asker, generation, attempt, seconds, now),
            reply, desk,
        )  # fmt: skip

    def ordered_to_halt(
        self, generation: int, seconds: float, asker: Uid, reply: _Reply, desk: Desk | None = None
    ) -> None:
        self._order(
            lambda token, now: self._machine.halt(token, asker, generation, seconds, now),
            reply, desk,
        )  # fmt: skip

    def ordered_to_resume(self, generation: int, asker: Uid) -> None:
        self._order(
            lambda token, now: self._machine.resume(asker, generation), lambda outcome: None
        )

    def ordered_to_patch(
        self, generation: int, behind: Sequence[Uid], asker: Uid, reply: _Reply,
        desk: Desk | None = None,
    ) -> None:  # fmt: skip
        """``behind``: hosts that could not show their files; what runs there goes back."""

        def event(token: int, now: float) -> Sequence[Effect]:
            members = self._members() if behind else []
            leaving = [uid for uid in members if self._known[uid].host_uid in behind]
            effects = self._machine.patch(token, asker, generation, now, leaving)
            if self._switch is not None:
                self._switch.behind = tuple(behind)
                self._switch.plan.behind += behind
            self._fencing.release(leaving)
            return effects

        self._order(event, reply, desk)

    def ordered_to_go(
        self, generation: int, asker: Uid, reply: _Reply, desk: Desk | None = None
    ) -> None:
        self._order(lambda token, now: self._machine.go(token, asker, generation), reply, desk)

    def ordered_to_revert(
        self, generation: int, asker: Uid, reply: _Reply, desk: Desk | None = None
    ) -> None:
        def event(token: int, now: float) -> Sequence[Effect]:
            if self._machine.phase is Phase.IDLE:
                # What was switched to is taken back. An upgrade was for the procs of one mesh.
                plan = ReloadPlan(generation, "", "off")
                targets = None if generation > 0 else ()
                self._switch = _Switch(plan, asker, targets, self.here.prepare)
            return self._machine.revert(token, asker, generation, now)

        self._order(event, reply, desk)

    # What happens meanwhile.

    def left_behind(self, codes: tuple[HostCode, ...]) -> None:
        """A push could not come here: no call from here, or from what we own, may meet both."""
        self._agent.code_states.inherit(codes)
        for proc in self._agent.owned_procs():
            self._node.send(proc, LeftBehind(codes))

    def waits(self, generation: int, text: str) -> None:
        """A process below, or one of another client that we push to, waits for somebody."""
        switch = self._switch
        if switch is not None and switch.plan.generation == generation:
            self._tell(switch, text)
        elif self._agent.is_root:
            self.on_waiting(text)

    def held_up(self, generation: int, attempt: int) -> None:
        """Somebody waits behind the fence of a process below."""
        if generation == self._machine.generation:
            self._feed(lambda now: self._machine.held(attempt, now))

    def _held(self, now: float) -> Sequence[Effect]:
        return self._machine.held(0, now)

    def _on_peer_down(self, uid: Uid, down: ProcDown) -> None:
        self.author_gone(uid)

    def author_gone(self, uid: Uid) -> None:
        """Whoever pushed has died half-way: what it has begun is finished here, or taken back."""
        if uid == self._machine.coordinator:
            self._feed(lambda now: self._machine.author_gone(uid, now))

    # The machine, and what it wants.

    def _order(
        self, event: Callable[[int, float], Sequence[Effect]], reply: _Reply,
        desk: Desk | None = None,
    ) -> None:  # fmt: skip
        """Feed an order, which is answered some time. One that is illegal here comes too late, or
        from who may not give it: it is dropped, and who gave it told so."""
        with self._lock:
            self._last_token += 1
            token = self._last_token
            self._asked[token] = _Asked(reply, desk)

            def fed(now: float) -> Sequence[Effect]:
                try:
                    return event(token, now)
                except IllegalEvent as error:
                    _log.debug("an order of a switch was dropped: %s", error)
                    asked = self._asked.get(token)
                    if asked is not None:
                        asked.outcome.refused.append(
                            RefusedFile(self.here.label, "nothing was prepared here")
                        )
                    return [Answer(token)]

            self._feed(fed)

    def _feed(self, event: _Event) -> None:
        """Tell the machine of something, and do what it wants. From any thread.

        What happens while that is being done comes after it.
        """
        with self._lock:
            self._events.append(event)
            if self._is_draining:
                return
            self._is_draining = True
            try:
                while self._events:
                    effects = self._events.popleft()(self._node.loop.time())
                    for effect in effects:
                        self._carry_out(effect)
            finally:
                self._is_draining = False
            self._set_timer()

    def _set_timer(self) -> None:
        at = self._machine.wakes_at()
        if self._timer is not None and (at is None or self._timer.when > at):
            self._timer.cancel()
            self._timer = None
        if at is not None and at != math.inf and self._timer is None:
            self._timer = self._node.loop.call_later(at - self._node.loop.time(), self._tick)

    def _tick(self) -> None:
        with self._lock:
            self._timer = None
            self._feed(self._machine.tick)

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, Do):
            self._do(effect)
        elif isinstance(effect, AskProcs):
            self._ask_procs(effect)
        elif isinstance(effect, TellProcs):
            message = self._message(effect.order, effect.attempt, 0.0)
            with self._node.casting:
                for uid in effect.procs:
                    self._node.send(self._known[uid], message(0))
        elif isinstance(effect, Answer):
            self._answer(effect)
        elif isinstance(effect, Look):
            self._fencing.look()
        elif isinstance(effect, TellHeld):
            owner = self._node.address_of(self._machine.coordinator)
            self._node.send(owner, HeldUp(self._machine.generation, effect.attempt))
        elif isinstance(effect, Say):
            text = waits_for(self._machine.generation, self._fencing.busy(), effect.seconds)
            if text and self._switch is not None:
                self._tell(self._switch, text)
        elif isinstance(effect, TakeOver):
            self._take_over(effect)

    def _do(self, effect: Do) -> None:
        work, number, switch = effect.work, effect.number, self._switch
        did = functools.partial(self._did, number, Vote.YES)
        if work is Work.RAISE_FENCE:
            assert switch is not None
            sender = self._node.uid if self._agent.is_root else switch.asker or self._node.uid
            self._fencing.raise_for(sender, lambda: switch.exempt, did)
        elif work is Work.CLOSE_GATE:
            self._fencing.close_gate(self._machine.generation, did)
        elif work is Work.LIFT_FENCE:
            self._fencing.lift()
        elif work is Work.HALT:
            self._fencing.halt(did)
        elif work is Work.RESUME:
            self._fencing.resume()
        elif work is Work.END:
            self._end()
        elif work is Work.GO:
            self._go(effect.token)
        else:
            if work is Work.REVERT:
                self._fencing.release()
            asked = self._asked.get(effect.token)
            run = functools.partial(self._work, effect, switch)
            (in_background if asked is None or asked.desk is None else asked.desk.put)(run)

    def _did(self, number: int, vote: Vote) -> None:
        self._feed(lambda now: self._machine.did(number, vote, now))

    def _work(self, effect: Do, switch: _Switch | None) -> None:
        """A piece of work that takes time, outside of the lock."""
        here, number = self.here, self._machine.generation if switch is None else 0
        number = switch.plan.generation if switch is not None else number
        try:
            if effect.work is Work.PREPARE and switch is not None:
                if effect.generation:
                    here.revert(effect.generation)
                outcome = switch.here(switch.plan)
            elif effect.work is Work.CATCH_UP:
                outcome = here.catch_up(number)
            elif effect.work is Work.PATCH and switch is not None:
                outcome = here.switch(number, switch.exempt)
            else:
                here.revert(effect.generation)
                outcome = ReloadOutcome()
        except Exception as error:
            text = f"{effect.work.value} failed there: {format_remote(error)}"
            outcome = ReloadOutcome(refused=[RefusedFile(here.label, text)])
        vote = Vote.NO if outcome.refused else Vote.YES

        def event(now: float) -> Sequence[Effect]:
            asked = self._asked.get(effect.token)
            if asked is not None:
                asked.outcome.add(outcome)
                asked.outcome.is_replaced |= outcome.is_replaced
            return self._machine.did(effect.number, vote, now)

        self._feed(event)

    def _answer(self, answer: Answer) -> None:
        asked = self._asked.pop(answer.token)
        label, switch = self.here.label, self._switch
        for reason, uid in answer.reasons:
            if reason is Reason.OTHERS:
                author = switch.plan.author if switch is not None else uid
                asked.outcome.busy = f"{author} pushes at this moment"
            elif reason is Reason.REFUSED:
                if not asked.outcome.refused and switch is not None:
                    asked.outcome.refused += switch.unheard
            elif reason is Reason.SILENT:
                text = said_of(reason, uid, answer.seconds)
                asked.outcome.refused.append(RefusedFile(label, text))
            elif reason is Reason.BUSY:
                asked.outcome.late += [
                    RefusedFile(label, said_of(reason, f"{title} is busy with {method!r}"))
                    for title, method in self._fencing.busy()
                ] or [RefusedFile(label, "an actor could not be halted in time: push again")]
            else:
                asked.outcome.late.append(RefusedFile(label, said_of(reason, uid)))
        asked.outcome.refused.sort(key=lambda refused: _by_rank(refused.rank))
        asked.reply(asked.outcome)

    # Procs.

    def _members(self) -> list[Uid]:
        """The procs that switch with us."""
        switch = self._switch
        if switch is not None and switch.targets is not None:
            procs = list(switch.targets)
        else:
            behind = switch.plan.behind if switch is not None else ()
            procs = [proc for proc in self._agent.owned_procs() if proc.host_uid not in behind]
        self._known.update((proc.uid, proc) for proc in procs)
        return [proc.uid for proc in procs]

    def _ask_procs(self, effect: AskProcs) -> None:
        order, switch = effect.order, self._switch
        assert switch is not None
        data = switch.plan.encode() if order is Order.PREPARE else b""
        message = self._message(order, effect.attempt, effect.seconds)
        going = _message_to_replaced(self._machine.generation, self._node.uid, effect.attempt)
        replaced = self._machine.replaced if order is Order.FENCE else ()
        self._fencing.keep(uid for _, uid in effect.asked if uid in replaced)
        answers = []
        # One cast: nothing that we send comes between the procs' fences.
        with self._node.casting:
            for number, uid in sorted(effect.asked, key=lambda one: one[1] in replaced):
                make = going if uid in replaced else message
                answers.append((number, uid, self._node.request(self._known[uid], make, data)))
        for number, uid, answer in answers:
            heard = functools.partial(self._heard, number, uid, effect.token, order, answer)
            answer.on_set(lambda heard=heard: heard())  # type: ignore[misc]

    def _message(self, order: Order, attempt: int, seconds: float) -> Callable[[int], AnyMessage]:
        """An order to procs, as a message."""
        number, uid, switch = self._machine.generation, self._node.uid, self._switch
        if order is Order.PREPARE:
            assert switch is not None
            digest, mode = switch.plan.digest, switch.plan.mode
            return lambda port: Prepare(number, digest, mode, port, uid)
        if order is Order.FENCE:
            return lambda port: Switch(number, port, uid, False, attempt)
        if order is Order.REVERT:
            return lambda port: Revert(number, port, uid)
        name = StepName(order.value)
        behind = switch.behind if switch is not None and order is Order.PATCH else ()
        return lambda port: Step(number, name, seconds, port, uid, attempt, behind)

    def _heard(self, number: int, uid: Uid, token: int, order: Order, answer: object) -> None:
        """A proc has answered, or is gone."""
        said: Outcome = answer.value  # type: ignore[attr-defined]
        outcome = ReloadOutcome()
        if said.is_down:
            # It has no code to switch; its owner hears of its end elsewhere.
            _log.info("a proc has ended during a push: %s", said.error)
        elif said.error:
            outcome.refused.append(RefusedFile(uid, said.error))
        else:
            outcome = msgspec.convert(said.body, ReloadOutcome)

        def event(now: float) -> Sequence[Effect]:
            machine, switch = self._machine, self._switch
            gives_way = outcome.is_replaced and order is not Order.PATCH
            if gives_way and uid not in machine.replaced:
                outcome.refused += self._why_not_again(uid)
            vote = Vote.NO if outcome.refused else Vote.LATE if outcome.late else Vote.YES
            asked = self._asked.get(token)
            if order is not Order.REVERT and asked is not None:
                asked.outcome.add(outcome)
            elif order is Order.PREPARE and switch is not None:
                switch.unheard += outcome.refused
            vote = Vote.GONE if said.is_down else vote
            return machine.voted(number, vote, now, gives_way=gives_way)

        self._feed(event)

    def _why_not_again(self, uid: Uid) -> list[RefusedFile]:
        """Actors in a proc that could not be made again."""
        return [
            RefusedFile(
                self.here.label,
                f"a proc needs a new process, but the arguments of {spawn.name} cannot be given "
                f"again: {spawn.num_bytes} bytes, of which {KEPT_BYTES} at most are kept; stop "
                "these actors, or pass large things to an endpoint",
            )
            for spawn in self._agent.kept_spawns.on(uid)
            if spawn.data is None
        ]

    # The ends of a switch.

    def _look_ahead(self, plan: ReloadPlan) -> None:
        """Calls that are sent from here on may arrive when the plan has been switched to."""
        states = self._agent.code_states
        if self._agent.is_root:
            plan.others = states.left_by(plan.family, plan.covers)
        states.expect(plan.code_change(self._agent.generation))

    def _end(self) -> None:
        switch = self._switch
        self._agent.code_states.expect_nothing()
        self._fencing.end()
        if switch is not None and switch.asker:
            self._node.failure_detector.unexpect(switch.asker)

    def _go(self, token: int) -> None:
        switch, asked = self._switch, self._asked.get(token)
        assert switch is not None
        self._fencing.forget_kept()
        self._switch = None
        plan = switch.plan
        if plan.upgrade is None:
            self._node.gate.why_behind = ""
            self.on_over(plan)
        codes = self._agent.code_states.to_inherit()
        for proc in self._agent.owned_procs() if plan.behind else ():
            if proc.host_uid in plan.behind:
                self._node.send(proc, LeftBehind(codes))
        replaced = [self._known[uid] for uid in sorted(self._machine.replaced)]

        def replace() -> None:
            problems = replace_procs(self._node, replaced, codes)
            if asked is not None:
                asked.outcome.problems += problems
                self._feed(lambda now: [Answer(token)])

        if not replaced:
            self._answer(Answer(token)) if asked is not None else None
        elif asked is not None and asked.desk is not None:
            asked.desk.put(replace)
        else:
            in_background(replace)

    def _take_over(self, effect: TakeOver) -> None:
        switch = self._switch
        assert switch is not None
        owner = cast("Owner", _Successor(self, self._machine.coordinator))
        lost = AuthorLost(self._node, switch.plan, owner, may_be_shown=effect.may_be_shown)
        threading.Thread(target=lost.settle, name="monarch-abandoned", daemon=True).start()

    def _tell(self, switch: _Switch, text: str) -> None:
        """Say what the switch waits for, and who waits for it."""
        # Whoever asked may be a process of ours, which is told by us, and tells us.
        if text in switch.told:
            return
        switch.told.add(text)
        if self._agent.is_root:
            self.on_waiting(text)
        if switch.asker:
            self._node.send(
                self._node.address_of(switch.asker), Waiting(switch.plan.generation, text)
            )


class _Successor:
    """The owner, as one that obeys itself, in the place of an author that is gone."""

    def __init__(self, switch: CodeSwitch, name: Uid) -> None:
        self._switch = switch
        self._name = name

    def __getattr__(self, name: str) -> object:
        return functools.partial(getattr(self._switch, name), asker=self._name)


def _message_to_replaced(generation: int, uid: Uid, attempt: int) -> Callable[[int], AnyMessage]:
    """The fence for a proc that gives way: what comes after it is for the new one."""
    return lambda port: Switch(generation, port, uid, True, attempt)


def _by_rank(name: str) -> tuple[int, str]:
    """Answers come as they like; they are told by rank, and ours, which has none, first."""
    last = name.rpartition(" ")[2]
    return (int(last), name) if last.isdecimal() else (-1, name)
