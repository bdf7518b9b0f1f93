"""Holds a run when an edit fails at run time: nothing is lost, and the next save continues.

    holding = Holding(procs, trainers, record)
    for step in range(num_steps):
        losses = holding.ask(trainers.step, learning_rate)

If such a call raises or loops, the run does not end, provided that the code is newer than that with
which it began. All ranks return from the call, and their state is restored to that before it; the
call is repeated when there is newer code.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from monarch.actor import ActorMesh, Future, ProcMesh
from monarch.config import configured, settings
from monarch.errors import ActorError, MonarchError, SupervisionError
from monarch.runs.hold.hold_report import HoldReport, HoldStopped, but_for
from monarch.runs.hold.run_memory import RunMemory
from monarch.runs.hold.trial import Interrupted, Trial, TrialReport, is_of_code, place_of
from monarch.runs.record.edits import Edits, Failure
from monarch.runs.record.error_text import in_words
from monarch.runs.record.record import Record
from monarch.runs.record.slowness import HOLD, MORE, TIMES_MORE, Patience, RankLook
from monarch.runs.recover.ranks import RankHangs, RunFailed, SlowCall, Unless, answers_of, ask_all
from monarch.runs.recover.recovery import BeginAgain, RanksLost, is_connection_lost
from monarch.runs.recover.witness import Witness
from monarch.runtime import process
from monarch_sync.words import took

T = TypeVar("T")

_ANSWER_SECONDS = 10.0
_PATIENCE_SECONDS = 2.0  # for ranks to return from a call by themselves
_CONSEQUENCES = ("gloo", "NCCL", "Connection", "rocess group", Interrupted.__name__)


class Holding:
    """Calls ``actors`` on ``procs`` so that a failing edit does not end the run. If a person
    watches, code that fails at its first call does not end it either.

    With a ``record``, events are recorded, and shown here and in every watch. Without a record, or
    without a terminal, it holds as well. But on procs of ``this_host()``, to which no other program
    can push, the error is raised.

    ``rejoin`` is called before the next call if process groups were aborted so that ranks return;
    it makes new groups. If it is ``None``, groups are never aborted: ranks are restored only if all
    have raised by themselves, and no average of gradients is half made. ``alike`` returns how ranks
    differ that should have the same state, or ""; it is called when ranks were restored, and when
    they have new groups. ``seconds`` is the longest time for a call.

    ``memory`` is the attempt's ``TrainingAttempt.memory``. Before new code is tried, copies of the
    state are made in it, from which new processes can continue. ``save`` writes a checkpoint of the
    current state; it is called instead if hosts have no room for the copies.
    """

    #: Calls that take longer are not made ahead, as that would save nothing.
    ahead_seconds = 0.2
    #: How long ranks get to return from a call.
    come_back_seconds = 8.0

    def __init__(
        self,
        procs: ProcMesh,
        actors: ActorMesh[Any],
        record: Record | None = None,
        *,
        rejoin: Callable[[], object] | None = lambda: None,
        alike: Callable[[], str] | None = None,
        seconds: float = math.inf,
        memory: RunMemory | None = None,
        save: Callable[[], object] | None = None,
    ) -> None:
        self.edits = record.edits if record is not None else Edits()
        self.edits.begin(_generation())
        self._procs = procs
        self._actors = actors
        self._record = record
        self._rejoin = rejoin
        self._alike = alike
        self._seconds = seconds
        self._memory = memory
        self._save = save
        #: Whether `_save` runs, which may call ``ask`` itself.
        self._is_saving = False
        #: Whether process groups were aborted, so that ranks need new ones.
        self._must_rejoin = False
        #: Whether the ranks were compared after they were restored.
        self._is_compared = False
        #: Whether a call has succeeded that can be undone in place.
        self._has_made_any = False
        #: Whether only calls have succeeded that cannot be undone in place, as a `setup`.
        self._is_fresh = False
        #: The ids of the ranks' processes (``TrialReport.life``).
        self._lives: set[str] = set()
        #: The answers to come to the next ``ask``; ``None`` if it was not called ahead.
        self._ahead: list[Future[Any]] | None = None
        #: How long the last call took.
        self._last_seconds = math.inf
        #: Descriptions of objects that ranks could not restore.
        self._unkept: list[str] = []
        #: The ranks' reports from before stuck ranks were interrupted.
        self._before_interrupt: list[TrialReport] = []
        self._held = HoldReport(record, procs)
        #: Whether errors are raised instead of held: no other program could push a fix.
        self._raises = False
        # Without a record no rollback is possible, which is the default without a terminal.
        if record is None and self.edits.policy == "rollback" and not settings().on_edit_error:
            self.edits.policy = "hold"
            self._raises = self._held.is_of_this_program
        #: Whether there is one rank, whose groups no other rank can leave in a wrong state.
        self._is_alone = procs.size() == 1
        self.witnesses = procs.spawn("witness", Witness)
        self._trials = procs.spawn(
            "trial",
            Trial,
            actors._ref.uid,
            self.edits.seed(),
            watches_first=self.edits.policy == "hold" and not self._raises,
            memory="" if memory is None else memory.owner,
            is_told_of_room=self.edits.is_told_of_room,
        )

    def ask(
        self,
        endpoint: Any,
        *args: Any,
        doing: str = "",
        unless: Unless | None = None,
        in_place: bool = True,
        seconds: float | None = None,
        ahead: bool = False,
    ) -> list[Any]:
        """Call all ranks; return their answers in order of arrival, as ``ask_all`` does.
        ``seconds`` is this call's own time limit.

        ``ahead``: the next ``ask`` will be the same call with the same arguments, so ranks may get
        it now and need not wait for the client in between. That is done if calls are short, and
        only with the code that the run began with: newer code is tried one call at a time.
        ``is_ahead`` says whether it was done.

        If the ranks cannot be restored, or must not be (``in_place`` False), it waits for a fix and
        then raises ``BeginAgain``; ``with_attempts`` then restarts in new procs.
        """
        name = endpoint._name
        limit = self._seconds if seconds is None else seconds

        def call() -> list[Any]:
            started = time.monotonic()
            slow = _SlowTrial(self, name, doing or name, limit, in_place=in_place)
            futures, self._ahead = self._ahead, None
            if futures is None:
                futures = list(endpoint.stream(*args))
            if ahead and self._may_go_ahead():
                self._ahead = list(endpoint.stream(*args))
            with slow.listening():
                answers = answers_of(
                    futures,
                    seconds=slow.patience,
                    witnesses=self.witnesses,
                    doing=doing or name,
                    unless=unless,
                    slow=slow,
                )
            self._last_seconds = time.monotonic() - started
            slow.went_well(self._last_seconds)
            return answers

        __tracebackhide__ = True  # in notebooks, which show each frame at length
        self._be_ready(unless)
        is_new = self.edits.is_new(name, _generation())
        if is_new and in_place:
            self._save_without_room(name)
        answers = self.run(name, call, doing, in_place=in_place)
        if is_new and in_place:
            self._tell_news()
        return answers

    def shadow(self) -> None:
        """Have each rank copy its current state into its host's memory during the next call, so
        that new processes can continue from it. Nothing is done while ranks are called ``ahead``.
        """
        if self._ahead is None:
            self._ask_trials(self._trials.shadow)

    def _save_without_room(self, name: str) -> None:
        """Save a checkpoint before new code is tried, if hosts have no room for copies."""
        if self._save is None or self._is_saving or self.is_ahead:
            return
        reason = next(filter(None, self._ask_trials(self._trials.why_no_copy, name)), "")
        if not reason:
            return
        if not self.edits.is_told_of_room:
            self.edits.is_told_of_room = True
            self._tell_of_copies(reason)
        self._is_saving = True
        try:
            self._save()
        finally:
            self._is_saving = False

    def _tell_news(self) -> None:
        """Report the ranks' messages about their copies."""
        news = self._ask_trials(self._trials.news)
        for text in dict.fromkeys(itertools.chain.from_iterable(news)):
            self._tell_of_copies(text)

    def _tell_of_copies(self, text: str) -> None:
        if self._record is not None:
            self._record.event("copies", text)
        else:
            self._held.slow(text)

    def _ask_trials(self, endpoint: Any, *args: Any) -> list[Any]:
        """Call this endpoint of the trials of all ranks, and return the answers; an empty list if a
        rank does not answer.
        """
        try:
            return list(endpoint.call(*args).get(timeout=_ANSWER_SECONDS).values())
        except (MonarchError, ActorError, TimeoutError):
            return []

    @property
    def is_ahead(self) -> bool:
        """Whether ranks already run the call that the next ``ask`` will be for."""
        return self._ahead is not None

    def _may_go_ahead(self) -> bool:
        generation = _generation()
        is_coming = process.current().code_states.coming > generation
        is_short = self._last_seconds < self.ahead_seconds
        return is_short and not (is_coming or self.edits.is_edited(generation))

    def _be_ready(self, unless: Unless | None) -> None:
        """Wait until each rank has its trial. A rank's calls before that are not on trial.

        Raises ``KeyboardInterrupt`` as soon as ``unless`` returns true.
        """
        if not self._lives:
            reports: list[TrialReport] = ask_all(
                self._trials.report,
                seconds=math.inf,
                witnesses=None,
                doing="",
                unless=unless or (lambda: False),
            )
            self._lives = {report.life for report in reports}

    def run(
        self, activity: str, work: Callable[[], T], doing: str = "", *, in_place: bool = True
    ) -> T:
        """Return the result of ``work``. If new code has made it fail, it is repeated when there is
        newer code.

        ``activity`` names the kind of work, for the history of the run's code; ``doing`` is a text
        for people about this one call.
        """
        __tracebackhide__ = True
        while True:
            generation, started = _generation(), time.monotonic()
            try:
                if self._must_rejoin and self._rejoin is not None:
                    self._rejoin()
                    self._must_rejoin = False
                    # Ranks that were compared after their restoration have done nothing since.
                    is_compared, self._is_compared = self._is_compared, False
                    if not is_compared and self._alike is not None and (apart := self._alike()):
                        self._forget_copies()
                        raise BeginAgain(apart)
                result = work()
            except (BeginAgain, RanksLost, RunFailed):
                raise
            except Exception as error:
                # Calls that were made ahead have changed ranks, or will. Fresh ranks have nothing
                # to lose, and new ones also get a fix of the code that makes them.
                failed = error
                in_place = in_place and not (self.is_ahead or self._is_fresh)
            else:
                self.edits.went_well(activity, generation, time.monotonic() - started)
                self._is_fresh = not in_place and not self._has_made_any
                if in_place:
                    self._has_made_any = True
                    process.current().begins_anew = False
                if self._held.has_begun:
                    self._held.over(doing or activity, _generation())
                return result
            # Outside of the except block: who interrupts the hold is not shown its reason again.
            try:
                self._failed(activity, doing or activity, failed, generation, in_place)
            except KeyboardInterrupt:
                raise KeyboardInterrupt(
                    f"{doing or activity} was not made again: it was interrupted as it held"
                ) from None

    @contextlib.contextmanager
    def until_stopped(self) -> Iterator[None]:
        """Leave the block without an error if the run must stop while it holds."""
        with contextlib.suppress(HoldStopped):
            yield

    # Failures

    def _failed(
        self, activity: str, doing: str, error: Exception, generation: int, in_place: bool
    ) -> None:
        """Handle a failed call: return when it must be repeated, else raise."""
        if self._record is not None and self._record.is_stopping and self._held.is_on:
            raise RunFailed(
                f"cannot go on from the hold to save: {in_words(error)}; what was saved before is "
                "there"
            ) from error
        is_remote = isinstance(error, ActorError | RankHangs)
        if getattr(getattr(error, "exception", None), "no_edit_helps", False):
            raise error  # It would hold for ever.
        stuck, self._before_interrupt = self._before_interrupt, []
        reports = (stuck or self._reports()) if is_remote else []
        if isinstance(error, SupervisionError) or (is_remote and not reports):
            # A rank is gone, or nothing in its process can answer.
            failure = self._failure_of_loss(activity, doing, error)
            self._end_ranks()
            if self._raises:
                self._held.tell_raised(failure, in_place=False)
                raise error
            self._wait(failure, in_place=False)
            raise BeginAgain(failure.first_line) from error
        if any(report.life not in self._lives for report in reports):
            raise BeginAgain(f"{doing}: new code could not be taken in place, procs are new")
        failure = self._what_failed(activity, doing, error, generation, reports)
        if reports:
            is_hang = isinstance(error, RankHangs)
            may_stay = self._rejoin is not None or self._have_all_raised(reports)
            in_place = may_stay and self._bring_back(activity, is_hang=is_hang) and in_place
            if not may_stay:
                self._end_ranks()
            if not is_hang:  # By now all ranks report what they raised.
                reports = self._reports() or reports
                failure = self._what_failed(activity, doing, error, generation, reports)
        if self._raises:
            self._held.tell_raised(failure, in_place=in_place)
            raise error
        state = ""
        if in_place:
            state, in_place = self._compare_restored()
        self._wait(failure, in_place=in_place, state=state)
        if not in_place:
            raise BeginAgain(failure.first_line)

    def _compare_restored(self) -> tuple[str, bool]:
        """Compare the restored ranks. Return a text for the report, and whether they may continue.

        The text is "" if a comparison found them alike.
        """
        if self._alike is None:
            return "no rank has changed anything by it: all was put back", True
        try:
            apart = self._alike()
        except (MonarchError, ActorError, TimeoutError) as error:
            apart = f"whether the ranks are alike is not known: {in_words(error)}"
        if apart:
            self._forget_copies()
            return f"{apart}: after the fix, all go on from the last checkpoint", False
        self._is_compared = True
        return "", True

    def _forget_copies(self) -> None:
        """Drop the copies in the hosts' memory: ranks differ, and so may their copies."""
        if self._memory is not None:
            self._memory.forget()

    def apart(self, doing: str, text: str, right: int | None) -> None:
        """Handle ranks that differ, as ``text`` says; return when all must take the state of rank
        ``right``. Raises ``BeginAgain`` if all must continue from the last checkpoint,
        ``RunFailed`` if the run must end.
        """
        failure = Failure(doing, text, _generation(), _generation(), is_first=False)
        try:
            takes = self._held.answer_apart(failure, right)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"{text}: nothing was saved of that") from None
        if not takes:
            self._forget_copies()
            raise BeginAgain(text)

    def together(self) -> None:
        """Report that the ranks no longer differ."""
        if self._held.has_begun and self.edits.held_since is not None:
            self._held.over("a comparison of the ranks", _generation())

    def _failure_of_loss(self, activity: str, doing: str, error: Exception) -> Failure:
        """Return the failure for a death or a hang.

        Raises ``error`` instead if the code need not be to blame: a first death may be chance, and
        so may a hang of code that has gone well.
        """
        generation, edits = _generation(), self.edits
        is_first = edits.is_new(activity, generation)
        is_hang = isinstance(error, RankHangs)
        if not edits.is_lost_again(activity, doing, generation) and not (is_first and is_hang):
            raise error
        good = edits.good_before(activity, generation)
        if isinstance(error, RankHangs):
            text, _, details = str(error).partition("\n")
        else:
            if isinstance(error, SupervisionError) and error.failure is not None:
                reason = error.failure.root_cause.reason
            else:
                reason = in_words(error.exception if isinstance(error, ActorError) else error)
            text, details = f"a rank died, for the second time: {reason}", ""
        older = edits.older(generation)
        return Failure(
            doing, text, generation, good, details=details, is_first=is_first, older=older
        )

    def _what_failed(
        self,
        activity: str,
        doing: str,
        error: Exception,
        generation: int,
        reports: Sequence[TrialReport],
    ) -> Failure:
        """Return the failure for which the run will hold.

        Raises ``error`` instead if no edit since the beginning can have caused it, and no person is
        there to fix it.
        """
        edits, is_hang = self.edits, isinstance(error, RankHangs)
        # The generation that ran, not the current one, which may have a fix already.
        on_trial = [report for report in reports if report.is_new]
        ran = on_trial or [report for report in reports if edits.is_edited(report.generation)]
        failed = max((report.generation for report in ran), default=max(generation, _generation()))
        is_remote = isinstance(error, ActorError | RankHangs)
        if not (ran if is_remote else edits.is_edited(failed)):
            if not self._is_worth_a_fix(activity, error):
                raise error
            ran, failed = list(reports), max(report.generation for report in reports)
        raised = [report for report in ran if report.error]
        if not on_trial and (is_hang or _is_of_network(error, raised)):
            # A network that fails, or a disk that is slow, is no edit's fault.
            return self._failure_of_loss(activity, doing, error)
        good = edits.good_before(activity, failed)
        if on_trial:
            good = min(good, *(report.good or 0 for report in on_trial))
        # The error may know better: a checkpoint says which code it fits.
        fitting = getattr(getattr(error, "exception", None), "good_generation", None)
        if fitting is not None and fitting < failed:
            good = max(good, fitting)
        failure = Failure(
            doing,
            "",
            failed,
            good,
            is_first=bool(on_trial) or edits.is_new(activity, failed),
            older=edits.older(failed),
        )
        if isinstance(error, RankHangs):
            stuck = [report for report in ran if report.is_running and not report.is_waiting] or ran
            ranks = tuple(report.rank for report in stuck)
            text, _, stacks = str(error).partition("\n")
            file, line = stuck[0].file, stuck[0].line
            return replace(failure, error=text, ranks=ranks, file=file, line=line, details=stacks)
        if not raised:
            cause = error.exception if isinstance(error, ActorError) else error
            file, line = place_of(cause)
            return replace(failure, error=in_words(cause), file=file, line=line)
        # Ranks that waited for the others report only that those are gone.
        first = min(raised, key=lambda report: (_is_consequence(report), report.rank))
        file, line = first.file, first.line
        alike = sorted(
            report.rank for report in raised if (report.file, report.line) == (file, line)
        )
        return replace(
            failure,
            error=first.error,
            ranks=tuple(alike),
            file=file,
            line=line,
            details=first.traceback,
        )

    def _is_worth_a_fix(self, activity: str, error: Exception) -> bool:
        """Whether a call that never succeeded, on code that was never edited, may be repeated.

        That is so if a person watches, who would rather fix the code than start again.
        """
        is_new = not self.edits.has_gone_well(activity)
        if not (is_new and isinstance(error, ActorError) and is_of_code(error.exception)):
            return False
        return self.edits.policy == "hold" and self._held.is_watched()

    def _reports(self) -> list[TrialReport]:
        """Return the reports of all ranks; an empty list if a rank cannot answer."""
        return self._ask_trials(self._trials.report)

    def interrupt(self, ranks: Collection[int]) -> bool:
        """Interrupt these ranks if that is possible; return whether any has returned from its call.

        If none has, all continue as before.
        """
        trials = self._trials.flatten("rank")
        self._before_interrupt = self._reports()
        if not self._before_interrupt:
            return False  # A rank keeps the GIL: it would be interrupted only after its release.
        try:
            futures = [
                trials.slice(rank=rank).come_back.call_one(self.come_back_seconds, 0.0)
                for rank in sorted(ranks)
            ]
            # All must answer: an interruption that comes later would hit the next call.
            seconds = self.come_back_seconds + _ANSWER_SECONDS
            have_returned = [future.get(timeout=seconds) for future in futures]
            if any(have_returned):
                return True
            self._trials.go_on.call().get(timeout=_ANSWER_SECONDS)
        except (MonarchError, ActorError, TimeoutError):
            pass
        self._before_interrupt = []
        return False

    def _have_all_raised(self, reports: Sequence[TrialReport]) -> bool:
        """Whether all ranks have raised an error of their own, and their process groups are intact.

        Ranks get a moment to raise. If all have raised, no rank waits for another rank any longer.
        """
        deadline = time.monotonic() + _PATIENCE_SECONDS
        # A rank that has not begun when another has raised still reports its previous call.
        while not all(report.error for report in reports) and time.monotonic() < deadline:
            time.sleep(_PATIENCE_SECONDS / 40)
            reports = self._reports()
        if not reports or any(not report.error or _is_consequence(report) for report in reports):
            return False
        averaged = self._ask_trials(self._trials.has_averaged)
        return bool(averaged) and all(averaged)

    def _cut_connections(self) -> None:
        """End the ranks' collectives, so that ranks that wait in them return."""
        trials = self._trials
        answers = trials.connections.call().get(timeout=_ANSWER_SECONDS)
        connections = list(itertools.chain.from_iterable(answers.values()))
        reverse = {(remote, local) for local, remote in connections}
        between_ranks = [connection for connection in connections if connection in reverse]
        trials.cut.call(between_ranks).get(timeout=_ANSWER_SECONDS)
        self._must_rejoin, self._is_compared = True, False

    def _bring_back(self, activity: str, *, is_hang: bool) -> bool:
        """Make all ranks return from the call and restore their state; return whether that worked.

        ``activity`` will be repeated.
        """
        trials = self._trials
        try:
            if self._rejoin is not None and not self._is_alone:
                self._cut_connections()
            patience = 0.0 if is_hang else _PATIENCE_SECONDS
            returned = trials.come_back.call(self.come_back_seconds, patience)
            if not all(returned.get(timeout=self.come_back_seconds + _ANSWER_SECONDS).values()):
                self._end_ranks()
                return False
            # After this, calls have ended too that were sent to a rank and had not begun there.
            self._actors.initialized.get(timeout=self.come_back_seconds)
            restored = trials.restore.call(activity).get(timeout=_ANSWER_SECONDS * 3).values()
        except (MonarchError, ActorError, TimeoutError):
            self._end_ranks()
            return False
        self._unkept = list(dict.fromkeys(text for _, unkept in restored for text in unkept))
        return not any(error for error, _ in restored)

    def _end_ranks(self) -> None:
        """End all ranks, because a rank is stuck. A push of the fix would wait for the stuck rank
        for ever.
        """
        brief = configured(stop_timeout_seconds=1.0, cleanup_timeout_seconds=1.0)
        with brief, contextlib.suppress(MonarchError, TimeoutError):
            self._procs.stop().get(timeout=_ANSWER_SECONDS)

    def _wait(self, failure: Failure, *, in_place: bool, state: str = "") -> None:
        """Report the failure, and wait for newer code than the code that failed.

        Raises ``BeginAgain`` if the ranks must be replaced, and what `HoldReport.answer` and
        `HoldReport.wait` raise.
        """
        if in_place and self._unkept:
            state = but_for(state, self._unkept)
        if not in_place and not state and self._memory is not None:
            copies = self._memory.newest()
            if copies is not None:
                state = (
                    "the ranks cannot be put back: after the fix new ones go on from step "
                    f"{copies.step}, from the host's memory"
                )
        self._held.answer(failure, self.edits, in_place=in_place, state=state)
        if not self._held.wait(failure, in_place=in_place):
            raise BeginAgain(failure.first_line)


