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
_PATIENCE_SECONDS = 2.0  # for ranks that are to come back by themselves
_CONSEQUENCES = ("gloo", "NCCL", "Connection", "rocess group", Interrupted.__name__)


class Holding:
    """Calls ``actors`` on ``procs`` so that a failing edit does not end the run. Nor does code that
    fails at its first call, if a person watches.

    With a ``record``, events are recorded, and shown here and in every watch. Without one, or
    without a terminal, it holds as well; but an error on procs of ``this_host()``, to which no
    other program can push, is raised. ``rejoin`` is called before the next call if process groups
    were aborted so that ranks return: it makes new groups. If it is ``None``, groups are never
    aborted: ranks are restored only if all have raised by themselves, and no average of gradients
    is half made. ``alike`` returns how ranks differ that should have the same state, or ""; it is
    called when ranks were restored, and when they have new groups. ``seconds`` is the longest time
    for a call. ``memory`` is the attempt's (``TrainingAttempt.memory``); new processes can continue
    from the copies in it, which are made before new code is tried. ``save`` writes a checkpoint of
    the current state; it is called before new code is tried if hosts have no room for these copies.
    """

    ahead_seconds = 0.2  # beside a call that takes longer, what is saved is nothing
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
        self._is_saving = False
        self._must_rejoin = False
        self._is_looked_at = False  # since they have come back
        self._has_made_any = False  # a call that can be put back
        self._is_fresh = False  # All that has gone well is what cannot be put back, as a `setup`.
        self._lives: set[str] = set()  # of the ranks' processes
        self._ahead: list[Future[Any]] | None = None  # the answers to come to the next `ask`
        self._last_seconds = math.inf
        self._unkept: list[str] = []  # what ranks could not put back, in words
        self._before_interrupt: list[TrialReport] = []  # of ranks that were stuck
        self._held = HoldReport(record, procs)
        # Without a record no rollback is possible, which is the default without a terminal.
        self._raises = False
        if record is None and self.edits.policy == "rollback" and not settings().on_edit_error:
            self.edits.policy = "hold"
            self._raises = self._held.is_of_this_program
        self.witnesses = procs.spawn("witness", Witness)
        self._trials = procs.spawn(
            "trial", Trial, actors._ref.uid, self.edits.seed(),
            watches_first=self.edits.policy == "hold" and not self._raises,
            memory="" if memory is None else memory.owner,
            is_told_of_room=self.edits.is_told_of_room,
        )  # fmt: skip

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

        If the ranks cannot be restored, or must not be (``in_place``), it raises ``BeginAgain``
        when there is a fix: ``with_attempts`` then restarts in new procs.
        """
        name = endpoint._name
        at_most = self._seconds if seconds is None else seconds

        def call() -> list[Any]:
            started = time.monotonic()
            slow = _SlowTrial(self, name, doing or name, at_most, in_place=in_place)
            asked, self._ahead = self._ahead, None
            if asked is None:
                asked = list(endpoint.stream(*args))
            if ahead and self._may_go_ahead():
                self._ahead = list(endpoint.stream(*args))
            with slow.listening():
                answers = answers_of(
                    asked, seconds=slow.patience, witnesses=self.witnesses, doing=doing or name,
                    unless=unless, slow=slow,
                )  # fmt: skip
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
        """Have each rank copy its current state into its host's memory during the next call; new
        processes continue from the copy. Skipped while ranks are called ``ahead``.
        """
        if self._ahead is None:
            with contextlib.suppress(MonarchError, ActorError, TimeoutError):
                self._trials.shadow.call().get(timeout=_ANSWER_SECONDS)

    def _save_without_room(self, name: str) -> None:
        """Save a checkpoint before new code is tried, if hosts have no room for copies."""
        if self._save is None or self._is_saving or self.is_ahead:
            return
        try:
            whys = self._trials.why_no_copy.call(name).get(timeout=_ANSWER_SECONDS)
        except (MonarchError, ActorError, TimeoutError):
            return
        why = next(filter(None, whys.values()), "")
        if not why:
            return
        if not self.edits.is_told_of_room:
            self.edits.is_told_of_room = True
            self._tell_of_copies(why)
        self._is_saving = True
        try:
            self._save()
        finally:
            self._is_saving = False

    def _tell_news(self) -> None:
        """Report the ranks' messages about their copies."""
        try:
            news = self._trials.news.call().get(timeout=_ANSWER_SECONDS)
        except (MonarchError, ActorError, TimeoutError):
            return
        for text in dict.fromkeys(one for some in news.values() for one in some):
            self._tell_of_copies(text)

    def _tell_of_copies(self, text: str) -> None:
        if self._record is not None:
            self._record.event("copies", text)
        else:
            self._held.slow(text)

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
        """Wait until each rank has its trial: only then are the rank's calls on trial."""
        if not self._lives:
            reports: list[TrialReport] = ask_all(
                self._trials.report, seconds=math.inf, witnesses=None, doing="",
                unless=unless or (lambda: False),
            )  # fmt: skip
            self._lives = {one.life for one in reports}

    def run(
        self, activity: str, work: Callable[[], T], doing: str = "", *, in_place: bool = True
    ) -> T:
        """Return the result of ``work``, which is repeated with newer code if new code has made it
        fail.

        ``activity`` is the name of all such calls, ``doing`` the text for this one.
        """
        __tracebackhide__ = True
        while True:
            generation, started = _generation(), time.monotonic()
            try:
                if self._must_rejoin and self._rejoin is not None:
                    self._rejoin()
                    self._must_rejoin = False
                    # Ranks that were put back were compared then, and have done nothing since.
                    is_looked_at, self._is_looked_at = self._is_looked_at, False
                    if not is_looked_at and self._alike is not None and (apart := self._alike()):
                        self._forget_copies()
                        raise BeginAgain(apart)
                result = work()
            except (BeginAgain, RanksLost, RunFailed):
                raise
            except Exception as error:
                # Calls that ranks were asked for ahead have changed them, or will.
                # Of ranks that are fresh nothing is lost, and a fix of what they were made with
                # counts where they are made anew.
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
            # Here, so that a person who interrupts the hold is not shown its reason once more.
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

    # Where something has failed

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
            failure = self._of_loss(activity, doing, error)
            self._end_ranks()
            if self._raises:
                self._held.tell_raised(failure, in_place=False)
                raise error
            self._wait(failure, in_place=False)
            raise BeginAgain(failure.first_line) from error
        if any(one.life not in self._lives for one in reports):
            raise BeginAgain(f"{doing}: new code could not be taken in place, procs are new")
        failure = self._what_failed(activity, doing, error, generation, reports)
        if reports:
            is_hang = isinstance(error, RankHangs)
            may_stay = self._rejoin is not None or self._have_all_raised(reports)
            in_place = may_stay and self._bring_back(is_hang=is_hang) and in_place
            if not may_stay:
                self._end_ranks()
            if not is_hang:  # By now all have said what they raised.
                reports = self._reports() or reports
                failure = self._what_failed(activity, doing, error, generation, reports)
        if self._raises:
            self._held.tell_raised(failure, in_place=in_place)
            raise error
        state = ""
        if in_place:
            state, in_place = self._looked_at()
        self._wait(failure, in_place=in_place, state=state)
        if not in_place:
            raise BeginAgain(failure.first_line)

    def _looked_at(self) -> tuple[str, bool]:
        """Return a text about the restored ranks, "" if they are unchanged, and whether they may
        continue.
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
        self._is_looked_at = True
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

    def _of_loss(self, activity: str, doing: str, error: Exception) -> Failure:
        """Return the failure for a death or hang; raises ``error`` if the code is not to blame: a
        first death may be chance, and so may a hang of code that has gone well.
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
                why = error.failure.root_cause.reason
            else:
                why = in_words(error.exception if isinstance(error, ActorError) else error)
            text, details = f"a rank died, for the second time: {why}", ""
        return Failure(
            doing, text, generation, good, details=details, is_first=is_first,
            older=edits.older(generation),
        )  # fmt: skip

    def _what_failed(
        self,
        activity: str,
        doing: str,
        error: Exception,
        generation: int,
        reports: Sequence[TrialReport],
    ) -> Failure:
        """Return the failure for a hold.

        Raises ``error`` if no edit since the beginning can have caused it, and no person can fix
        it.
        """
        edits, is_hang = self.edits, isinstance(error, RankHangs)
        # The reports of the code that ran: there may be a fix by now.
        on_trial = [one for one in reports if one.is_new]
        ran = on_trial or [one for one in reports if edits.is_edited(one.generation)]
        now = max((one.generation for one in ran), default=max(generation, _generation()))
        is_remote = isinstance(error, ActorError | RankHangs)
        if not (ran if is_remote else edits.is_edited(now)):
            if not self._is_worth_a_mend(activity, error):
                raise error
            ran, now = list(reports), max(one.generation for one in reports)
        raised = [one for one in ran if one.error]
        if not on_trial and (is_hang or _is_of_network(error, raised)):
            # A network that fails, or a disk that is slow, is no edit's fault.
            return self._of_loss(activity, doing, error)
        good = edits.good_before(activity, now)
        if on_trial:
            good = min(good, *(one.good or 0 for one in on_trial))
        # The call that fails may know better, as where a checkpoint says which code it fits.
        known = getattr(getattr(error, "exception", None), "good_generation", None)
        if known is not None and known < now:
            good = max(good, known)
        is_first = bool(on_trial) or edits.is_new(activity, now)

        def failure(told: str, ranks: tuple[int, ...], file: str, line: int, more: str) -> Failure:
            return Failure(
                doing=doing,
                error=told,
                generation=now,
                good=good,
                ranks=ranks,
                file=file,
                line=line,
                details=more,
                is_first=is_first,
                older=edits.older(now),
            )

        if isinstance(error, RankHangs):
            stuck = [one for one in ran if one.is_running and not one.is_waiting] or ran
            ranks = tuple(one.rank for one in stuck)
            text, _, stacks = str(error).partition("\n")
            return failure(text, ranks, stuck[0].file, stuck[0].line, stacks)
        if not raised:
            cause = error.exception if isinstance(error, ActorError) else error
            return failure(in_words(cause), (), *place_of(cause), "")
        # Ranks that waited for the others say only that they are gone.
        first = min(raised, key=lambda one: (_is_consequence(one), one.rank))
        alike = [one.rank for one in raised if (one.file, one.line) == (first.file, first.line)]
        return failure(first.error, tuple(sorted(alike)), first.file, first.line, first.traceback)

    def _is_worth_a_mend(self, activity: str, error: Exception) -> bool:
        """Whether a call that never succeeded, on code that was never edited, may be repeated.

        That is so if a person watches, who would rather fix the code than start again.
        """
        is_new = not self.edits.has_gone_well(activity)
        if not (is_new and isinstance(error, ActorError) and is_of_code(error.exception)):
            return False
        return self.edits.policy == "hold" and self._held.is_watched()

    def _reports(self) -> list[TrialReport]:
        """Return the reports of all ranks; an empty list if a rank cannot answer."""
        try:
            found = self._trials.report.call().get(timeout=_ANSWER_SECONDS)
        except (MonarchError, ActorError, TimeoutError):
            return []
        return list(found.values())

    def interrupt(self, ranks: Collection[int]) -> bool:
        """Interrupt these ranks if that is possible; return whether one has come back from its
        call.

        If not, all continue as before.
        """
        trials = self._trials.flatten("rank")
        self._before_interrupt = self._reports()
        if not self._before_interrupt:
            return False  # One has the GIL: it would be interrupted when it is through with that.
        try:
            asked = [
                trials.slice(rank=rank).come_back.call_one(self.come_back_seconds, 0.0)
                for rank in sorted(ranks)
            ]
            # All are waited for: an interruption that is still to come would hit what comes next.
            back = [one.get(timeout=self.come_back_seconds + _ANSWER_SECONDS) for one in asked]
            if any(back):
                return True
            self._trials.go_on.call().get(timeout=_ANSWER_SECONDS)
        except (MonarchError, ActorError, TimeoutError):
            pass
        self._before_interrupt = []
        return False

    def _have_all_raised(self, reports: Sequence[TrialReport]) -> bool:
        """Whether all ranks have raised an error of their own, and their groups are intact.

        Ranks get a moment for it; then nobody waits for anybody.
        """
        deadline = time.monotonic() + _PATIENCE_SECONDS
        # A rank may not have begun when another has raised: it then reports the call before.
        while not all(one.error for one in reports) and time.monotonic() < deadline:
            time.sleep(_PATIENCE_SECONDS / 40)
            reports = self._reports()
        if not reports or not all(one.error and not _is_consequence(one) for one in reports):
            return False
        try:
            return all(self._trials.has_averaged.call().get(timeout=_ANSWER_SECONDS).values())
        except (MonarchError, ActorError, TimeoutError):
            return False

    def _cut_connections(self) -> None:
        """End the ranks' collectives, so that ranks that wait in them return."""
        trials = self._trials
        ends = trials.connections.call().get(timeout=_ANSWER_SECONDS)
        theirs = {(there, here) for found in ends.values() for here, there in found}
        mine = [one for found in ends.values() for one in found if one in theirs]
        trials.cut.call(mine).get(timeout=_ANSWER_SECONDS)
        self._must_rejoin, self._is_looked_at = True, False

    def _bring_back(self, *, is_hang: bool) -> bool:
        """Make all ranks return from the call and restore their state; return whether that
        worked."""
        trials = self._trials
        try:
            if self._rejoin is not None:
                self._cut_connections()
            patience = 0.0 if is_hang else _PATIENCE_SECONDS
            back = trials.come_back.call(self.come_back_seconds, patience)
            if not all(back.get(timeout=self.come_back_seconds + _ANSWER_SECONDS).values()):
                self._end_ranks()
                return False
            # A call that was sent to a rank and has not begun there is over after this, too.
            self._actors.initialized.get(timeout=self.come_back_seconds)
            whys = trials.restore.call().get(timeout=_ANSWER_SECONDS * 3)
            told = trials.unkept.call().get(timeout=_ANSWER_SECONDS)
            self._unkept = list(dict.fromkeys(one for some in told.values() for one in some))
        except (MonarchError, ActorError, TimeoutError):
            self._end_ranks()
            return False
        return not any(whys.values())

    def _end_ranks(self) -> None:
        """End all ranks, because a rank is stuck: a push of the fix would wait for it without
        end."""
        brief = configured(stop_timeout_seconds=1.0, cleanup_timeout_seconds=1.0)
        with brief, contextlib.suppress(MonarchError, TimeoutError):
            self._procs.stop().get(timeout=_ANSWER_SECONDS)

    # How the run goes on.

    def _wait(self, failure: Failure, *, in_place: bool, state: str = "") -> None:
        """Wait until there is newer code than that which failed. Raises if none should be waited
        for."""
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
    """A slow call of ``name``, of code that may be on trial.

    With a ``record`` its config says what is slow, also during the call; a person may hold the
    call, or wait longer.
    """

    def __init__(
        self, holding: Holding, name: str, doing: str, most: float, *, in_place: bool
    ) -> None:
        self._holding = holding
        self._name = name
        self._doing = doing
        self._most = most
        self._in_place = in_place
        self._times = 1.0  # as much as the config says, as a person wants it
        self._is_told = self._is_given_up = self._is_stopped = False
        self._listening = contextlib.ExitStack()

    def patience(self) -> Patience:
        """Return how long the call may take, as of now."""
        now = _generation()
        is_mended = process.current().code_states.coming > now
        patience = self._holding.edits.patience(
            self._name, now, self._most * self._times, least=self._least * self._times,
            mend_waits=is_mended and self._in_place,
        )  # fmt: skip
        if is_mended and self._is_new and not self._in_place:
            # An interruption costs the processes: it has all of its time.
            return replace(patience, hard=patience.told)
        return patience

    @property
    def _least(self) -> float:
        record = self._holding._record
        wanted = None if record is None else record.edit_patience_seconds
        return settings().edit_patience_seconds if wanted is None else wanted

    @property
    def _is_new(self) -> bool:
        return self._holding.edits.is_new(self._name, _generation())

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """While the block runs, a person who has been told of the slow call can answer."""
        with self._listening:
            yield

    def tell(self, text: str) -> None:
        held = self._holding._held
        is_first, self._is_told = not self._is_told, True
        if self._is_new:
            if is_first:
                self._listening.enter_context(held.listening())
            text += "; it goes on. k holds it, + gives it more time"
            if is_first:
                text += (
                    ", here or in a `monarch sync --watch`; elsewhere `monarch runs hold` and "
                    "`monarch runs wait`. A fix that is pushed ends it, too. It is told after "
                    f"edit_patience_seconds = {self._least:g}, or ten times what is usual"
                )
        held.slow(text)

    def is_given_up(self) -> bool:
        if not self._is_new:
            return False
        for answer in self._holding._held.answers():
            if answer == HOLD:
                self._is_given_up = True
            elif answer == MORE:
                self._times *= TIMES_MORE
                more = self.patience()
                self._holding._held.slow(
                    f"{self._doing} has {took(more.stuck)} to make progress, and "
                    f"{took(more.most)} in all"
                )
        record = self._holding._record
        if record is not None and record.is_stopping and self._in_place and not self._is_stopped:
            self._is_stopped = True  # Ctrl-C: what was learned before can be saved.
            self._is_given_up |= self._holding.interrupt(range(len(self._holding.witnesses)))
        return self._is_given_up

    def may_end(self, looks: Sequence[RankLook], *, is_over: bool) -> bool:
        if not self._is_new:
            return True
        acting = [one.rank for one in looks if not (one.is_waiting or one.is_idle)]
        silent = set(range(len(self._holding.witnesses))) - {one.rank for one in looks}
        may_come_back = {*acting, *silent}
        if self._in_place and (not may_come_back or self._holding.interrupt(may_come_back)):
            return True  # Ranks that only wait in collectives are brought back by the others.
        if is_over and self._holding.edits.policy != "hold":
            return True
        what = "takes very long" if is_over else "makes no progress"
        self._holding._held.slow(
            f"{self._doing} {what}, and cannot be interrupted where it is. To end its processes "
            "costs what was learned since the last checkpoint: k does, and a fix that is pushed"
        )
        return False

    def went_well(self, seconds: float) -> None:
        """Record that the slow call has ended."""
        if self._is_told:
            self._holding._held.slow(f"{self._doing} has ended after {took(seconds)}")


def _generation() -> int:
    return process.current().generation


def _is_consequence(report: TrialReport) -> bool:
    """Whether the rank raised because another rank was gone, or because it was interrupted."""
    return any(word in report.error for word in _CONSEQUENCES)


def _is_of_network(error: Exception, raised: Sequence[TrialReport]) -> bool:
    """Whether all errors say only that ranks have lost each other."""
    return (
        isinstance(error, ActorError)
        and is_connection_lost(error.exception)
        and all(map(_is_consequence, raised))
    )
