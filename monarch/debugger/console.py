"""``monarch debug``: the console for held calls of all procs that this user may visit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from monarch.core.grouping import SameAnswer, group, table
from monarch.core.holds import named
from monarch.core.rank_sets import RanksType, is_in, unknown_dims
from monarch.debugger.attachment import PDB_PROMPT, Attachment
from monarch.debugger.breakpoints import Breakpoints
from monarch.debugger.command_line import BANNER, COMMANDS, HELP, PROMPT, Typed, parse_line
from monarch.debugger.holds_table import holds_table
from monarch.debugger.running import RunningRanks
from monarch.debugger.screen import ReadInterrupted, Screen
from monarch.debugger.visit import NotAnswered, Visit
from monarch.wire.hold import HoldNote, LostHold
from monarch.wire.message import HoldLine, HoldOutput, HoldText

_STEP_SECONDS = 1.0
_REDO_SECONDS = 10.0


class Console:
    """Runs commands until `quit`, or the end of the input. Held calls stay held afterwards.

    Calls that continue have ``step_seconds`` to stop again, so that they are shown together.
    """

    def __init__(self, visit: Visit, screen: Screen, step_seconds: float = _STEP_SECONDS) -> None:
        self._visit = visit
        self._screen = screen
        self._step_seconds = step_seconds
        self._running = RunningRanks(visit, screen)
        self._breakpoints = Breakpoints(visit, screen)
        self._last_holds: list[HoldNote] = []
        self._is_together = False

    def run(self, actor: str = "", rank: int = 0) -> None:
        """Run the console; if ``actor`` is named, attach to its rank first.

        Raises ``NotAnswered`` if that rank neither is held nor runs a call.
        """
        attach = self._way_in(actor, rank) if actor else None
        self._screen.write(BANNER)
        if attach is not None:
            self._carry_out(attach)
        while True:
            prompt = "together> " if self._is_together else PROMPT
            try:
                line = self._screen.read(prompt, self._complete)
            except KeyboardInterrupt:
                if not self._screen.is_terminal:
                    raise
                continue
            except (EOFError, ReadInterrupted):
                self._screen.write("\n")
                return
            if not self._obey(line):
                return

    def toolbar(self) -> str:
        """Return the number of held calls, as a line."""
        waiting = [hold for hold in self._last_holds if hold.is_waiting]
        return f"held {len(waiting)}" + (f" of {len(self._last_holds)}" if self._last_holds else "")

    def _obey(self, line: str) -> bool:
        """Run a line; return False to leave."""
        if not line.strip():
            return True
        typed = parse_line(line)
        if self._is_together and typed.name not in ("alone", "quit", "list", "where", "help"):
            self._carry_out(lambda: self._tell_all(self._waiting(), line.strip()))
            return True
        if typed.error:
            self._screen.write(typed.error)
            return True
        if typed.name == "quit":
            self._screen.write("Quitting debug session...\n")
            return False
        self._carry_out(lambda: self._commands()[typed.name](typed))
        return True

    def _carry_out(self, command: Callable[[], None]) -> None:
        """Run a command, and show its errors and the hosts that did not answer it."""
        try:
            command()
        except KeyboardInterrupt:
            if not self._screen.is_terminal:
                raise
            self._screen.write("interrupted\n")
        except (NotAnswered, ValueError) as error:
            self._screen.write(f"Error processing command: {error}\n")
        for line in self._visit.silence():
            self._screen.write(f"{line}\n")

    def _commands(self) -> dict[str, Callable[[Typed], None]]:
        return {
            "help": lambda typed: self._screen.write(HELP),
            "list": self._list,
            "attach": self._attach,
            "cast": self._cast,
            "continue": self._continue,
            "redo": self._redo,
            "diff": self._diff,
            "where": self._running.where,
            "stacks": self._running.stacks,
            "stop": self._running.stop,
            "abort": self._running.abort,
            "break": self._breakpoints.obey,
            "together": lambda typed: self._set_together(True),
            "alone": lambda typed: self._set_together(False),
            "detach": lambda typed: self._screen.write("you are attached to no call\n"),
        }

    def _holds(self) -> list[HoldNote]:
        self._last_holds = self._visit.holds()
        return self._last_holds

    def _waiting(self) -> list[HoldNote]:
        return [hold for hold in self._holds() if hold.is_waiting]

    def _list(self, typed: Typed) -> None:
        holds = self._waiting()
        self._screen.write(holds_table(holds, self._screen.width))
        errors = {hold.error for hold in holds if hold.error}
        for error in sorted(errors):
            alike = [hold for hold in holds if hold.error == error]
            verb = "is" if len(alike) == 1 else "are"
            self._screen.write(f"{named(alike)} {verb} held at: {error}\n")
        if not holds:
            self._screen.write("no call is held at this moment\n")
        for lost in self._visit.lost:
            self._screen.write(f"{_lost(lost)}\n")

    def _attach(self, typed: Typed) -> None:
        assert isinstance(typed.ranks, int)
        self._way_in(typed.actor, typed.ranks)()

    def _way_in(self, actor: str, rank: int) -> Callable[[], None]:
        """Return a function that attaches to a held call, or looks at a running one.

        Raises ``NotAnswered`` if the rank has neither.
        """
        try:
            hold = self._find(actor, rank)
        except NotAnswered:
            running = self._running.call_of(actor, rank)
            if running is None:
                raise
            return partial(self._running.peek, running)
        return partial(self._attach_to, hold)

    def _attach_to(self, hold: HoldNote) -> None:
        if running_text := self._running.others(hold):
            self._screen.write(f"{running_text}\n")
        attachment = Attachment(self._visit, self._screen, hold, self._why_no_redo)
        attachment.run()
        others = [other for other in self._waiting() if other.id != hold.id]
        if attachment.waits_for_code and others:
            verb = "is" if len(others) == 1 else "are"
            self._screen.write(
                f"{named(others)} {verb} still held, and no new code can come before that goes on: "
                "`redo` here takes all\n"
            )
        if attachment.is_over:
            self._holds()
            for lost in self._visit.lost:
                if lost.hold.id == hold.id:
                    self._screen.write(f"{_lost(lost)}\n")

    def _find(self, actor: str, rank: int) -> HoldNote:
        of_actor = [hold for hold in self._holds() if hold.actor == actor]
        holds = [hold for hold in of_actor if hold.rank == rank]
        lost = [
            note for note in self._visit.lost if (note.hold.actor, note.hold.rank) == (actor, rank)
        ]
        if lost and not holds:
            raise NotAnswered(_lost(lost[-1]))
        if not of_actor:
            raise NotAnswered(f"No debug sessions for actor {actor}")
        if not holds:
            raise NotAnswered(f"No debug session for rank {rank} for actor {actor}")
        return next((hold for hold in holds if hold.is_waiting), holds[0])

    def _chosen(self, actor: str, ranks: RanksType) -> list[HoldNote]:
        """Return the held calls of ``actor`` and ``ranks``. Raises ``NotAnswered`` if there are
        none."""
        waiting = self._waiting()
        of_actor = [hold for hold in waiting if actor in ("", hold.actor)]
        if not of_actor:
            problem = f"No debug sessions for actor {actor}" if actor else "no call is held"
            raise NotAnswered(problem)
        holds = []
        for hold in of_actor:
            sizes = dict(zip(hold.labels, hold.sizes, strict=True))
            if unknown := unknown_dims(ranks, sizes):
                raise NotAnswered(f"{hold.actor} has no dimension {unknown[0]!r}, but {sizes}")
            if is_in(ranks, hold.rank, hold.labels, hold.sizes):
                holds.append(hold)
        if not holds:
            raise NotAnswered(f"no call is held on these ranks, but on {named(of_actor)}")
        return holds

    def _cast(self, typed: Typed) -> None:
        self._tell_all(self._chosen(typed.actor, typed.ranks), typed.text)

    def _tell_all(self, holds: Sequence[HoldNote], line: str) -> None:
        """Send one line to all of ``holds``, and show the answers, equal ones together.

        Calls that have not stopped again in time are named too.
        """
        if line.strip() == "redo" and (refusal := self._why_no_redo(holds)):
            raise NotAnswered(refusal)
        answers = self.type_all(holds, line)
        stopped = {key: text for key, text in answers.items() if text is not None}
        for actor in dict.fromkeys(hold.actor for hold in holds):
            of_actor = {rank: text for (name, rank), text in stopped.items() if name == actor}
            texts = {rank: text for rank, text in of_actor.items() if text}
            for ranks in group(texts):
                self._screen.write(_answer(actor, ranks))
        missing = [h for h in holds if answers[h.actor, h.rank] is None]
        if missing and line.split()[0] not in ("c", "cont", "continue", "q", "quit"):
            self._running.tell_missing(missing)

    def type_all(
        self, holds: Sequence[HoldNote], line: str, seconds: float | None = None
    ) -> dict[tuple[str, int], str | None]:
        """Send a line to the debuggers of ``holds``; return their answers, by actor and rank.

        An answer is ``None`` if the call has not stopped again within ``seconds``, and "" if it has
        ended. A rank that does not answer gets no line, and its answer says so.
        """
        seconds = self._step_seconds if seconds is None else seconds
        visit = self._visit
        outputs = visit.ask_holds(holds)
        for hold in holds:
            if not outputs[hold.id].error:
                visit.begin(hold.proc, HoldLine(hold.id, line, visit.who, is_quiet=True))
        deadline = time.monotonic() + seconds
        answers: dict[tuple[str, int], str | None] = {}
        for hold in holds:
            output = outputs[hold.id]
            answers[hold.actor, hold.rank] = output.error or self._answer_of(
                hold, output.answer.number, line, deadline
            )
        return answers

    def _answer_of(self, hold: HoldNote, number: int, line: str, deadline: float) -> str | None:
        text = ""
        while True:
            seconds_left = max(0.0, deadline - time.monotonic())
            try:
                output = self._output(hold, number, seconds_left)
            except NotAnswered:
                return ""
            number, text = output.number, text + output.text
            if output.is_over:
                return ""
            if output.is_waiting and text.endswith(PDB_PROMPT):
                return text.removesuffix(PDB_PROMPT).removeprefix(f"{line}\n").rstrip("\n")
            if seconds_left <= 0:
                return None

    def _output(self, hold: HoldNote, number: int, seconds: float) -> HoldOutput:
        question = HoldText(hold.id, number, was_waiting=False, seconds=seconds)
        return self._visit.ask(hold.proc, question, seconds)

    def _continue(self, typed: Typed) -> None:
        """Continue all held calls; one that has ended in between does not keep the others held."""
        visit, failed = self._visit, dict[str, NotAnswered]()
        for line in ("clear", "continue"):
            for hold in self._waiting() if line == "clear" else self._last_holds:
                try:
                    visit.ask(hold.proc, HoldLine(hold.id, line, visit.who, is_quiet=True))
                except NotAnswered as refusal:
                    failed[named([hold])] = refusal
        self._last_holds = [hold for hold in self._last_holds if named([hold]) in failed]
        for name, error in failed.items():
            self._screen.write(f"Error processing command: {name}: {error}\n")

    def _why_no_redo(self, holds: Sequence[HoldNote]) -> str:
        """Return why `redo` is refused, or "": new code is taken only when all ranks are between
        two calls."""
        waiting = self._running.in_collectives(holds)
        return waiting and (
            f"redo is refused: {waiting}, where {named(holds)} is missing, so no new code can come "
            "in between. `abort` ends their collective with an error; `redo now` runs this call "
            "again on the code that is there"
        )

    def _redo(self, typed: Typed) -> None:
        holds = self._chosen("", typed.ranks)
        if not typed.is_flagged and (refusal := self._why_no_redo(holds)):
            raise NotAnswered(refusal)
        line = "redo now" if typed.is_flagged else "redo"
        answers = self.type_all(holds, line, _REDO_SECONDS)
        refused = {key: text for key, text in answers.items() if text}
        for (actor, rank), text in refused.items():
            self._screen.write(f"{actor} {rank}: {text}\n")
        if len(refused) < len(answers):
            self._screen.write("the others run again\n" if refused else "they run again\n")

    def _diff(self, typed: Typed) -> None:
        holds = self._chosen("", typed.ranks)
        line = f"p {typed.text}"
        actors = dict.fromkeys(hold.actor for hold in holds)
        for actor in actors:
            if len(actors) > 1:
                self._screen.write(f"{actor}:\n")
            answers = self.type_all([h for h in holds if h.actor == actor], line)
            texts = {rank: text or "(no answer)" for (_, rank), text in answers.items()}
            self._screen.write("\n".join(table(group(texts))) + "\n")

    def _set_together(self, is_together: bool) -> None:
        self._is_together = is_together
        if is_together:
            self._screen.write(
                f"each line goes to {named(self._waiting()) or 'nobody'}, until `alone`\n"
            )

    def _complete(self, text: str) -> Iterable[str]:
        words = text.split(" ")
        if len(words) == 1:
            return [name for name in COMMANDS if name.startswith(words[0])]
        if words[0] in ("attach", "a", "cast"):
            if len(words) == 2:
                return sorted({h.actor for h in self._last_holds if h.actor.startswith(words[1])})
            holds = [h for h in self._last_holds if h.actor == words[1]]
            if words[0] == "cast":
                return [f"ranks({h.rank})" for h in holds]
            return [str(h.rank) for h in holds if str(h.rank).startswith(words[2])]
        if words[0] == "diff" and self._last_holds:
            return self._visit.names(self._last_holds[0], f"p {' '.join(words[1:])}")
        return []


def _answer(actor: str, ranks: SameAnswer[str]) -> str:
    lines = [f"{actor} {ranks.who}: {line}" for line in ranks.answer.splitlines()]
    return "\n".join(lines) + "\n"


def _lost(lost: LostHold) -> str:
    hold = lost.hold
    ago = max(0, round(time.time() - lost.when))
    return (
        f"{hold.actor} {hold.rank} ended {ago} s ago, while it was held at {hold.place} in "
        f"{hold.function}: {lost.reason}"
    )
