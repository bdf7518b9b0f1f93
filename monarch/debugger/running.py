"""Console commands for running ranks: show where they are, stop them, end their collectives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from monarch.core.collectives import Collective, mismatches
from monarch.core.grouping import group
from monarch.core.holds import named
from monarch.core.rank_sets import RanksType, in_ranges, is_in
from monarch.debugger.command_line import Typed
from monarch.debugger.screen import Screen
from monarch.debugger.visit import NO_ANSWER, SeenProc, Visit, chosen
from monarch.observe.hang_report import collective_of
from monarch.observe.stacks import ProcStacks, stacks_in_words
from monarch.wire.hold import HoldNote
from monarch.wire.message import AbortGroups, LookAtProc, PeekLine, StacksAsked, StopAt

_COLLECTIVES = ("torch/distributed/distributed_c10d.py", "torch/distributed/nn/functional.py")
# Places where torch waits in collectives that it began by itself, such as DDP's.
_HIDDEN = ("torch/autograd/graph.py", "torch/nn/parallel/distributed.py")
_ABORT_SECONDS = 20.0
_NO_COLLECTIVES = ("wrapper", "_wrapper", "<module>")


class RunningRanks:
    """The commands for all procs, whether they have held calls or not."""

    def __init__(self, visit: Visit, screen: Screen) -> None:
        self._visit = visit
        self._screen = screen

    def where(self, typed: Typed) -> None:
        """Print a row for each actor and rank, equal ones together, and mismatches of
        collectives."""
        procs = self._visit.procs()
        seen = states_of(self._visit, procs, typed.ranks)
        if not seen:
            chosen(procs, typed.ranks)  # Says which there are.
            self._screen.write("no actor runs there\n")
        holds = {(h.proc, h.actor): h for h in self._visit.holds() if h.is_waiting}
        seen, flights = self._in_flight(procs, seen)
        rows: dict[str, dict[int, str]] = {}
        for state in seen:
            hold = holds.get((state.proc, state.actor))
            rows.setdefault(state.actor, {})[state.rank] = (
                f"HELD at {hold.place} in {hold.function}"
                if hold
                else state.doing(holds.values(), flights.number(state))
            )
        for actor, told in rows.items():
            for one in group(told):
                self._screen.write(f"{actor} {one.who:<12}  {one.answer}\n")
        for text in flights.mismatches():
            self._screen.write(f"{text}\n")

    def _in_flight(
        self, procs: Sequence[SeenProc], seen: Sequence[ActorState]
    ) -> tuple[list[ActorState], Flights]:
        """Return ``seen`` and torch's records of collectives of ranks that are in one, or may be.

        States of ranks whose collective only torch knows are completed.
        """
        meshes = {proc.uid: proc.mesh for proc in procs}
        wanted = {meshes.get(one.proc) for one in seen if one.collective or one.may_be_in_one}
        asked = [proc for proc in procs if proc.mesh in wanted]
        answers = self._visit.ask_many(asked, LookAtProc(True, places=False))
        flights = Flights(
            {p.uid: (p.mesh, answers[p.uid].or_else({}).get("flight") or {}) for p in asked}
        )
        return [flights.named(state) for state in seen], flights

    def in_collectives(self, holds: Sequence[HoldNote]) -> str:
        """Return the other ranks of these held actors that are in a collective, in words; "" if
        none is."""
        held = {hold.proc for hold in self._visit.holds()}
        actors = {hold.actor for hold in holds}
        procs = self._visit.procs()
        seen = states_of(self._visit, procs, range(0, 2**62))
        others = [state for state in seen if state.actor in actors and state.proc not in held]
        others, flights = self._in_flight(procs, others)
        told: dict[tuple[str, str], list[int]] = {}
        for state in others:
            if not state.collective:
                continue
            what = f"{state.collective}{flights.number(state)}"
            told.setdefault((state.actor, what), []).append(state.rank)
        return " and ".join(f"{a} {in_ranges(of)} in {what}" for (a, what), of in told.items())

    def others(self, hold: HoldNote) -> str:
        """Return the running ranks of a held call's actor, and what they do, in a line."""
        procs = [proc for proc in self._visit.procs() if proc.uid != hold.proc]
        held = {one.proc for one in self._visit.holds() if one.is_waiting}
        seen, _ = self._in_flight(procs, states_of(self._visit, procs, range(0, 2**62)))
        on = [
            state
            for state in seen
            if state.actor == hold.actor and state.method and state.proc not in held
        ]
        if not on:
            return ""
        does = {state.rank: state.collective or state.method for state in on}
        told = "; ".join(f"{one.who} in {one.answer}" for one in group(does))
        return f"not held, and run on until they need this one: {told}"

    def stacks(self, typed: Typed) -> None:
        procs = chosen(self._visit.procs(), typed.ranks)
        lines = stacks_lines(self._visit, procs, with_locals=typed.is_flagged)
        self._screen.write("\n".join(lines) + "\n")

    def stop(self, typed: Typed) -> None:
        visit = self._visit
        who = visit.who.partition(":")[0]
        procs = chosen(self._visit.procs(), typed.ranks)
        answers = visit.ask_many(procs, StopAt("", who))
        told: dict[str, dict[int, str]] = {}
        for proc in procs:
            answer = answers[proc.uid]
            if answer.error:
                told.setdefault(proc.mesh, {})[proc.rank] = _why_not_stopped(answer.error)
            for actor, how in answer.or_else({}).items():
                text = (
                    "stops at its next line; where it waits in C, when that is over"
                    if how == "now"
                    else "stops at its next call"
                )
                told.setdefault(actor, {})[proc.rank] = text
        for actor, ranks in told.items():
            for one in group(ranks):
                self._screen.write(f"{actor} {one.who} {one.answer}\n")
        if not told:
            self._screen.write(
                "no actor of yours runs there; in a remote function on tensors, `break FILE:LINE` "
                "stops\n"
            )

    def abort(self, typed: Typed) -> None:
        """End the process groups of these ranks, and the connections between them and others."""
        visit = self._visit
        everybody = visit.procs()
        procs = chosen(everybody, typed.ranks)
        meshes = {proc.mesh for proc in procs}
        all_of = [proc for proc in everybody if proc.mesh in meshes]
        told = visit.ask_many(all_of, AbortGroups((), True))
        ends = {(there, here) for answer in told.values() for here, there in answer.or_else(())}
        mine = tuple(
            (here, there)
            for proc in procs
            for here, there in told[proc.uid].or_else(())
            if (here, there) in ends
        )
        answers = visit.ask_many(procs, AbortGroups(mine, False), _ABORT_SECONDS)
        done = {proc.rank: answers[proc.uid].error for proc in procs}
        for one in group(done):
            self._screen.write(
                f"{one.who} not aborted: {one.answer}\n"
                if one.answer
                else f"{one.who}: process groups ended, ranks that wait in one get an error; "
                "init_process_group makes new ones\n"
            )

    def call_of(self, actor: str, rank: int) -> ActorState | None:
        """Return the call that a rank runs, or ``None``."""
        seen = states_of(self._visit, self._visit.procs(), rank)
        return next((state for state in seen if state.actor == actor and state.method), None)

    def peek(self, state: ActorState) -> None:
        """Show the frames of a running call, which goes on."""
        number, doing = 0, state.doing(())
        self._screen.write(f"{state.actor} {state.rank} runs, and does not stand: {doing}\n")
        while True:
            try:
                line = self._screen.read("(peek) ", lambda text: ()).strip()
            except (EOFError, KeyboardInterrupt):
                self._screen.write("\n")
                return
            if line in ("detach", "q", "quit", "c", "continue"):
                return
            number += {"up": 1, "u": 1, "down": -1, "d": -1}.get(line, 0)
            number, text = self._peek_line(state, number, line)
            self._screen.write(text)

    def _peek_line(self, state: ActorState, number: int, line: str) -> tuple[int, str]:
        visit = self._visit
        peeked = visit.ask(state.proc, PeekLine(state.actor, number, line))
        return peeked.number, peeked.text

    def tell_missing(self, missing: Sequence[HoldNote]) -> None:
        """Print where the ranks are that have not stopped again, and for which others they wait."""
        wanted = {hold.proc for hold in missing}
        actors = {hold.actor for hold in missing}
        procs = [proc for proc in self._visit.procs() if proc.uid in wanted]
        held = [hold for hold in self._visit.holds() if hold.is_waiting]
        found, flights = self._in_flight(procs, states_of(self._visit, procs, range(0, 2**62)))
        for seen in found:
            if seen.actor in actors:
                doing = seen.doing(held, flights.number(seen))
                self._screen.write(f"{seen.actor} rank {seen.rank}: {doing}\n")
        if not found:
            self._screen.write(f"{named(missing)} has not stopped again yet\n")


