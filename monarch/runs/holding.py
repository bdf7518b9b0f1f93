"""A run holds where an edit fails when it runs: nothing is lost, and the next save goes on.

    holding = Holding(procs, trainers, record)
    for step in range(num_steps):
        losses = holding.ask(trainers.step, learning_rate)

What such a call raises, or a loop in it, ends nothing as long as the code is newer than that with
which the same endpoint last went well. All ranks are brought back and put back to where they were
before the call; then it is made again, once there is newer code.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from monarch.actor import ActorMesh, ProcMesh
from monarch.errors import ActorError, MonarchError, SupervisionError
from monarch.runs.deaths import Deaths
from monarch.runs.edits import Edits, Failure
from monarch.runs.held import Held
from monarch.runs.ranks import RankHangs, RunFailed, RunLost, Unless, ask_all
from monarch.runs.record import Record
from monarch.runs.recovery import BeginAgain, RanksLost
from monarch.runs.trial import Interrupted, Trial, TrialReport, place_of
from monarch.runs.witness import Witness
from monarch.runs.words import in_words
from monarch.runtime import process

__all__ = ["Holding"]

T = TypeVar("T")

_LOOK_SECONDS = 0.05
_ANSWER_SECONDS = 10.0
_PATIENCE_SECONDS = 2.0  # for ranks that are to come back by themselves
_COME_BACK_SECONDS = 8.0
_CONSEQUENCES = ("gloo", "NCCL", "Connection", "rocess group", Interrupted.__name__)


class _Stopped(Exception):
    """The run was asked to stop while it held."""


class Holding:
    """Calls of ``actors``, which live on ``procs``, that a failing edit does not end.

    With a ``record``, what happens is written down, and shown here and wherever somebody watches.
    ``rejoin`` is called before the next call where process groups were broken up to bring ranks
    back: it has them meet anew. ``seconds`` is how long a call may take at all.
    """

    def __init__(
        self,
        procs: ProcMesh,
        actors: ActorMesh[Any],
        record: Record | None = None,
        *,
        rejoin: Callable[[], object] = lambda: None,
        seconds: float = math.inf,
    ) -> None:
        self.edits = record.edits if record is not None else Edits()
        self._actors = actors
        self._record = record
        self._rejoin = rejoin
        self._seconds = seconds
        self._must_rejoin = False
        self._lives: set[str] = set()  # of the ranks' processes
        self._held = Held(record, procs)
        self.witnesses = procs.spawn("witness", Witness)
        self._trials = procs.spawn("trial", Trial, actors._ref.uid, self.edits.seed())

    def ask(
        self,
        endpoint: Any,
        *args: Any,
        doing: str = "",
        unless: Unless | None = None,
        in_place: bool = True,
        seconds: float | None = None,
    ) -> list[Any]:
        """The answers of all ranks, in order of arrival, as ``ask_all`` has them. ``seconds`` is
        how long this call may take, if not as long as others.

        Where they cannot be put back, or are not to be ``in_place``, it raises ``BeginAgain`` when
        there is a mend: ``with_attempts`` begins again in new procs then.
        """
        name = endpoint._name
        at_most = self._seconds if seconds is None else seconds

        def call() -> list[Any]:
            started = time.monotonic()

            def left_seconds() -> float:
                most = self.edits.patience_seconds(name, _generation(), at_most)
                return started + most - time.monotonic()

            return ask_all(
                endpoint, *args, seconds=left_seconds, witnesses=self.witnesses,
                doing=doing or name, unless=unless,
            )  # fmt: skip

        self._be_ready(unless)
        return self.run(name, call, doing, in_place=in_place)

    def _be_ready(self, unless: Unless | None) -> None:
        """Not before a rank's trial is there does it see what the rank is asked for."""
        if not self._lives:
            reports: list[TrialReport] = ask_all(
                self._trials.report, seconds=math.inf, witnesses=None, doing="",
                unless=unless or (lambda: False),
            )  # fmt: skip
            self._lives = {one.life for one in reports}

    def run(
        self, activity: str, work: Callable[[], T], doing: str = "", *, in_place: bool = True
    ) -> T:
        """What ``work`` returns, tried again with newer code where newer code has made it fail.

        ``activity`` is what it is called each time, ``doing`` what it is this time.
        """
        while True:
            generation, started = _generation(), time.monotonic()
            try:
                if self._must_rejoin:
                    self._rejoin()
                    self._must_rejoin = False
                result = work()
            except (BeginAgain, RanksLost, RunFailed):
                raise
            except Exception as error:
                self._failed(activity, doing or activity, error, generation, in_place)
            else:
                self.edits.went_well(activity, generation, time.monotonic() - started)
                if self._held.has_begun:
                    self._held.over(doing or activity, _generation())
                return result

    @contextlib.contextmanager
    def until_stopped(self) -> Iterator[None]:
        """A block that is left, without an error, where the record is stopping while it holds."""
        with contextlib.suppress(_Stopped):
            yield

    # Where something has failed

    def _failed(
        self, activity: str, doing: str, error: Exception, generation: int, in_place: bool
    ) -> None:
        """Return when it is to be tried again; else raise."""
        if self._record is not None and self._record.is_stopping and self._held.is_on:
            raise RunFailed(
                f"cannot go on from the hold to save: {in_words(error)}; what was saved before is "
                "there"
            ) from error
        is_remote = isinstance(error, ActorError | RankHangs)
        reports = self._reports() if is_remote else []
        if isinstance(error, SupervisionError) or (is_remote and not reports):
            # A rank is gone, or nothing in its process can answer.
            failure = self._of_loss(activity, doing, error)
            self._wait(failure, in_place=False)
            raise BeginAgain(failure.first_line) from error
        if any(one.life not in self._lives for one in reports):
            raise BeginAgain(f"{doing}: new code could not be taken in place, procs are new")
        failure = self._what_failed(activity, doing, error, generation, reports)
        if reports:
            is_hang = isinstance(error, RankHangs)
            in_place = self._bring_back(is_hang=is_hang) and in_place
            if not is_hang:  # By now all have said what they raised.
                reports = self._reports() or reports
                failure = self._what_failed(activity, doing, error, generation, reports)
        self._wait(failure, in_place=in_place)
        if not in_place:
            raise BeginAgain(failure.first_line)

    def _of_loss(self, activity: str, doing: str, error: Exception) -> Failure:
        """A first death may have been chance; what dies twice in the first call on new code dies
        of that. Raises ``error`` where that is not so."""
        generation = _generation()
        if not self.edits.is_new(activity, generation):
            raise error
        good = self.edits.good_for(activity) or 0
        if isinstance(error, RankHangs):
            text, _, stacks = str(error).partition("\n")
            return Failure(doing, text, generation, good, details=stacks)
        deaths = self.edits.deaths
        deaths[generation] = deaths.get(generation, 0) + 1
        if deaths[generation] < 2:
            raise error
        if isinstance(error, SupervisionError) and error.failure is not None:
            why = error.failure.root_cause.reason
        else:
            why = in_words(error.exception if isinstance(error, ActorError) else error)
        return Failure(doing, f"a rank died, for the second time: {why}", generation, good)

    def _what_failed(
        self,
        activity: str,
        doing: str,
        error: Exception,
        generation: int,
        reports: Sequence[TrialReport],
    ) -> Failure:
        """Raises ``error`` where the code was not on trial."""
        on_trial = [one for one in reports if one.is_new]
        # Of what ran: meanwhile there may be a mend.
        now = max((one.generation for one in on_trial), default=max(generation, _generation()))
        is_remote = isinstance(error, ActorError | RankHangs)
        if not (on_trial if is_remote else self.edits.is_new(activity, now)):
            raise error
        good = min((one.good or 0 for one in on_trial), default=self.edits.good_for(activity) or 0)
        # What fails may know better, as where a checkpoint says which code it fits.
        known = getattr(getattr(error, "exception", None), "good_generation", None)
        if known is not None and known < now:
            good = max(good, known)
        if isinstance(error, RankHangs):
            stuck = [one for one in on_trial if one.is_running and not one.is_waiting] or on_trial
            ranks = tuple(one.rank for one in stuck)
            text, _, stacks = str(error).partition("\n")
            return Failure(doing, text, now, good, ranks, stuck[0].file, stuck[0].line, stacks)
        raised = [one for one in on_trial if one.error]
        if not raised:
            cause = error.exception if isinstance(error, ActorError) else error
            file, line = place_of(cause)
            return Failure(doing, in_words(cause), now, good, (), file, line)
        # Who waited for the others says only that they are gone.
        first = min(raised, key=lambda one: (_is_consequence(one), one.rank))
        alike = [one.rank for one in raised if (one.file, one.line) == (first.file, first.line)]
        return Failure(
            doing, first.error, now, good, tuple(sorted(alike)), first.file, first.line,
            first.traceback,
        )  # fmt: skip

    def _reports(self) -> list[TrialReport]:
        """What all ranks say; none where one cannot."""
        try:
            found = self._trials.report.call().get(timeout=_ANSWER_SECONDS)
        except (MonarchError, ActorError, TimeoutError):
            return []
        return list(found.values())

    def _bring_back(self, *, is_hang: bool) -> bool:
        """All ranks to where they were before; whether that has come about."""
        trials = self._trials
        try:
            ends = trials.connections.call().get(timeout=_ANSWER_SECONDS)
            theirs = {(there, here) for found in ends.values() for here, there in found}
            mine = [one for found in ends.values() for one in found if one in theirs]
            trials.cut.call(mine).get(timeout=_ANSWER_SECONDS)
            self._must_rejoin = True
            patience = 0.0 if is_hang else _PATIENCE_SECONDS
            back = trials.come_back.call(_COME_BACK_SECONDS, patience)
            if not all(back.get(timeout=_COME_BACK_SECONDS + _ANSWER_SECONDS).values()):
                return False
            # What was sent to a rank and has not begun there is over after this, too.
            self._actors.initialized.get(timeout=_COME_BACK_SECONDS)
            whys = trials.restore.call().get(timeout=_ANSWER_SECONDS * 3)
        except (MonarchError, ActorError, TimeoutError):
            return False
        return not any(whys.values())

    # What then

    def _wait(self, failure: Failure, *, in_place: bool) -> None:
        """Until there is other code than that which failed. Raises where there is not to be any."""
        held = self._held
        held.answer(failure, self.edits, in_place=in_place)
        with Deaths() as deaths:
            while _generation() <= failure.generation:
                if self._record is not None and self._record.is_stopping:
                    if in_place:
                        raise _Stopped
                    raise KeyboardInterrupt
                for death in deaths.take():
                    held.tell(f"while the run holds, {death.who} failed: {death.root_cause.reason}")
                    in_place = False
                    if self._record is not None and (why := self._record.why_gone()):
                        raise RunLost(why)  # A mend would have nothing to run on.
                time.sleep(_LOOK_SECONDS)
        held.mended(_generation())
        if not in_place:
            raise BeginAgain(failure.first_line)


def _generation() -> int:
    return process.current().generation


def _is_consequence(report: TrialReport) -> bool:
    """Whether it raised because another rank was gone, or because it was interrupted."""
    return any(word in report.error for word in _CONSEQUENCES)
