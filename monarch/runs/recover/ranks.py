"""Calls all ranks for a collective step: the first failure ends it, and no rank may hang."""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from monarch.actor import Future, ProcMesh
from monarch.config_file import ConfigError
from monarch.errors import MonarchError
from monarch.runs.record.record import Record
from monarch.runs.record.slowness import Patience, RankLook, Slowness, told_as_slow
from monarch.runs.recover.clock import held_seconds
from monarch.runs.recover.witness import Witness, stacks_of, tell_hang

_LOOK_SECONDS = 0.2
_ANSWER_SECONDS = 3.0


class RunFailed(MonarchError):
    """A run ends, and repeating it unchanged would not help; the message says why."""


class RunLost(RunFailed):
    """A run ends because its hosts or ranks were lost; the same command resumes it."""


class RankHangs(MonarchError):
    """A collective call was not answered in time; the message has every rank's stack."""


Unless = Callable[[], bool]


def ask_all(
    endpoint: Any,
    *args: Any,
    seconds: float,
    witnesses: Any,
    doing: str,
    unless: Unless | None = None,
) -> list[Any]:
    """Call all ranks; return their answers, in order of arrival.

    Raises the error of the first rank that fails (``ActorError``, ``SupervisionError``); ranks that
    wait for the failed rank are not waited for. Raises ``RankHangs`` if they make no progress for
    ``seconds``, or have not answered after several times that; ``doing`` names the work in its
    text. Time in which a rank compiles or imports does not count. Raises ``KeyboardInterrupt`` as
    soon as ``unless`` is true: a run that must stop and has nothing to save need not wait.
    """
    futures = endpoint.stream(*args)
    return answers_of(futures, seconds=seconds, witnesses=witnesses, doing=doing, unless=unless)


def answers_of(
    futures: Iterable[Future[Any]],
    *,
    seconds: float | Callable[[], Patience],
    witnesses: Any,
    doing: str,
    unless: Unless | None = None,
    slow: SlowCall | None = None,
) -> list[Any]:
    """Return the answers of ranks that were called before, as ``ask_all`` does.

    ``seconds`` counts from this call on; it may be a function that returns the current patience.
    ``slow`` is asked what to do if the answers take long.
    """
    call = _CallWatch(witnesses, seconds, doing, slow or SlowCall())
    answers = []
    for future in futures:
        while not future.done():
            if unless is not None and unless():
                raise KeyboardInterrupt
            with contextlib.suppress(TimeoutError):  # An endpoint's own is raised below.
                future.get(timeout=call.wait_seconds)
            if not future.done():
                call.look()
        answers.append(future.get())
    return answers


class SlowCall:
    """Decides what happens to a slow call. These defaults are for code that has succeeded."""

    def tell(self, text: str) -> None:
        """Report to people that the call takes longer than it should.

        It is called again whenever the call's time has doubled.
        """

    def is_given_up(self) -> bool:
        """Whether a person does not want to wait any longer."""
        return False

    def may_end(self, looks: Sequence[RankLook], *, is_over: bool) -> bool:
        """Whether the call may end by ``RankHangs``. It is either stuck or, if ``is_over``, has
        taken too long.

        If the result is False, this is called again when the call's time has doubled.
        """
        return True