class Flights:
    """The last collectives of procs, from torch's flight recorder; ``found`` has each mesh and
    record."""

    def __init__(self, found: Mapping[str, tuple[str, Mapping[str, Any]]]) -> None:
        self._pending: dict[str, Collective] = {}
        self._records: dict[str, dict[int, list[Collective]]] = {}
        for proc, (mesh, flight) in found.items():
            entries = [collective_of(e) for e in flight.get("entries", ()) if not e["is_p2p"]]
            if entries:
                self._records.setdefault(mesh, {})[int(flight["rank"])] = entries
                if not entries[-1].is_done:
                    self._pending[proc] = entries[-1]

    def number(self, state: ActorState) -> str:
        """Return the number of the collective that a rank is in, as `` #204``; "" if it is in
        none."""
        is_in_one = state.collective and state.proc in self._pending
        return f" #{self._pending[state.proc].seq}" if is_in_one else ""

    def named(self, state: ActorState) -> ActorState:
        """Return the state with the collective it is in, if only torch knows that."""
        if state.collective or not state.may_be_in_one or state.proc not in self._pending:
            return state
        return state._replace(collective=self._pending[state.proc].op)

    def mismatches(self) -> list[str]:
        """Return the mismatches of collectives, in words."""
        return [one.text for records in self._records.values() for one in mismatches(records)]


