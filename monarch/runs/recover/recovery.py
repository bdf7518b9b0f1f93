"""Recovery when ranks are lost: finds out why, and restarts if that may help."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, TypeVar

from monarch.actor import HostMesh, ProcMesh
from monarch.config import configured
from monarch.config_file import ConfigError
from monarch.errors import ActorError, MeshFailure, MonarchError, SupervisionError
from monarch.runs.record.error_text import in_words
from monarch.runs.record.record import Record
from monarch.runs.recover.deaths import Deaths
from monarch.runs.recover.ranks import RankHangs, RunFailed, RunLost
from monarch.runs.recover.restarts import Restarts

T = TypeVar("T")
StepMade = Callable[[int], None]

_NEWS_SECONDS = 10.0
_DOUBT_SECONDS = 1.0
_GRACE_SECONDS = 10.0
_STUCK_SECONDS = 1.0
_NOT_MADE = ".__init__ failed."  # how the reason of such a failure begins, after the actor's name
_PLACE = re.compile(r'\s*File "(.*)", line (\d+)')
_LOST_WORDS = ("gloo/transport", "NCCL", "Connection closed by peer")


class BeginAgain(Exception):
    """The attempt must be restarted in new procs, on purpose: it costs no restart of the budget."""


class NotMade(RunFailed):
    """The ``__init__`` of an actor has raised.

    ``error`` is its error, in one line; ``file`` and ``line`` are its place.
    """

    def __init__(self, failure: MeshFailure, ranks: tuple[int, ...]) -> None:
        super().__init__(failure.reason.rstrip())
        lines = failure.reason.rstrip().splitlines()
        places = [match for line in lines if (match := _PLACE.match(line))]
        self.error = lines[-1]
        self.file, self.line = (places[-1][1], int(places[-1][2])) if places else ("", 0)
        self.ranks = ranks

    @classmethod
    def of(cls, *failures: MeshFailure | None) -> NotMade | None:
        """Return the error of an actor's ``__init__``, if the first of these failures is such an
        error; else ``None``.

        It names all ranks that failed with the same error.
        """
        causes = [failure.root_cause for failure in failures if failure is not None]
        if not causes or causes[0].kind != "actor":
            return None
        reason = causes[0].reason
        if not reason.partition("\n")[0].endswith(_NOT_MADE):
            return None
        same = [cause for cause in causes if cause.reason == reason]
        return cls(causes[0], tuple(sorted({rank for x in same for rank in x.crashed_ranks})))


class RanksLost(Exception):
    """Ranks died or hang, so the others cannot continue. ``kind`` is for events."""

    def __init__(self, kind: Literal["died", "hung"], text: str) -> None:
        super().__init__(text)
        self.kind = kind


def with_restarts(
    attempt: Callable[[StepMade], T],
    restarts: Restarts,
    record: Record,
    after_loss: Callable[[], object] = lambda: None,
    goes_on_from: Callable[[], str] = lambda: "the last checkpoint",
) -> T:
    """Return the result of ``attempt``, which is restarted after each ``RanksLost``.

    ``attempt`` gets a function, and must call it with each step that all ranks have made. The first
    step after a loss becomes an event, with the seconds that the recovery took. ``after_loss``
    prepares the next attempt, and raises if there can be none. ``goes_on_from`` names where the
    next attempt will begin, "" if that is not known yet. Raises ``RunFailed`` when the budget has
    no restart left, and ``KeyboardInterrupt`` if the record is stopping, because lost state cannot
    be saved.
    """
    lost_at: float | None = None
    last_step = 0

    def step_made(step: int) -> None:
        nonlocal lost_at, last_step
        if lost_at is not None:
            seconds, lost_at = time.monotonic() - lost_at, None
            text = f"all ranks train again, {seconds:.1f} s later, from step {step}"
            if step <= last_step:
                text += f"; {_steps(step, last_step)} made again"
            record.event("respawned", text, seconds=seconds, step=step)
        last_step = step

    with Deaths():  # also between two attempts
        while True:
            try:
                return attempt(step_made)
            except BeginAgain as mended:
                lost_at = time.monotonic()
                # The failure itself was reported when it came.
                text = "all begin again in new processes"
                if last_step and (origin := goes_on_from()):
                    text += f", from {origin}"
                record.event("begun_again", text, why=str(mended))
                if record.is_stopping:
                    raise KeyboardInterrupt from mended
                try:
                    after_loss()  # Hosts may have been lost while it held.
                except RunFailed as error:
                    raise error from mended
            except RanksLost as lost:
                lost_at = time.monotonic()
                try:
                    after_loss()
                except RunFailed as error:
                    raise error from lost
                wait_seconds = restarts.next_wait_seconds(lost_at)
                if wait_seconds is None:
                    raise RunLost(
                        f"{lost}\ngiving up after {restarts.most} restarts without a new checkpoint"
                    ) from lost
                headline, line_end, stacks = str(lost).partition("\n")
                restart = f"restart {restarts.num_counted} of {restarts.most}"
                text = f"{headline.rstrip('.;: ')}; {restart}{line_end}{stacks}"
                record.event(lost.kind, text, wait_seconds=wait_seconds)
                record.phase(restart)
                if record.wait_until_stopping(wait_seconds):
                    raise KeyboardInterrupt from lost


def _steps(first: int, last: int) -> str:
    return f"step {first} is" if first == last else f"steps {first} to {last} are"


@contextmanager
def procs_to_lose(
    hosts: HostMesh, procs_per_host: int, name: str, preload: Sequence[str] = ()
) -> Iterator[ProcMesh]:
    """Spawn procs for one attempt, and stop them when the block ends. In the block, the loss of
    ranks raises ``RanksLost``.
    """
    procs = hosts.spawn_procs({"procs": procs_per_host}, name=name, preload=preload)
    grace_seconds = _STUCK_SECONDS  # There is nothing to save.
    try:
        with noticing_losses():
            yield procs
        grace_seconds = _GRACE_SECONDS
    finally:
        with configured(stop_timeout_seconds=grace_seconds, cleanup_timeout_seconds=1.0):
            procs.stop().get()


@contextmanager
def noticing_losses() -> Iterator[None]:
    """Turn deaths and errors of calls in the block into ``RanksLost``; no death ends the program.

    They become ``RunFailed`` if a restart would not help. Leave the block before the procs are
    stopped, since a stop on purpose is not reported.
    """
    with Deaths() as deaths:
        try:
            yield
        except (SupervisionError, ActorError, RankHangs) as error:
            raise _cause_of(error, deaths) from error


def _cause_of(error: SupervisionError | ActorError | RankHangs, deaths: Deaths) -> Exception:
    if isinstance(error, RankHangs):
        return RanksLost("hung", str(error))
    # If a rank has died, the ranks connected to it may raise first.
    is_lost = isinstance(error, SupervisionError) or is_connection_lost(error.exception)
    failures = deaths.wait(_NEWS_SECONDS if is_lost else _DOUBT_SECONDS)
    if failures:
        first = failures[0].root_cause
        if (fault := NotMade.of(*failures)) is not None:
            return fault
        rank = f"rank {first.crashed_ranks[0]}" if first.crashed_ranks else first.mesh_name
        return RanksLost("died", f"{rank} died: {first.reason}")
    if isinstance(error, SupervisionError):
        return RanksLost("died", str(error))
    if is_lost:
        return RanksLost("died", f"the ranks lost each other: {error.exception}")
    cause = error.exception
    if isinstance(cause, (ConfigError, MonarchError)):
        return RunFailed(in_words(cause))  # without a traceback, which does not matter
    return RunFailed(f"{in_words(cause)}\n{error.exception_formatted.rstrip()}")


def is_connection_lost(error: BaseException) -> bool:
    """Whether a collective failed because another rank, or the connection to it, is gone."""
    # By name, because not every client has torch.
    if any(cls.__name__ in ("DistError", "ConnectionError") for cls in type(error).__mro__):
        return True
    return isinstance(error, RuntimeError) and any(part in str(error) for part in _LOST_WORDS)
