"""A process's part in a change of generation, and its part for the processes it owns.

Each step goes down the ownership tree: a process does its own share, and has every proc that it
spawned do the same. The fence travels in the owner's order, so all ranks switch between the same
two messages; the halt, the patch and the go follow when all ranks have come to the step before.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from monarch.runtime.context import running
from monarch.runtime.procs.kept_spawns import KEPT_BYTES
from monarch.runtime.procs.proc_agent import ProcAgent
from monarch.runtime.promise import Promise
from monarch.runtime.workspace.local_reload import LocalReload
from monarch.runtime.workspace.reload_plan import RefusedFile, ReloadOutcome, ReloadPlan
from monarch.runtime.workspace.turnovers.abandoned import Abandoned
from monarch.runtime.workspace.turnovers.fencing import Fencing
from monarch.runtime.workspace.turnovers.procs_asked import Asked, ask, gather
from monarch.runtime.workspace.turnovers.replacing import replace_procs
from monarch.runtime.workspace.turnovers.turn import Turn
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.host_code import HostCode
from monarch.wire.message import LeftBehind, ProcDown, Revert, Step, Waiting

__all__ = ["Turnover"]

_log = logging.getLogger("monarch.reload")

_PREPARE_SECONDS = 300.0
_PATCH_SECONDS = 120.0
_ANSWER_SECONDS = 15.0


class Turnover:
    """The owner's side of a push: see ``Owner``. One at a time; who else pushes has to wait."""

    def __init__(self, agent: ProcAgent, here: LocalReload) -> None:
        self.here = here
        self._agent = agent
        self._node = agent.node
        self._turn: Turn | None = None
        self._fencing = Fencing(agent, here.label, self._tell)
        self._lock = threading.Lock()
        # Held by whoever changes the code of what we own from this process, from begin to end.
        self.alone = threading.Lock()
        self._pushing: list[Uid] = []
        # Told what the change waits for, when that takes seconds.
        self.on_waiting: Callable[[str], None] = lambda text: _log.warning("%s", text)
        # The digest of the workspace that a host has come to, as far as we were told.
        self.on_over: Callable[[ReloadPlan], None] = lambda plan: None
        self._node.partings.on_peer_down.append(self._on_peer_down)

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
            if self._turn is not None:
                self._turn.exempt |= {uid}
        # A fence that is up already would wait for it, while it waits for whoever pushes before it.
        self._agent.fences.exempt(uid)
        try:
            yield
        finally:
            with self._lock:
                self._pushing.remove(uid)

    # The steps.

    def prepare(self, plan: ReloadPlan, asker: Uid = "") -> ReloadOutcome:
        # An upgrade goes to the procs of one mesh, and no further down.
        return self.prepare_on(plan, None if plan.upgrade is None else (), asker=asker)

    def prepare_on(
        self,
        plan: ReloadPlan,
        targets: Sequence[ProcAddress] | None,
        here: Callable[[ReloadPlan], ReloadOutcome] | None = None,
        asker: Uid = "",
    ) -> ReloadOutcome:
        """Get ``plan`` ready in these procs, and here, in another way than theirs if given."""
        with self._lock:
            before = self._turn
            if before is not None and before.asker != asker:
                return ReloadOutcome(busy=f"{before.plan.author} pushes at this moment")
            turn = self._turn = Turn(plan, asker, targets)
            if plan.upgrade is None:
                self._look_ahead(plan)
        if before is not None:
            # Its author has begun anew without ending it.
            self.here.revert(before.generation)
            self._fencing.stay(before)
            self._fencing.end(before)
        self._fencing.prepare(turn)
        outcome = (here or self.here.prepare)(plan)
        self._fencing.hear_prepared(turn, outcome, _PREPARE_SECONDS)
        for proc in turn.replaced.values():
            outcome.refused += self._why_not_again(proc)
        return outcome

    def fence(
        self, generation: int, attempt: int, seconds: float, *, is_held: bool = False
    ) -> ReloadOutcome:
        turn = self._turn_of(generation)
        if turn is None:
            return self._nothing_prepared()
        self._exempt(turn)
        return self._fencing.from_here(turn, attempt, seconds, is_held)

    def fence_behind(
        self, sender: Uid, generation: int, attempt: int
    ) -> Callable[[], ReloadOutcome]:
        """Raise the fence at once, in the order of ``sender``; gives what waits for the rest."""
        turn = self._turn_of(generation)
        if turn is None:
            return self._nothing_prepared
        self._exempt(turn)
        return self._fencing.behind(turn, attempt, sender)

    def _exempt(self, turn: Turn) -> None:
        with self._lock:
            turn.exempt = frozenset(self._pushing)

    def lift(self, generation: int, attempt: int, seconds: float) -> ReloadOutcome:
        turn = self._turn_of(generation)
        return ReloadOutcome() if turn is None else self._fencing.lift(turn, attempt, seconds)

    def halt(self, generation: int, seconds: float) -> ReloadOutcome:
        turn = self._turn_of(generation)
        if turn is None or turn.stand is None:
            return self._nothing_prepared()
        turn.step = "halt"
        children = self._ask_step(turn, "halt", seconds)
        number = turn.stand.number
        halted: Promise[None] = Promise()
        self._agent.fences.halt(number, lambda: halted.set(None))
        outcome = ReloadOutcome()
        if not halted.wait(seconds):
            for cell in self._agent.fences.waiting_for(number):
                text = (
                    f"{cell.record.title} is busy with {cell.method!r}, which is not its owner's "
                    "call, and may wait for somebody who has stopped for the switch: nothing has "
                    "changed; push again"
                )
                outcome.late.append(RefusedFile(self.here.label, text))
        if not outcome.late:
            caught_up = self.here.catch_up(turn.generation)
            outcome.add(caught_up)
            outcome.is_replaced = caught_up.is_replaced
        giving_way: dict[Uid, ProcAddress] = {}
        gather(outcome, children, seconds + _PREPARE_SECONDS, self.here.label, giving_way)
        for uid in giving_way.keys() - turn.replaced.keys():
            # It has taken what was sent behind the fence, which is for the one after it.
            proc = turn.replaced[uid] = giving_way[uid]
            outcome.late.append(RefusedFile(self.here.label, f"{uid} is to give way to a new proc"))
            outcome.refused += self._why_not_again(proc)
        return outcome

    def resume(self, generation: int) -> None:
        """Go on as before the halt, behind the fences."""
        turn = self._turn_of(generation)
        if turn is not None and turn.stand is not None:
            self._step_all(turn, "resume")
            self._agent.fences.resume(turn.stand.number)

    def patch(self, generation: int, behind: Sequence[Uid] = ()) -> ReloadOutcome:
        turn = self._turn_of(generation)
        if turn is None:
            return self._nothing_prepared()
        turn.step = "patch"
        left = self._leave(turn, behind) if behind else []
        children = self._ask_step(turn, "patch", behind=behind)
        for child in left:
            child.answer.wait(_ANSWER_SECONDS)
        outcome = self.here.switch(generation, turn.exempt)
        return self._gather(outcome, children, _PATCH_SECONDS)

    def go(self, generation: int) -> ReloadOutcome:
        turn = self._turn_of(generation)
        if turn is None:
            return ReloadOutcome()
        self._step_all(turn, "go")
        self._close(turn)
        if turn.plan.upgrade is None:
            self._node.gate.why_behind = ""
            self.on_over(turn.plan)
        codes = self._agent.code_states.to_inherit()
        for proc in self._agent.owned_procs() if turn.plan.behind else ():
            if proc.host_uid in turn.plan.behind:
                self._node.send(proc, LeftBehind(codes))
        problems = replace_procs(self._node, list(turn.replaced.values()), codes)
        return ReloadOutcome(problems=problems)

    def left_behind(self, codes: tuple[HostCode, ...]) -> None:
        """A push could not come here: no call from here, or from what we own, may meet both."""
        self._agent.code_states.inherit(codes)
        for proc in self._agent.owned_procs():
            self._node.send(proc, LeftBehind(codes))

    def replaces_any(self, generation: int) -> bool:
        """Whether procs give way to new ones when all go on, which takes its time."""
        turn = self._turn_of(generation)
        return turn is not None and bool(turn.replaced)

    def revert(self, generation: int, asker: Uid = "") -> None:
        turn = self._turn
        if turn is not None and turn.asker != asker:
            return  # Somebody else's, who came first: ours has not begun.
        procs = self._agent.owned_procs() if generation > 0 else []
        if turn is not None and turn.targets is not None:
            procs = list(turn.targets)
        uid = self._node.uid
        if turn is not None:
            self._fencing.stay(turn)
        children = ask(self._node, procs, lambda port: Revert(generation, port, uid))
        self.here.revert(generation)
        if turn is not None:
            self._close(turn)
        for child in children:
            child.answer.wait(_ANSWER_SECONDS)

    # What they are made of.

    def _look_ahead(self, plan: ReloadPlan) -> None:
        """Calls that are sent from here on may arrive when the plan has been switched to."""
        states = self._agent.code_states
        if self._agent.is_root:
            plan.others = states.left_by(plan.family, plan.covers)
        states.expect(plan.code_change(self._agent.generation))

    def _turn_of(self, generation: int) -> Turn | None:
        turn = self._turn
        return turn if turn is not None and turn.generation == generation else None

    def _nothing_prepared(self) -> ReloadOutcome:
        return ReloadOutcome(refused=[RefusedFile(self.here.label, "nothing was prepared here")])

    def _close(self, turn: Turn) -> None:
        with self._lock:
            if self._turn is turn:
                self._turn = None
                self._agent.code_states.expect_nothing()
        self._fencing.end(turn)
        if turn.asker:
            self._node.lives.unexpect(turn.asker)

    def _why_not_again(self, proc: ProcAddress) -> list[RefusedFile]:
        """Actors in a proc that could not be made again."""
        return [
            RefusedFile(
                self.here.label,
                f"a proc needs a new process, but the arguments of {spawn.name} cannot be given "
                f"again: {spawn.num_bytes} bytes, of which {KEPT_BYTES} at most are kept; stop "
                "these actors, or pass large things to an endpoint",
            )
            for spawn in self._agent.kept_spawns.on(proc.uid)
            if spawn.data is None
        ]

    def _leave(self, turn: Turn, hosts: Sequence[Uid]) -> list[Asked]:
        """What we own on these hosts goes back to what it ran, and on with that."""
        uid, generation = self._node.uid, turn.generation
        left = [proc for proc in self._fencing.members(turn) if proc.host_uid in hosts]
        turn.plan.behind += hosts
        for proc in left:
            if turn.replaced.pop(proc.uid, None) is not None:
                self._agent.kept_spawns.release(proc.uid)
        return ask(self._node, left, lambda port: Revert(generation, port, uid))

    def _ask_step(
        self, turn: Turn, name: str, seconds: float = 0.0, behind: Sequence[Uid] = ()
    ) -> list[Asked]:
        uid, left = self._node.uid, tuple(behind)
        return ask(
            self._node, self._fencing.fenced(turn),
            lambda port: Step(turn.generation, name, seconds, port, uid, 0, left),
        )  # fmt: skip

    def _step_all(self, turn: Turn, name: str) -> None:
        step = Step(turn.generation, name, 0.0, 0, self._node.uid)
        # Who gives way is to end in an orderly way, on its old code.
        end = Step(turn.generation, "resume", 0.0, 0, self._node.uid)
        with self._node.casting:
            for proc in self._fencing.fenced(turn):
                self._node.send(proc, end if proc.uid in turn.replaced else step)

    def _gather(
        self, outcome: ReloadOutcome, children: Sequence[Asked], seconds: float
    ) -> ReloadOutcome:
        return gather(outcome, children, seconds, self.here.label)

    # What a change waits for, and who waits for it.

    def _tell(self, turn: Turn, text: str) -> None:
        # Whoever asked may be a process of ours, which is told by us, and tells us.
        if text in turn.told:
            return
        turn.told.add(text)
        if self._agent.is_root:
            self.on_waiting(text)
        if turn.asker:
            self._node.send(self._node.address_of(turn.asker), Waiting(turn.generation, text))

    def waits(self, generation: int, text: str) -> None:
        """A process below, or one of another client that we push to, waits for somebody."""
        turn = self._turn_of(generation)
        if turn is not None:
            self._tell(turn, text)
        elif self._agent.is_root:
            self.on_waiting(text)

    def held_up(self, generation: int, attempt: int) -> None:
        """Somebody waits behind the fence of a process below."""
        turn = self._turn_of(generation)
        if turn is not None:
            self._fencing.held_up(turn, attempt)

    def _on_peer_down(self, uid: Uid, down: ProcDown) -> None:
        self.author_gone(uid)

    def author_gone(self, uid: Uid) -> None:
        """Whoever pushed has died half-way: what it has begun is finished here, or taken back."""
        turn = self._turn
        if turn is None or turn.asker != uid or not uid:
            return
        if turn.plan.upgrade is not None:
            undo = lambda: self.revert(turn.generation, uid)  # noqa: E731
            threading.Thread(target=undo, name="monarch-abandoned", daemon=True).start()
            return
        if not self._agent.is_root:
            return
        turn.asker = f"{uid} (gone)"  # Nobody else takes it up.
        abandoned = Abandoned(
            self._node, turn.plan, turn.step, self,
            lambda: self.revert(turn.generation, turn.asker),
        )  # fmt: skip
        threading.Thread(target=abandoned.settle, name="monarch-abandoned", daemon=True).start()
