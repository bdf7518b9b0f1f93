"""Asking all ranks for a collective step: the first that fails ends it, and no rank may hang."""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from monarch.actor import Future, ProcMesh
from monarch.config_file import ConfigError
from monarch.errors import MonarchError
from monarch.runs.clock import held_seconds
from monarch.runs.record import Record
from monarch.runs.witness import Witness, stacks_of, tell_hang

_LOOK_SECONDS = 0.2


class RunFailed(MonarchError):
    """A run ends, and running it again as it is would not help; the message says why."""


class RunLost(RunFailed):
    """Nothing is wrong with the run: what it ran on was lost, and the same command goes on."""


class RankHangs(MonarchError):
    """A collective call was not answered in time; the message has every rank's stack."""


Unless = Callable[[], bool]


def ask_all(
    endpoint: Any,
    *args: Any,
    seconds: float | Callable[[], float],
    witnesses: Any,
    doing: str,
    unless: Unless | None = None,
) -> list[Any]:
    """The answers of all ranks, in order of arrival.

    Raises what the first rank raised, without waiting for those that wait for it: ``ActorError``,
    ``SupervisionError``. Raises ``RankHangs`` after ``seconds``; ``doing`` says what hangs then.
    ``seconds`` may be a function that says how many are left. Raises ``KeyboardInterrupt`` as soon
    as ``unless`` is true: where there is nothing to save, a run that is to stop need not wait.
    """
    return answers_of(
        endpoint.stream(*args), seconds=seconds, witnesses=witnesses, doing=doing, unless=unless
    )


def answers_of(
    asked: Iterable[Future[Any]],
    *,
    seconds: float | Callable[[], float],
    witnesses: Any,
    doing: str,
    unless: Unless | None = None,
) -> list[Any]:
    """As ``ask_all``, of ranks that were asked before; ``seconds`` count from now on."""
    started, held_before = time.monotonic(), held_seconds()
    deadline = math.inf if callable(seconds) else started + seconds
    looks = callable(seconds) or unless is not None
    answers = []
    for future in asked:
        while not future.done():
            if unless is not None and unless():
                raise KeyboardInterrupt
            left = seconds() if callable(seconds) else deadline - time.monotonic()
            # Clocks stand still while a person holds a rank.
            left += held_seconds() - held_before
            if left <= 0:
                waited = round(time.monotonic() - started, 1)
                raise RankHangs(tell_hang(stacks_of(witnesses), doing, waited))
            with contextlib.suppress(TimeoutError):  # It may be the endpoint's own: see below.
                future.get(timeout=min(left, _LOOK_SECONDS) if looks else left)
        answers.append(future.get())
    return answers


def when_up(endpoint: Any, record: Record) -> Any:
    """The answer of a single actor whose process may be coming up still, without a time limit;
    KeyboardInterrupt as soon as the run is to stop."""
    (answer,) = ask_all(
        endpoint, seconds=math.inf, witnesses=None, doing="", unless=lambda: record.is_stopping
    )
    return answer


class Ask(Protocol):
    """``ask_all``, for the actors of one mesh."""

    def __call__(
        self, endpoint: Any, *args: Any, doing: str, unless: Unless | None = None
    ) -> list[Any]: ...


def asking(procs: ProcMesh, seconds: float) -> Ask:
    """For actors on ``procs``; puts a witness into each."""
    witnesses = procs.spawn("witness", Witness)
    return functools.partial(ask_all, seconds=seconds, witnesses=witnesses)


def check_num_ranks(wanted: int | None, num_hosts: int, procs_per_host: int) -> int:
    """How many ranks there will be; all procs have one where none is ``wanted``.

    Raises ConfigError where they would not fit, or not be shared evenly by the hosts.
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
