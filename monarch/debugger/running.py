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
from monarch.net.machine import user_name
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
        states = states_of(self._visit, procs, typed.ranks)
        holds = [hold for hold in self._visit.holds() if hold.is_waiting]
        rows: dict[str, dict[int, str]] = {}
        for hold in holds:
            if is_in(typed.ranks, hold.rank, hold.labels, hold.sizes):
                rows.setdefault(hold.actor, {})[hold.rank] = (
                    f"HELD at {hold.place} in {hold.function}"
                )
        if not states and not rows:
            chosen(procs, typed.ranks)  # Says which there are.
            self._screen.write("no actor runs there\n")
        states, flights = self._in_flight(procs, states)
        for state in states:
            doing = state.doing(holds, flights.number(state))
            rows.setdefault(state.actor, {}).setdefault(state.rank, doing)
        for actor, by_rank in sorted(rows.items()):
            for ranks in group(by_rank):
                self._screen.write(f"{actor} {ranks.who:<12}  {ranks.answer}\n")
        for text in flights.mismatches():
            self._screen.write(f"{text}\n")

    def _in_flight(
        self, procs: Sequence[SeenProc], states: Sequence[ActorState]
    ) -> tuple[list[ActorState], Flights]:
        """Return the states, and torch's records of collectives in the meshes of ranks that may be
        in one.

        A state that does not name its rank's collective gets the name from these records.
        """
        meshes = {proc.uid: proc.mesh for proc in procs}
        mesh_names = {
            meshes.get(actor.proc) for actor in states if actor.collective or actor.may_be_in_one
        }
        procs_to_ask = [proc for proc in procs if proc.mesh in mesh_names]
        answers = self._visit.ask_many(procs_to_ask, LookAtProc(True, places=False))
        flights = Flights(
            {p.uid: (p.mesh, answers[p.uid].or_else({}).get("flight") or {}) for p in procs_to_ask}
        )
        return [flights.named(state) for state in states], flights

    def in_collectives(self, holds: Sequence[HoldNote]) -> str:
        """Return the other ranks of these held actors that are in a collective, in words; "" if
        none is."""
        held = {hold.proc for hold in self._visit.holds()}
        actors = {hold.actor for hold in holds}
        procs = self._visit.procs()
        states = states_of(self._visit, procs, range(0, 2**62))
        others = [state for state in states if state.actor in actors and state.proc not in held]
        others, flights = self._in_flight(procs, others)
        waits: dict[tuple[str, str], list[int]] = {}
        for state in others:
            if not state.collective:
                continue
            collective = f"{state.collective}{flights.number(state)}"
            waits.setdefault((state.actor, collective), []).append(state.rank)
        return " and ".join(
            f"{actor} {in_ranges(ranks)} in {collective}"
            for (actor, collective), ranks in waits.items()
        )

    def others(self, hold: HoldNote) -> str:
        """Return the running ranks of a held call's actor, and what they do, in a line."""
        procs = [proc for proc in self._visit.procs() if proc.uid != hold.proc]
        held = {other.proc for other in self._visit.holds() if other.is_waiting}
        states, _ = self._in_flight(procs, states_of(self._visit, procs, range(0, 2**62)))
        running = [
            state
            for state in states
            if state.actor == hold.actor and state.method and state.proc not in held
        ]
        if not running:
            return ""
        does = {state.rank: state.collective or state.method for state in running}
        listing = "; ".join(f"{ranks.who} in {ranks.answer}" for ranks in group(does))
        return f"not held, and run on until they need this one: {listing}"

    def stacks(self, typed: Typed) -> None:
        procs = chosen(self._visit.procs(), typed.ranks)
        lines = stacks_lines(self._visit, procs, with_locals=typed.is_flagged)
        self._screen.write("\n".join(lines) + "\n")

    def stop(self, typed: Typed) -> None:
        visit = self._visit
        procs = chosen(self._visit.procs(), typed.ranks)
        answers = visit.ask_many(procs, StopAt("", user_name()))
        texts: dict[str, dict[int, str]] = {}
        for proc in procs:
            answer = answers[proc.uid]
            if answer.error:
                texts.setdefault(proc.mesh, {})[proc.rank] = _why_not_stopped(answer.error)
            for actor, mode in answer.or_else({}).items():
                text = (
                    "stops at its next line; where it waits in C, when that is over"
                    if mode == "now"
                    else "stops at its next call"
                )
                texts.setdefault(actor, {})[proc.rank] = text
        for actor, by_rank in texts.items():
            for same in group(by_rank):
                self._screen.write(f"{actor} {same.who} {same.answer}\n")
        if not texts:
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
        procs_of_meshes = [proc for proc in everybody if proc.mesh in meshes]
        groups_of = visit.ask_many(procs_of_meshes, AbortGroups((), True))
        ends = {(peer, own) for answer in groups_of.values() for own, peer in answer.or_else(())}
        ends_of_chosen = tuple(
            (own, peer)
            for proc in procs
            for own, peer in groups_of[proc.uid].or_else(())
            if (own, peer) in ends
        )
        answers = visit.ask_many(procs, AbortGroups(ends_of_chosen, False), _ABORT_SECONDS)
        errors = {proc.rank: answers[proc.uid].error for proc in procs}
        for ranks in group(errors):
            self._screen.write(
                f"{ranks.who} not aborted: {ranks.answer}\n"
                if ranks.answer
                else f"{ranks.who}: process groups ended, ranks that wait in one get an error; "
                "init_process_group makes new ones\n"
            )

    def call_of(self, actor: str, rank: int) -> ActorState | None:
        """Return the call that a rank of ``actor`` runs; ``None`` if it runs none."""
        states = states_of(self._visit, self._visit.procs(), rank)
        return next((state for state in states if state.actor == actor and state.method), None)

    def peek(self, state: ActorState) -> None:
        """Show the frames of a running call, which goes on."""
        number, doing = 0, state.doing(())
        self._screen.write(f"{state.actor} {state.rank} runs, and is not held: {doing}\n")
        while True:
            try:
                line = self._screen.read("(peek) ", lambda text: ()).strip()
            except (EOFError, KeyboardInterrupt):
                self._screen.write("\n")
                return
            if line in ("detach", "q", "quit", "c", "continue"):
                return
            number += {"up": 1, "u": 1, "down": -1, "d": -1}.get(line, 0)
            peeked = self._visit.ask(state.proc, PeekLine(state.actor, number, line))
            number = peeked.number
            self._screen.write(peeked.text)

    def tell_missing(self, missing: Sequence[HoldNote]) -> None:
        """Print what the ranks do that have not stopped again, and which ranks they wait for."""
        uids = {hold.proc for hold in missing}
        actors = {hold.actor for hold in missing}
        procs = [proc for proc in self._visit.procs() if proc.uid in uids]
        held = [hold for hold in self._visit.holds() if hold.is_waiting]
        states, flights = self._in_flight(procs, states_of(self._visit, procs, range(0, 2**62)))
        for state in states:
            if state.actor in actors or state.error:
                doing = state.doing(held, flights.number(state))
                self._screen.write(f"{state.actor} rank {state.rank}: {doing}\n")
        if not states:
            self._screen.write(f"{named(missing)} has not stopped again yet\n")


