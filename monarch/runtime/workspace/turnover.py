"""A process's part in a change of generation, and its part for the processes it owns.

Each step goes down the ownership tree: a process does its own share, and has every proc that it
spawned do the same. The fence travels in the owner's order, so all ranks switch between the same
two messages; the halt, the patch and the go follow when all ranks have come to the step before.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence

import msgspec

from monarch.runtime.answers import Outcome
from monarch.runtime.context import running
from monarch.runtime.kept_spawns import KEPT_BYTES
from monarch.runtime.proc_agent import ProcAgent
from monarch.runtime.promise import Promise
from monarch.runtime.workspace.abandoned import Abandoned
from monarch.runtime.workspace.local_reload import LocalReload
from monarch.runtime.workspace.reload_plan import RefusedFile, ReloadOutcome, ReloadPlan
from monarch.runtime.workspace.replacing import replace_procs
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.message import AnyMessage, Prepare, ProcDown, Revert, Step, Switch, Waiting

__all__ = ["Turnover"]

_log = logging.getLogger("monarch.reload")

_HALT_SECONDS = (0.5, 1.0, 2.0, 4.0)
_PREPARE_SECONDS = 300.0
_PATCH_SECONDS = 120.0
_ANSWER_SECONDS = 15.0
_TELL_SECONDS = (3.0, 10.0, 30.0)


class _Turn:
    """A change of generation that is under way here. ``asker`` is who pushes, if it is not us.

    ``targets`` are the procs that change with us: those that we own, where it is ``None``.
    ``replaced`` are those of them that give way to new ones.
    """

    def __init__(self, plan: ReloadPlan, asker: Uid, targets: Sequence[ProcAddress] | None) -> None:
        self.plan = plan
        self.generation = plan.generation
        self.asker = asker
        self.targets = targets
        self.replaced: dict[Uid, ProcAddress] = {}
        self.exempt: Uid = ""
        self.step = "prepare"
        self.prepared: set[Uid] = set()
        self.fenced: set[Uid] = set()


class Turnover:
    """The owner's side of a push: see ``Owner``. One at a time; who else pushes has to wait."""

    def __init__(self, agent: ProcAgent, here: LocalReload) -> None:
        self.here = here
        self._agent = agent
        self._node = agent.node
        self._turn: _Turn | None = None
        self._lock = threading.Lock()
        # Held by whoever changes the code of what we own from this process, from begin to end.
        self.alone = threading.Lock()
        # Told what the change waits for, when that takes seconds.
        self.on_waiting: Callable[[str], None] = lambda text: _log.warning("%s", text)
        # The digest of the workspace that a host has come to, as far as we were told.
        self.on_over: Callable[[ReloadPlan], None] = lambda plan: None
        self._node.partings.on_peer_down.append(self._on_peer_down)

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
            turn = self._turn = _Turn(plan, asker, targets)
        if before is not None:
            self._end(before)
        children = self._prepare_procs(turn, self._members(turn))
        outcome = (here or self.here.prepare)(plan)
        self._gather(outcome, children, _PREPARE_SECONDS, turn)
        for proc in turn.replaced.values():
            outcome.refused += self._why_not_again(proc)
        return outcome

    def fence(self, generation: int) -> ReloadOutcome:
        turn = self._turn_of(generation)
        if turn is None:
            return self._nothing_prepared()
        actor = running.get()
        turn.exempt = actor.record.uid if actor else ""
        reached: Promise[None] = Promise()
        uid = self._node.uid
        with self._node.casting:
            # One cast: nothing that we send comes between the procs' fences.
            children = self._fence_procs(turn, self._members(turn))
            self._agent.fences.raise_for(uid, generation, lambda: reached.set(None), turn.exempt)
        return self._stand(turn, reached, children)

    def fence_behind(self, sender: Uid, generation: int) -> Callable[[], ReloadOutcome]:
        """Raise the fences at once, in the order of ``sender``; gives what waits for them."""
        turn = self._turn_of(generation)
        if turn is None:
            return self._nothing_prepared
        reached: Promise[None] = Promise()
        with self._node.casting:
            children = self._fence_procs(turn, self._members(turn))
        self._agent.fences.raise_for(sender, generation, lambda: reached.set(None))
        return lambda: self._stand(turn, reached, children)

    def halt(self, generation: int) -> ReloadOutcome:
        outcome = ReloadOutcome()
        for seconds in _HALT_SECONDS:
            outcome = self.halt_within(generation, seconds)
            if not outcome.refused:
                break
            # Somebody waits for one that has stopped already; they may finish, and then again.
            self.resume(generation)
        return outcome

    def resume(self, generation: int) -> None:
        """Go on as before the halt, behind the fences."""
        turn = self._turn_of(generation)
        if turn is not None:
            self._step_all(turn, "resume")
            self._agent.fences.resume(generation)

    def patch(self, generation: int) -> ReloadOutcome:
        turn = self._turn_of(generation)
        if turn is None:
            return self._nothing_prepared()
        turn.step = "patch"
        children = self._ask_step(turn, "patch")
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
        return ReloadOutcome(problems=replace_procs(self._node, list(turn.replaced.values())))

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
        self._stay(turn)
        children = self._ask(procs, lambda port: Revert(generation, port, uid), b"")
        self.here.revert(generation)
        self._agent.fences.lift(generation)
        if turn is not None:
            self._close(turn)
        for _, child in children:
            child.wait(_ANSWER_SECONDS)

    def _stay(self, turn: _Turn | None) -> None:
        """Nobody gives way after all."""
        for uid in turn.replaced if turn is not None else ():
            self._agent.kept_spawns.release(uid)

    # What they are made of.

    def _turn_of(self, generation: int) -> _Turn | None:
        turn = self._turn
        return turn if turn is not None and turn.generation == generation else None

    def _nothing_prepared(self) -> ReloadOutcome:
        return ReloadOutcome(refused=[RefusedFile(self.here.label, "nothing was prepared here")])

    def _close(self, turn: _Turn) -> None:
        with self._lock:
            if self._turn is turn:
                self._turn = None
        self._agent.fences.lift(turn.generation)
        self._agent.spawn_gate.open()
        if turn.asker:
            self._node.lives.unexpect(turn.asker)

    def _end(self, turn: _Turn) -> None:
        """Its author has begun anew without ending it."""
        self._stay(turn)
        self.here.revert(turn.generation)
        self._agent.fences.lift(turn.generation)
        self._agent.spawn_gate.open()

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

    def _members(self, turn: _Turn) -> list[ProcAddress]:
        if turn.targets is not None:
            return list(turn.targets)
        behind = turn.plan.behind
        return [proc for proc in self._agent.owned_procs() if proc.host_uid not in behind]

    def _prepare_procs(
        self, turn: _Turn, procs: Sequence[ProcAddress]
    ) -> list[tuple[ProcAddress, Promise[Outcome]]]:
        plan, uid = turn.plan, self._node.uid
        turn.prepared.update(proc.uid for proc in procs)
        return self._ask(
            procs,
            lambda port: Prepare(plan.generation, plan.digest, plan.mode, port, uid),
            msgspec.msgpack.encode(plan) if procs else b"",
        )

    def _fence_procs(
        self, turn: _Turn, procs: Sequence[ProcAddress]
    ) -> list[tuple[ProcAddress, Promise[Outcome]]]:
        uid = self._node.uid
        late = self._prepare_procs(turn, [p for p in procs if p.uid not in turn.prepared])
        turn.fenced.update(proc.uid for proc in procs)
        staying = [proc for proc in procs if proc.uid not in turn.replaced]
        going = [proc for proc in procs if proc.uid in turn.replaced]
        for proc in going:
            self._agent.kept_spawns.hold(proc.uid)
        return [
            *late,
            *self._ask(staying, lambda port: Switch(turn.generation, port, uid), b""),
            *self._ask(going, lambda port: Switch(turn.generation, port, uid, True), b""),
        ]

    def _stand(
        self,
        turn: _Turn,
        reached: Promise[None],
        children: Sequence[tuple[ProcAddress, Promise[Outcome]]],
    ) -> ReloadOutcome:
        """Wait until all have come to the fence, those too that are spawned meanwhile."""
        self._await_fence(turn, reached)
        outcome = self._gather(ReloadOutcome(), children, None, turn)
        is_closed = False
        while not outcome.refused:
            late = [proc for proc in self._members(turn) if proc.uid not in turn.fenced]
            if late:
                with self._node.casting:
                    children = self._fence_procs(turn, late)
                self._gather(outcome, children, None, turn)
            elif is_closed:
                break
            else:
                self._agent.spawn_gate.close(turn.generation)
                is_closed = True
        turn.step = "fence"
        return outcome

    def _await_fence(self, turn: _Turn, reached: Promise[None]) -> None:
        waited, times = 0.0, [*_TELL_SECONDS]
        while not reached.wait(times[0] - waited):
            waited = times.pop(0)
            times = times or [waited + _TELL_SECONDS[-1]]
            busy = [
                f"{cell.record.title} (in {cell.method!r})" if cell.method else cell.record.title
                for cell in self._agent.fences.waiting_for(turn.generation)
            ]
            if busy and self._turn is turn:
                self._tell(
                    turn, f"generation {turn.generation} waits for {_few(busy)}, for {waited:g} s"
                )

    def halt_within(self, generation: int, seconds: float) -> ReloadOutcome:
        """One try to stop everybody."""
        turn = self._turn_of(generation)
        if turn is None:
            return self._nothing_prepared()
        turn.step = "halt"
        children = self._ask_step(turn, "halt", seconds)
        halted: Promise[None] = Promise()
        self._agent.fences.halt(turn.generation, lambda: halted.set(None))
        outcome = ReloadOutcome()
        if not halted.wait(seconds):
            for cell in self._agent.fences.waiting_for(turn.generation):
                text = (
                    f"{cell.record.title} is busy with {cell.method!r}, which is not its owner's "
                    "call, and may wait for somebody who has stopped for the switch: nothing has "
                    "changed; push again"
                )
                outcome.refused.append(RefusedFile(self.here.label, text))
        if not outcome.refused:
            outcome.add(self.here.catch_up(turn.generation))
        return self._gather(outcome, children, seconds + _PREPARE_SECONDS, turn)

    def _ask_step(
        self, turn: _Turn, name: str, seconds: float = 0.0
    ) -> list[tuple[ProcAddress, Promise[Outcome]]]:
        uid = self._node.uid
        procs = [proc for proc in self._members(turn) if proc.uid in turn.fenced]
        return self._ask(procs, lambda port: Step(turn.generation, name, seconds, port, uid), b"")

    def _step_all(self, turn: _Turn, name: str) -> None:
        step = Step(turn.generation, name, 0.0, 0, self._node.uid)
        # Who gives way is to end in an orderly way, on its old code.
        end = Step(turn.generation, "resume", 0.0, 0, self._node.uid)
        with self._node.casting:
            for proc in self._members(turn):
                if proc.uid in turn.fenced:
                    self._node.send(proc, end if proc.uid in turn.replaced else step)

    def _ask(
        self, procs: Iterable[ProcAddress], make: Callable[[int], AnyMessage], data: bytes
    ) -> list[tuple[ProcAddress, Promise[Outcome]]]:
        return [(proc, self._node.request(proc, make, data)) for proc in procs]

    def _gather(
        self,
        outcome: ReloadOutcome,
        children: Sequence[tuple[ProcAddress, Promise[Outcome]]],
        seconds: float | None,
        turn: _Turn | None = None,
    ) -> ReloadOutcome:
        """Add what the procs say to ``outcome``; ``turn`` notes which of them give way."""
        for proc, child in children:
            if not child.wait(seconds):
                text = f"the process {proc.uid} has not answered for {seconds:g} s"
                outcome.refused.append(RefusedFile(self.here.label, text))
            elif child.value.is_down:
                # It has no code to switch; its owner hears of its end elsewhere.
                _log.info("a proc has ended during a push: %s", child.value.error)
            elif child.value.error:
                outcome.refused.append(RefusedFile(proc.uid, child.value.error))
            else:
                said = msgspec.convert(child.value.body, ReloadOutcome)
                outcome.add(said)
                if said.is_replaced and turn is not None:
                    turn.replaced[proc.uid] = proc
        return outcome

    # What a change waits for, and who waits for it.

    def _tell(self, turn: _Turn, text: str) -> None:
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


def _few(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