class ActorState(NamedTuple):
    """An actor at one moment: the user's innermost frame, and the collective it is in.

    ``may_be_in_one``: it is at a place where torch starts collectives by itself.
    """

    proc: str
    actor: str
    rank: int
    method: str
    place: str
    collective: str
    waits: bool
    may_be_in_one: bool = False

    def doing(self, held: Iterable[HoldNote], number: str = "") -> str:
        """Describe what the actor does, with the ranks that it waits for as far as they are known.

        ``number`` is its collective's.
        """
        if not self.method:
            return "idle"
        text = f"in {self.method}, {self.place}" if self.place else f"in {self.method}"
        if self.collective:
            before = [h for h in held if h.actor == self.actor and h.rank != self.rank]
            who = f": waits for {named(before)}, held before it" if before else ""
            return f"{text}, in {self.collective}{number}{who}"
        return f"{text}, waits for an answer" if self.waits else text


def states_of(visit: Visit, procs: Sequence[SeenProc], ranks: RanksType) -> list[ActorState]:
    """Return the states of the actors of these ranks, without monarch's own actors."""
    answers = visit.ask_many(procs, StacksAsked(False))
    found = []
    for proc in procs:
        for actor in answers[proc.uid].or_else({}).get("actors", ()):
            if not is_in(ranks, actor["rank"], actor["labels"], actor["sizes"]):
                continue
            frames = actor["frames"]
            users = [frame for frame in frames if frame["is_users"]]
            place = f"{users[-1]['file'].rpartition('/')[2]}:{users[-1]['line']}" if users else ""
            state = ActorState(
                proc=proc.uid,
                actor=actor["name"],
                rank=actor["rank"],
                method=actor["method"],
                place=place,
                collective=_collective(frames),
                waits=bool(actor["waits"]),
                may_be_in_one=any(str(frame["file"]).endswith(_HIDDEN) for frame in frames),
            )
            found.append(state)
    return sorted(found, key=lambda one: (one.actor, one.rank))


def _collective(frames: Sequence[dict[str, Any]]) -> str:
    for frame in frames:
        is_one = str(frame["file"]).endswith(_COLLECTIVES)
        if is_one and frame["function"] not in _NO_COLLECTIVES:
            return str(frame["function"]).rpartition(".")[2]
    return ""


def stacks_lines(visit: Visit, procs: Sequence[SeenProc], *, with_locals: bool) -> list[str]:
    """Return the stacks of all busy actors and of other threads as lines; equal ones are shown
    once."""
    answers = visit.ask_many(procs, StacksAsked(with_locals))
    found = [
        ProcStacks.of(proc.uid, proc.mesh, proc.rank, proc.pid, answers[proc.uid]) for proc in procs
    ]
    return stacks_in_words(found)


def _why_not_stopped(error: str) -> str:
    if error != NO_ANSWER:
        return f"not stopped: {error}"
    return (
        f"{error}: it is stopped, or a thread holds the GIL; it stops when it does. "
        "`monarch stacks --native` may show where it is"
    )
