"""The fence of a change of generation: cast down the ownership tree, and given up again.

A process's own actors come to it first, and then the procs that it spawned: an actor that steps
them within an endpoint needs them until it is done. Whoever asked for the fence gives it up when
it holds somebody up for whom others wait (see ``standstill``), and casts another.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from monarch.runtime.procs.proc_agent import ProcAgent
from monarch.runtime.workspace.reload_plan import RefusedFile, ReloadOutcome
from monarch.runtime.workspace.turnovers.procs_asked import Asked, ask, gather
from monarch.runtime.workspace.turnovers.stand import Stand
from monarch.runtime.workspace.turnovers.telling import Telling
from monarch.runtime.workspace.turnovers.turn import Turn
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.message import HeldUp, Prepare, Step, Switch

__all__ = ["Fencing"]


class Fencing:
    """``tell`` takes what a change waits for, in words; ``label`` names this process."""

    def __init__(self, agent: ProcAgent, label: str, tell: Callable[[Turn, str], None]) -> None:
        self._agent = agent
        self._node = agent.node
        self._label = label
        self._tell = tell

    def members(self, turn: Turn) -> list[ProcAddress]:
        """The procs that change with us."""
        if turn.targets is not None:
            return list(turn.targets)
        behind = turn.plan.behind
        return [proc for proc in self._agent.owned_procs() if proc.host_uid not in behind]

    def fenced(self, turn: Turn) -> list[ProcAddress]:
        """Those of them that were sent the last fence."""
        fenced = turn.stand.fenced if turn.stand is not None else ()
        return [proc for proc in self.members(turn) if proc.uid in fenced]

    def prepare(self, turn: Turn) -> None:
        """Have those get ready that have not been asked to yet."""
        plan, uid = turn.plan, self._node.uid
        new = [proc for proc in self.members(turn) if proc.uid not in turn.prepared]
        turn.prepared.update(proc.uid for proc in new)
        turn.preparing += ask(
            self._node, new,
            lambda port: Prepare(plan.generation, plan.digest, plan.mode, port, uid),
            plan.encode() if new else b"",
        )  # fmt: skip

    def hear_prepared(self, turn: Turn, outcome: ReloadOutcome, seconds: float) -> None:
        """Take in what they say who were asked."""
        preparing, turn.preparing = turn.preparing, []
        gather(outcome, preparing, seconds, self._label, turn.replaced)

    def from_here(self, turn: Turn, attempt: int, seconds: float, is_held: bool) -> ReloadOutcome:
        """Cast the fence in our own order, and wait until all stand at it, or it is given up.

        It is cast only when those are up that were spawned meanwhile. See ``Stand.wait``.
        """
        stand, outcome, uid = self._begin(turn, attempt), ReloadOutcome(), self._node.uid
        if self._await_prepared(turn, stand, outcome, seconds):
            # Our calls to our own actors wait behind it, too.
            stand.fenced.add(uid)
            stand.own.on_set(lambda: stand.come(uid))
            with self._node.casting:
                self._raise(turn, stand, uid)
            if is_held:
                stand.hold()
            self._stand_all(turn, stand, outcome, seconds)
        return outcome

    def behind(self, turn: Turn, attempt: int, sender: Uid) -> Callable[[], ReloadOutcome]:
        """Raise the fence at once, in the order of ``sender``; gives what waits for the rest."""
        with self._node.casting:
            if attempt <= turn.num_lifted:
                return ReloadOutcome
            stand = self._begin(turn, attempt)
            to, held = self._node.address_of(sender), HeldUp(turn.generation, attempt)
            stand.held.on_set(lambda: self._node.send(to, held))
            self._raise(turn, stand, sender)

        def stand_all() -> ReloadOutcome:
            outcome = ReloadOutcome()
            self._stand_all(turn, stand, outcome, None)
            if stand.given_up.is_set:
                # The answer says that all have come past it.
                stand.is_passed(None)
            return outcome

        return stand_all

    def lift(self, turn: Turn, attempt: int, seconds: float) -> ReloadOutcome:
        """Give a fence up: all go on as before it, and those who come to it later pass.

        Late are those who have not come to it in ``seconds``, if they are waited for.
        """
        outcome = ReloadOutcome()
        with self._node.casting:
            turn.num_lifted = max(turn.num_lifted, attempt)
            stand = turn.stand
            if stand is None or stand.attempt != attempt:
                return outcome
            if not stand.given_up.is_set:
                stand.given_up.set(None)
                step = Step(turn.generation, "lift", 0.0, 0, self._node.uid, attempt)
                for proc in self.fenced(turn):
                    self._node.send(proc, step)
                self.stay(turn)
                self._agent.fences.give_up(stand.number)
                turn.step = "fence"
        self._let_spawn()
        if seconds and not stand.is_passed(seconds):
            outcome.late.append(self._late("not all have come to a fence that was given up"))
        return outcome

    def held_up(self, turn: Turn, attempt: int) -> None:
        """Somebody waits behind the fence of a process below."""
        if turn.stand is not None and turn.stand.attempt == attempt:
            turn.stand.hold()

    def stay(self, turn: Turn) -> None:
        """Nobody gives way to a new proc now."""
        for uid in turn.replaced:
            self._agent.kept_spawns.release(uid)

    def end(self, turn: Turn) -> None:
        """The change of generation is over: nobody stands any longer."""
        if turn.stand is not None:
            turn.stand.drop()
            self._agent.fences.lift(turn.stand.number)
        self._let_spawn()

    def _begin(self, turn: Turn, attempt: int) -> Stand:
        """A new fence. The one before says nothing any more."""
        if turn.telling is None:
            turn.telling = Telling(
                turn.generation, lambda: self._busy(turn), lambda text: self._tell(turn, text)
            )
        if turn.stand is not None:
            turn.stand.drop()
        stand = turn.stand = Stand(attempt, turn.telling, self._agent.fences.holds_up_any)
        self._agent.spawn_gate.on_held = stand.hold
        behind = self._node.outgoing.behind_fence
        behind.watch(stand.sent, stand.hold)
        stand.held.on_set(behind.forget)
        return stand

    def _raise(self, turn: Turn, stand: Stand, sender: Uid) -> None:
        stand.number = self._agent.fences.raise_for(
            sender, lambda: stand.own.set(None), lambda: turn.exempt
        )

    def _await_prepared(
        self, turn: Turn, stand: Stand, outcome: ReloadOutcome, seconds: float | None
    ) -> bool:
        """Get those ready that were spawned meanwhile: they must know what the fence is for."""
        self.prepare(turn)
        if turn.preparing:
            if not stand.wait([asked.answer for asked in turn.preparing], seconds):
                outcome.late.append(self._late("a new proc is not up yet"))
                return False
            self.hear_prepared(turn, outcome, 0.0)
        return not outcome.refused

    def _stand_all(
        self, turn: Turn, stand: Stand, outcome: ReloadOutcome, seconds: float | None
    ) -> None:
        """Wait until all have come to the fence, those too that are spawned meanwhile."""
        if not stand.wait([stand.own], seconds):
            outcome.late.append(self._late("not all actors have come to the fence"))
            return
        is_closed = False
        while True:
            late = [proc for proc in self.members(turn) if proc.uid not in stand.fenced]
            if late:
                if not self._await_prepared(turn, stand, outcome, seconds):
                    return
                asked = self._cast(turn, stand, late)
                if not stand.wait([one.answer for one in asked], seconds):
                    outcome.late.append(self._late("not all procs have come to the fence"))
                    return
                if gather(outcome, asked, 0.0, self._label, turn.replaced).refused:
                    return
            elif is_closed:
                turn.step = "fence"
                return
            else:
                gate = self._agent.spawn_gate
                gate.close(turn.generation, lambda: stand.given_up.is_set)
                is_closed = True

    def _cast(self, turn: Turn, stand: Stand, procs: Sequence[ProcAddress]) -> list[Asked]:
        """One cast: nothing that we send comes between the procs' fences."""
        number, attempt, uid = turn.generation, stand.attempt, self._node.uid
        with self._node.casting:
            if stand.given_up.is_set:
                return []
            stand.fenced.update(proc.uid for proc in procs)
            staying = [proc for proc in procs if proc.uid not in turn.replaced]
            going = [proc for proc in procs if proc.uid in turn.replaced]
            for proc in going:
                self._agent.kept_spawns.hold(proc.uid)
            asked = [
                *ask(self._node, staying, lambda p: Switch(number, p, uid, False, attempt)),
                *ask(self._node, going, lambda p: Switch(number, p, uid, True, attempt)),
            ]
            stand.asked += asked
        for proc, answer in asked:
            answer.on_set(functools.partial(stand.come, proc.uid))
        return asked

    def _let_spawn(self) -> None:
        self._agent.spawn_gate.open()
        self._node.outgoing.behind_fence.forget()

    def _busy(self, turn: Turn) -> list[str]:
        cells = self._agent.fences.waiting_for(turn.stand.number) if turn.stand is not None else []
        return [
            f"{cell.record.title} (in {cell.method!r})" if cell.method else cell.record.title
            for cell in cells
        ]

    def _late(self, text: str) -> RefusedFile:
        return RefusedFile(self._label, text)