class _CallWatch:
    """One call of all ranks in progress, as its caller sees it."""

    def __init__(
        self, witnesses: Any, seconds: float | Callable[[], Patience], doing: str, slow: SlowCall
    ) -> None:
        #: How long to wait until the next `look`.
        self.wait_seconds = _LOOK_SECONDS
        self._witnesses = witnesses
        if not callable(seconds):
            fixed = Patience.of_proved_code(seconds) if witnesses else Patience.unseen(seconds)
            self._patience: Callable[[], Patience] = lambda: fixed
        else:
            self._patience = seconds
        self._doing = doing
        self._slow = slow
        #: For how long calls of this program had been held before.
        self._held_before = held_seconds()
        self._started = self._now()
        self._num_ranks = 0 if self._witnesses is None else len(self._witnesses)
        self._slowness = Slowness(self._num_ranks, self._started)
        #: The witnesses' looks to come; empty between two looks, the last of which began then.
        self._questions: list[Future[RankLook]] = []
        self._asked_at = self._started
        #: After how many seconds the call was last reported as slow, and tried to be ended.
        self._told_at = self._tried_at = 0.0
        #: Whether it was too long already when it was last tried to be ended.
        self._was_over = False

    def _now(self) -> float:
        """Return the time of a clock that stops while a person holds a rank."""
        return time.monotonic() - (held_seconds() - self._held_before)

    def look(self) -> None:
        """Look at the ranks again. Raises ``RankHangs`` if the call must end."""
        now, patience = self._now(), self._patience()
        limits = (patience.told, patience.hard, patience.stuck, patience.most)
        remaining = [self._started + limit - now for limit in limits]
        self.wait_seconds = min([_LOOK_SECONDS, *(x for x in remaining if x > 0)])
        self._ask_ranks(now, patience)
        seconds, slowness = now - self._started, self._slowness
        is_told = seconds >= patience.told
        if seconds >= patience.hard or (is_told and self._slow.is_given_up()):
            raise self._hangs(seconds)
        is_over = slowness.is_over(now, patience)
        if is_over or slowness.is_stuck(now, patience):
            if seconds >= 2 * self._tried_at or (is_over and not self._was_over):
                self._tried_at, self._was_over = seconds, is_over
                hangs = self._hangs(seconds)  # with stacks from before an interruption
                if self._slow.may_end(slowness.looks, is_over=is_over):
                    raise hangs
        elif is_told and seconds >= 2 * self._told_at:
            self._told_at = seconds
            looks = slowness.looks
            self._slow.tell(told_as_slow(self._doing, seconds, patience, looks, self._num_ranks))

    def _ask_ranks(self, now: float, patience: Patience) -> None:
        if self._witnesses is None:
            return
        if not self._questions:
            if now - self._asked_at >= patience.look_seconds:
                self._asked_at = now
                flat, ranks = self._witnesses.flatten("rank"), range(self._num_ranks)
                self._questions = [flat.slice(rank=rank).look.call_one() for rank in ranks]
            return
        is_late = now - self._asked_at >= _ANSWER_SECONDS
        if is_late or all(question.done() for question in self._questions):
            looks = []
            for question in self._questions:
                if question.done():
                    with contextlib.suppress(Exception):  # The rank's call reports its loss.
                        looks.append(question.get())
            self._questions = []
            self._slowness.seen(now, looks)

    def _hangs(self, seconds: float) -> RankHangs:
        if self._witnesses is None:
            return RankHangs(f"{self._doing} has not ended within {round(seconds, 1):g} s")
        return RankHangs(tell_hang(stacks_of(self._witnesses), self._doing, round(seconds, 1)))


def when_up(endpoint: Any, record: Record) -> Any:
    """Return the answer of a single actor whose process may still be starting, without a time
    limit.

    Raises KeyboardInterrupt as soon as the run must stop.
    """
    (answer,) = ask_all(
        endpoint, seconds=math.inf, witnesses=None, doing="", unless=lambda: record.is_stopping
    )
    return answer


def asking(procs: ProcMesh, seconds: float) -> Callable[..., list[Any]]:
    """Return ``ask_all`` for actors on ``procs``, with a witness in each proc."""
    witnesses = procs.spawn("witness", Witness)
    return functools.partial(ask_all, seconds=seconds, witnesses=witnesses)


def check_num_ranks(wanted: int | None, num_hosts: int, procs_per_host: int) -> int:
    """Return the number of ranks; it is ``wanted``, by default one for each proc.

    Raises ConfigError if they would not fit, or could not be shared evenly by the hosts.
    """
    num_procs = num_hosts * procs_per_host
    num_ranks = num_procs if wanted is None else wanted
    if num_ranks > num_procs:
        raise ConfigError(
            f"asks for {num_ranks} ranks, and there are {num_procs} procs ({num_hosts} host(s) x "
            f"{procs_per_host}); --procs gives each host more",
            key="num_ranks",
        )
    if num_ranks % num_hosts:
        raise ConfigError(
            f"asks for {num_ranks} ranks, which {num_hosts} hosts cannot share evenly",
            key="num_ranks",
        )
    return num_ranks