class Flights:
    """The last collectives of procs, from torch's flight recorder.

    It is made from each proc's mesh and record, by uid.
    """

    def __init__(self, flights: Mapping[str, tuple[str, Mapping[str, Any]]]) -> None:
        self._pending: dict[str, Collective] = {}
        self._records: dict[str, dict[int, list[Collective]]] = {}
        for proc, (mesh, flight) in flights.items():
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
        """Return the state, with the collective that only torch's records show, if there is one."""
        if state.collective or not state.may_be_in_one or state.proc not in self._pending:
            return state
        return state._replace(collective=self._pending[state.proc].op)

    def mismatches(self) -> list[str]:
        """Return the mismatches of collectives, in words."""
        return [m.text for records in self._records.values() for m in mismatches(records)]


class ActorState(NamedTuple):
    """An actor at one moment: the user's innermost frame, and the collective it is in.

    ``may_be_in_one``: it is at a place where torch starts collectives by itself. For a proc that
    does not answer, ``actor`` is its mesh, and ``error`` says why nothing else is known.
    """

    proc: str
    actor: str
    rank: int
    method: str
    place: str
    collective: str = ""
    waits: bool = False
    may_be_in_one: bool = False
    error: str = ""

    def doing(self, held: Iterable[HoldNote], number: str = "") -> str:
        """Describe what the actor does, with the ranks that it waits for as far as they are known.

        ``number`` is its collective's.
        """
        if self.error:
            return self.error
        if not self.method:
            return "idle"
        text = f"in {self.method}, {self.place}" if self.place else f"in {self.method}"
        if self.collective:
            held_before = [h for h in held if h.actor == self.actor and h.rank != self.rank]
            waits_for = f": waits for {named(held_before)}, held before it" if held_before else ""
            return f"{text}, in {self.collective}{number}{waits_for}"
        return f"{text}, waits for an answer" if self.waits else text


def states_of(visit: Visit, procs: Sequence[SeenProc], ranks: RanksType) -> list[ActorState]:
    """Return the states of the actors of these ranks, without monarch's own actors, and of procs
    that do not answer."""
    answers = visit.ask_many(procs, StacksAsked(False))
    states = []
    for proc in procs:
        answer = answers[proc.uid]
        if answer.error and is_in(ranks, proc.rank, proc.labels, proc.sizes):
            error = _why_silent(answer.error)
            states.append(ActorState(proc.uid, proc.mesh, proc.rank, "", "", error=error))
        for actor in answer.or_else({}).get("actors", ()):
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
            states.append(state)
    return sorted(states, key=lambda s: (s.actor, s.rank))


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
    stacks = [
        ProcStacks.of(proc.uid, proc.mesh, proc.rank, proc.pid, answers[proc.uid]) for proc in procs
    ]
    return stacks_in_words(stacks)


def _why_not_stopped(error: str) -> str:
    if error != NO_ANSWER:
        return f"not stopped: {error}"
    return (
        f"{error}: it is stopped, or a thread holds the GIL; it stops when it does. "
        "`monarch stacks --native` may show where it is"
    )


def _why_silent(error: str) -> str:
    return f"{error}: it is stopped, or a thread holds the GIL" if error == NO_ANSWER else error
