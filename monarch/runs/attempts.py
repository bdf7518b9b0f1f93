"""Attempts at a training: each in new procs, and another one when ranks are lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from monarch.actor import HostMesh, ProcMesh
from monarch.runs.hold.hold_report import HoldReport
from monarch.runs.hold.run_memory import HostCopies, RunMemory
from monarch.runs.record.edits import Failure
from monarch.runs.record.places import in_short
from monarch.runs.record.record import Record
from monarch.runs.recover.recovery import (
    BeginAgain,
    NotMade,
    StepMade,
    procs_to_lose,
    with_restarts,
)
from monarch.runs.recover.restarts import Restarts
from monarch.runs.recover.saving import Saving
from monarch.runtime import process
from monarch_sync.words import counted

T = TypeVar("T")
_DOING = "the start"


@dataclass(frozen=True)
class TrainingAttempt:
    """One attempt of a training, with its ``procs`` on ``hosts``.

    After a loss there may be other hosts, or fewer, than at the start. Call ``step_made`` with the
    number of each step that all ranks have made. Write checkpoints through ``saving``.
    ``num_restarts`` counts the restarts of the run; ``saved_step`` is the step of the last
    checkpoint that earlier attempts saved. ``memory`` has the copies of earlier ranks' state in the
    hosts' memory: a recipe passes it to its ``Holding``, and asks it for the ``newest`` copies.
    """

    procs: ProcMesh
    hosts: HostMesh
    saving: Saving
    step_made: StepMade
    num_restarts: int
    saved_step: int | None
    memory: RunMemory | None = None
    is_first: bool = True

    def newest_copies(self) -> HostCopies | None:
        """Return earlier ranks' copies in the hosts' memory, to continue from.

        Returns ``None`` unless they are newer than the last checkpoint.
        """
        return None if self.memory is None or self.is_first else self.memory.newest()


def with_attempts(
    train: Callable[[TrainingAttempt], T],
    hosts: HostMesh,
    procs_per_host: int,
    record: Record,
    *,
    name: str,
    preload: Sequence[str] = (),
    max_restarts: int,
    has_shards: bool = False,
) -> T:
    """Return the result of ``train``, restarting it in new procs when a rank dies or hangs.

    It then continues from copies in the hosts' memory, if ``train`` uses them, or from the last
    checkpoint. ``max_restarts`` limits restarts in a row without a new checkpoint. ``has_shards``:
    each rank has a part of the state, and copies are used only if those of all ranks exist. Raises
    ``RunFailed`` beyond the limit, and if a restart would not help.
    """
    record.edits.begin(process.current().generation)
    restarts = Restarts(max_restarts)
    saved_step: int | None = None
    owner, is_first = RunMemory.new_owner(), True

    def memory_of(last_saved: Callable[[], int | None]) -> RunMemory:
        num_ranks = len(hosts) * procs_per_host
        return RunMemory(owner, hosts, num_ranks, needs_all=has_shards, saved_step=last_saved)

    def attempt(step_made: StepMade) -> T:
        nonlocal saved_step, is_first
        saving = Saving(record, restarts, saved_step)
        num_ranks = len(hosts) * procs_per_host
        memory = memory_of(lambda: saving.saved_step)
        report = HoldReport(record, hosts)

        def all_made(step: int) -> None:
            step_made(step)
            report.over(f"step {step}", process.current().generation)

        again = f"restart {restarts.num_counted} of {restarts.most}: "
        record.phase(
            f"{again if restarts.num_counted else ''}starting {counted(num_ranks, 'rank')}, and "
            "setting them up"
        )
        generation = process.current().generation
        try:
            with (
                hosts.on_warning(record.warned),
                procs_to_lose(hosts, procs_per_host, name, preload) as procs,
            ):
                tried = TrainingAttempt(
                    procs,
                    hosts,
                    saving,
                    all_made,
                    num_restarts=restarts.num_in_all,
                    saved_step=saved_step,
                    memory=memory,
                    is_first=is_first,
                )
                return train(tried)
        except NotMade as error:
            _hold(error, generation, record, report)
            raise BeginAgain(error.error) from error
        finally:
            saved_step, is_first = saving.saved_step, False

    def after_loss() -> None:
        nonlocal hosts
        hosts = record.hosts_after_loss(hosts)

    def goes_on_from() -> str:
        return "" if memory_of(lambda: saved_step).newest() else "the last checkpoint"

    try:
        return with_restarts(attempt, restarts, record, after_loss, goes_on_from)
    finally:
        memory_of(lambda: None).forget()


def _hold(error: NotMade, generation: int, record: Record, report: HoldReport) -> None:
    """Wait for code newer than ``generation`` after an actor's ``__init__`` has raised.

    Raises ``error`` instead if the code was not edited in this run, unless a person watches the run
    and may fix it.
    """
    edits = record.edits
    if not edits.is_edited(process.current().generation):
        is_for_a_person = edits.policy == "hold" and not edits.has_worked
        if not (is_for_a_person and report.is_watched()):
            raise error
    failure = Failure(
        doing=_DOING,
        error=error.error,
        generation=generation,
        good=edits.good_before(_DOING, generation),
        ranks=error.ranks,
        file=in_short(error.file),
        line=error.line,
        details=str(error),
        older=edits.older(generation),
    )
    report.answer(failure, edits, in_place=False)
    report.wait(failure, in_place=False)
