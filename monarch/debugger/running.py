"""What a console asks of ranks that run: where they are, and to stop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from monarch.core.grouping import group
from monarch.core.holds import named
from monarch.core.rank_sets import RanksType, in_ranges, is_in
from monarch.debugger.command_line import BreakOrder, Typed, parse_break
from monarch.debugger.screen import Screen
from monarch.debugger.visit import NotAnswered, SeenProc, Visit
from monarch.observe.stacks import ProcStacks, stacks_in_words
from monarch.wire.hold import HoldNote
from monarch.wire.message import BreakPlace, PeekLine, StacksAsked, StopAt

_COLLECTIVES = ("torch/distributed/distributed_c10d.py", "torch/distributed/nn/functional.py")
_NO_COLLECTIVES = ("wrapper", "_wrapper", "<module>")


class RunningRanks:
    """The commands for all procs, whether something stands there or not."""

    def __init__(self, visit: Visit, screen: Screen) -> None:
        self._visit = visit
        self._screen = screen
        self._breaks: dict[int, BreakOrder] = {}

    def where(self, typed: Typed) -> None:
        """One row for each actor and rank; equal ones together."""
        procs = self._chosen(typed.ranks)
        holds = {(h.proc, h.actor): h for h in self._visit.holds() if h.is_waiting}
        rows: dict[str, dict[int, str]] = {}
        for seen in states_of(self._visit, procs, typed.ranks):
            hold = holds.get((seen.proc, seen.actor))
            rows.setdefault(seen.actor, {})[seen.rank] = (
                f"HELD at {hold.place} in {hold.function}" if hold else seen.doing(holds.values())
            )
        if not rows:
            self._screen.write("no actor runs there\n")
        for actor, told in rows.items():
            for one in group(told):
                self._screen.write(f"{actor} {one.who:<12}  {one.answer}\n")

    def stacks(self, typed: Typed) -> None:
        procs = self._chosen(typed.ranks)
        lines = stacks_lines(self._visit, procs, with_locals=typed.is_flagged)
        self._screen.write("\n".join(lines) + "\n")

    def stop(self, typed: Typed) -> None:
        visit = self._visit
        who = visit.who.partition(":")[0]
        procs = self._chosen(typed.ranks)
        answers = visit.ask_many(procs, lambda port: StopAt("", who, port, visit.uid))
        told: dict[str, dict[int, str]] = {}
        for proc in procs:
            answer = answers[proc.uid]
            if "error" in answer:
                told.setdefault(proc.mesh, {})[proc.rank] = f"not stopped: {answer['error']}"
            for actor, how in answer.get("how", {}).items():
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
            self._screen.write("no actor runs there\n")

    def break_at(self, typed: Typed) -> None:
        word, _, rest = typed.text.partition(" ")
        if not typed.text:
            for number, order in self._breaks.items():
                self._screen.write(f"{number}  {_told(order)}\n")
            if not self._breaks:
                self._screen.write("no breakpoint is set here: break FILE:LINE\n")
        elif word == "clear":
            self._clear(rest.strip())
        else:
            order = parse_break(typed.text)
            number = max(self._breaks, default=0) + 1
            texts = self._send(number, order, is_gone=False)
            self._breaks[number] = order
            line = next((text for text in texts if text), "")
            note = f": {line}" if line else ", where that file is imported"
            self._screen.write(f"{number}  {_told(order)}, on {len(texts)} procs{note}\n")

    def _clear(self, text: str) -> None:
        numbers = [int(text)] if text.isdigit() else list(self._breaks)
        if not set(numbers) <= set(self._breaks) or (text and not text.isdigit()):
            raise NotAnswered(f"there is no breakpoint {text}")
        for number in numbers:
            self._send(number, self._breaks.pop(number), is_gone=True)
        self._screen.write(f"{len(numbers)} taken away\n")

    def _send(self, number: int, order: BreakOrder, *, is_gone: bool) -> list[str]:
        visit = self._visit
        at, line, condition, ranks = order
        # Several consoles number theirs apart.
        own = number + int(visit.who.rpartition(":")[2] or 0) * 1000
        procs = self._chosen(ranks)
        answers = visit.ask_many(
            procs,
            lambda port: BreakPlace(own, at, line, condition, is_gone, port, visit.uid),
        )
        return [str(answer.get("text", "")) for answer in answers.values()]

    def peek(self, actor: str, rank: int) -> bool:
        """Look at the frames of a call that runs, and goes on; false where none does."""
        visit = self._visit
        procs = [proc for proc in visit.procs() if proc.rank == rank]
        found = [s for s in states_of(visit, procs, rank) if s.actor == actor and s.method]
        if not found:
            return False
        state, number = found[0], 0
        self._screen.write(f"{actor} {rank} runs, and does not stand: {state.doing(())}\n")
        while True:
            try:
                line = self._screen.read("(peek) ", lambda text: ()).strip()
            except (EOFError, KeyboardInterrupt):
                self._screen.write("\n")
                return True
            if line in ("detach", "q", "quit", "c", "continue"):
                return True
            number += {"up": 1, "u": 1, "down": -1, "d": -1}.get(line, 0)
            number = max(0, number)
            text = self._peek_line(state, number, line)
            self._screen.write(text)

    def _peek_line(self, state: ActorState, number: int, line: str) -> str:
        visit = self._visit
        body = visit.ask(
            state.proc, lambda port: PeekLine(state.actor, number, line, port, visit.uid)
        )
        return str(body["text"])

    def tell_missing(self, missing: Sequence[HoldNote]) -> None:
        """These have not stopped again: where they are, and whom they wait for."""
        wanted = {hold.proc for hold in missing}
        actors = {hold.actor for hold in missing}
        procs = [proc for proc in self._visit.procs() if proc.uid in wanted]
        held = [hold for hold in self._visit.holds() if hold.is_waiting]
        found = states_of(self._visit, procs, range(0, 2**62))
        for seen in found:
            if seen.actor in actors:
                self._screen.write(f"{seen.actor} rank {seen.rank}: {seen.doing(held)}\n")
        if not found:
            self._screen.write(f"{named(missing)} has not stopped again yet\n")

    def _chosen(self, ranks: RanksType) -> list[SeenProc]:
        everybody = self._visit.procs()
        if isinstance(ranks, dict):
            return everybody  # Dimensions are of actors, and looked at there.
        procs = [proc for proc in everybody if is_in(ranks, proc.rank)]
        if not procs:
            there = in_ranges(proc.rank for proc in everybody)
            raise NotAnswered(f"that is no rank of those that run: {there or 'none does'}")
        return procs


class ActorState(NamedTuple):
    """An actor at one moment: its innermost frame of the user's, and the collective it is in."""

    proc: str
    actor: str
    rank: int
    method: str
    place: str
    collective: str
    waits: bool

    def doing(self, held: Iterable[HoldNote]) -> str:
        """In words, with whom it waits for as far as that is known."""
        if not self.method:
            return "idle"
        text = f"in {self.method}, {self.place}" if self.place else f"in {self.method}"
        if self.collective:
            before = [h for h in held if h.actor == self.actor and h.rank != self.rank]
            who = f": waits for {named(before)}, held before it" if before else ""
            return f"{text}, in {self.collective}{who}"
        return f"{text}, waits for an answer" if self.waits else text