class _SlowTrial(SlowCall):
    """Decides what happens to a slow call of the endpoint ``name``, whose code may be on trial.

    The time after which new code counts as slow is ``edit_patience_seconds`` of the run's config,
    as it is now. A person may hold the call, or wait longer.
    """

    def __init__(
        self, holding: Holding, name: str, doing: str, limit: float, *, in_place: bool
    ) -> None:
        self._holding = holding
        self._record = holding._record
        self._report = holding._held
        #: The name of the endpoint, and the text for this call.
        self._name = name
        self._doing = doing
        #: The longest time for the call, in seconds.
        self._limit = limit
        #: Whether the ranks can be restored after an interruption.
        self._in_place = in_place
        #: The factor by which a person has extended the configured times.
        self._times = 1.0
        self._is_told = False
        self._is_given_up = False
        #: Whether the call was interrupted because the run must stop.
        self._is_stopped = False
        #: Listens to a person's answers, once the slow call was reported.
        self._listening = contextlib.ExitStack()

    def patience(self) -> Patience:
        """Return how long the call may take."""
        generation = _generation()
        is_fix_waiting = process.current().code_states.coming > generation
        patience = self._holding.edits.patience(
            self._name,
            generation,
            self._limit * self._times,
            least=self._least * self._times,
            mend_waits=is_fix_waiting and self._in_place,
        )
        if is_fix_waiting and self._is_new and not self._in_place:
            # An interruption would cost the processes, so the call gets all of its time.
            return replace(patience, hard=patience.told)
        return patience

    @property
    def _least(self) -> float:
        configured = None if self._record is None else self._record.edit_patience_seconds
        return settings().edit_patience_seconds if configured is None else configured

    @property
    def _is_new(self) -> bool:
        return self._holding.edits.is_new(self._name, _generation())

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """If the call was reported as slow, let a person answer while the block runs."""
        with self._listening:
            yield

    def tell(self, text: str) -> None:
        is_first, self._is_told = not self._is_told, True
        if self._is_new:
            if is_first:
                self._listening.enter_context(self._report.listening())
            text += "; it goes on. k holds it, + gives it more time"
            if is_first:
                text += (
                    ", here or in a `monarch sync --watch`; elsewhere `monarch runs hold` and "
                    "`monarch runs wait`. A fix that is pushed ends it, too. It is told after "
                    f"edit_patience_seconds = {self._least:g}, or ten times what is usual"
                )
        self._report.slow(text)

    def is_given_up(self) -> bool:
        if not self._is_new:
            return False
        for answer in self._report.answers():
            if answer == HOLD:
                self._is_given_up = True
            elif answer == MORE:
                self._times *= TIMES_MORE
                patience = self.patience()
                self._report.slow(
                    f"{self._doing} has {took(patience.stuck)} to make progress, and "
                    f"{took(patience.most)} in all"
                )
        is_stopping = self._record is not None and self._record.is_stopping
        if is_stopping and self._in_place and not self._is_stopped:
            self._is_stopped = True  # by Ctrl-C; the state from before the call can be saved
            self._is_given_up |= self._holding.interrupt(range(len(self._holding.witnesses)))
        return self._is_given_up

    def may_end(self, looks: Sequence[RankLook], *, is_over: bool) -> bool:
        if not self._is_new:
            return True
        acting = [look.rank for look in looks if not (look.is_waiting or look.is_idle)]
        silent = set(range(len(self._holding.witnesses))) - {look.rank for look in looks}
        interruptible = {*acting, *silent}
        if self._in_place and (not interruptible or self._holding.interrupt(interruptible)):
            return True  # Ranks that only wait in collectives return when the others do.
        if is_over and self._holding.edits.policy != "hold":
            return True
        complaint = "takes very long" if is_over else "makes no progress"
        self._report.slow(
            f"{self._doing} {complaint}, and cannot be interrupted where it is. To end its "
            "processes costs what was learned since the last checkpoint: k does, and a fix that is "
            "pushed"
        )
        return False

    def went_well(self, seconds: float) -> None:
        """Report that the slow call has ended, if it was reported as slow."""
        if self._is_told:
            self._report.slow(f"{self._doing} has ended after {took(seconds)}")


def _generation() -> int:
    return process.current().generation


def _is_consequence(report: TrialReport) -> bool:
    """Whether the rank raised because another rank was gone, or because it was interrupted."""
    return any(word in report.error for word in _CONSEQUENCES)


def _is_of_network(error: Exception, raised: Sequence[TrialReport]) -> bool:
    """Whether ``error`` and all reports say only that ranks have lost each other."""
    return (
        isinstance(error, ActorError)
        and is_connection_lost(error.exception)
        and all(map(_is_consequence, raised))
    )