def states_of(visit: Visit, procs: Sequence[SeenProc], ranks: RanksType) -> list[ActorState]:
    """Of the actors of these ranks, but for ours."""
    answers = visit.ask_many(procs, lambda port: StacksAsked(False, port, visit.uid))
    found = []
    for proc in procs:
        for actor in answers[proc.uid].get("actors", ()):
            if not is_in(ranks, actor["rank"], actor["labels"], actor["sizes"]):
                continue
            frames = actor["frames"]
            users = [frame for frame in frames if frame["is_users"]]
            place = f"{users[-1]['file'].rpartition('/')[2]}:{users[-1]['line']}" if users else ""
            state = ActorState(
                proc.uid, actor["name"], actor["rank"], actor["method"], place,
                _collective(frames), bool(actor["waits"]),
            )  # fmt: skip
            found.append(state)
    return sorted(found, key=lambda one: (one.actor, one.rank))


def _collective(frames: Sequence[dict[str, Any]]) -> str:
    for frame in frames:
        is_one = str(frame["file"]).endswith(_COLLECTIVES)
        if is_one and frame["function"] not in _NO_COLLECTIVES:
            return str(frame["function"]).rpartition(".")[2]
    return ""


def stacks_lines(visit: Visit, procs: Sequence[SeenProc], *, with_locals: bool) -> list[str]:
    """Of all actors that do something, and of the other threads; equal stacks are shown once."""
    answers = visit.ask_many(procs, lambda port: StacksAsked(with_locals, port, visit.uid))
    found = [
        ProcStacks(proc.uid, proc.mesh, proc.rank, proc.pid, answers[proc.uid]) for proc in procs
    ]
    return stacks_in_words(found)


def _told(order: BreakOrder) -> str:
    condition = f" if {order.condition}" if order.condition else ""
    return f"{order.file}:{order.line}{condition}"
