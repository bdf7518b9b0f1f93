"""The messages between the controller, the trainers of the groups and the client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from monarch.actor import Port
from monarch.errors import MonarchError
from monarch.runs.hold.trial import is_of_code, place_of
from monarch.runs.record.edits import Failure
from monarch.runs.record.error_text import in_words
from monarch.runs.recover.ranks import RunFailed
from monarch_recipes.replicas.chaos import InjectedFault
from monarch_recipes.replicas.recovery import RecoveryReport


@dataclass(frozen=True)
class Seat:
    """The place of a process: its group and its rank.

    ``slot`` counts the procs before it on its host.
    """

    group: int
    rank: int
    num_groups: int
    num_ranks: int
    slot: int

    @property
    def name(self) -> str:
        """The name of the rank and its group in messages."""
        return f"group {self.group}, rank {self.rank}"


@dataclass(frozen=True)
class TrainerReady:
    """A process has built its model.

    ``resumed_from`` is the checkpoint that it loaded. ``skipped`` says why newer ones were not
    used, and ``history`` has the evaluations that it contains.
    """

    step: int
    num_parameters: int
    pid: int
    hostname: str
    resumed_from: Path | None
    skipped: tuple[str, ...]
    history: list[dict[str, float]] = field(default_factory=list)
    gpu: str = "cpu"  # as `gpu_of` names it
    is_from_memory: bool = False  # it went on from its copy in the host's memory


@dataclass(frozen=True)
class Rendezvous:
    """The meeting points of a group: its own store, and the lighthouse that all groups share.

    ``peers`` are the hosts of all groups, or () if all are on one machine; they must be able to
    reach the group's processes. ``uses_nccl`` is true if each process has its own GPU, within
    groups and between.
    """

    store_host: str
    store_port: int
    lighthouse: str
    peers: tuple[str, ...] = ()
    uses_nccl: bool = False


@dataclass(frozen=True)
class StepOrder:
    """An order to make one step.

    ``least_step`` is the last step that others committed: a group that is behind it and does not
    heal is alone, and must not train. ``last_step`` is the end of the run. ``learning_rate`` is the
    highest one of the schedule. ``least_groups`` is the number of groups known to be about to make
    the step: a smaller quorum means that the lighthouse does not know them all yet.
    """

    least_step: int
    last_step: int
    learning_rate: float
    fingerprint_every: int = 0
    fault: InjectedFault | None = None
    least_groups: int = 1


@dataclass(frozen=True)
class GroupStep:
    """The result of one step on one rank. ``step`` is the number of steps committed so far.

    ``error`` says why this step was not committed, as far as this rank knows.
    ``samples_per_second`` counts all groups that take part. ``sums`` are the numbers behind
    ``fingerprint``, by parameter.
    """

    step: int
    committed: bool
    participants: int
    loss: float
    metrics: dict[str, float]
    learning_rate: float
    grad_norm: float
    samples_per_second: float
    generation: int
    fingerprint: str | None
    error: str | None
    sums: Mapping[str, int] | None = None


@dataclass(frozen=True)
class GroupsOutcome:
    """The end of a run. ``fingerprints`` has that of each group's final parameters, by group."""

    step: int
    held_out: dict[str, float]
    checkpoint: Path
    fingerprints: dict[int, str]
    report: RecoveryReport


@dataclass(frozen=True)
class RunEvent:
    """An event for ``Record.event``."""

    kind: str
    text: str
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RunMessage:
    """A text for ``Record.message``."""

    text: str


@dataclass(frozen=True)
class StepMetrics:
    """The metrics of a step for ``Record.metrics``."""

    step: int
    num_steps: int
    values: dict[str, float]


@dataclass(frozen=True)
class Holds:
    """New code has failed, and all groups wait for newer code; without a ``failure`` that is over.

    It is over when a step on code of this ``generation`` has succeeded. ``state`` says in words
    what became of the groups. ``begins_anew`` means that a group is restarted with the newer code.
    """

    doing: str
    generation: int
    failure: Failure | None = None
    state: str = ""
    in_place: bool = True
    begins_anew: bool = False


@dataclass(frozen=True)
class FlushRequest:
    """The client answers it when all earlier messages are written."""

    port: Port[None]


@dataclass(frozen=True)
class Finished:
    """The last message of a run that reached its end."""

    outcome: GroupsOutcome


@dataclass(frozen=True)
class Failed:
    """The last message of a run that failed."""

    error: Exception


class TaskError(MonarchError):
    """The model's or the data's code raised an error, which no restart would fix.

    ``good_generation`` is the last generation of code that is known to work, or None.
    ``is_of_code`` means that a fix of the code may help; ``no_edit_helps`` that none does, even
    after an edit.
    """

    def __init__(
        self,
        where: str,
        reason: str,
        file: str = "",
        line: int = 0,
        good_generation: int | None = None,
        *,
        is_of_code: bool = True,
        no_edit_helps: bool = False,
    ) -> None:
        super().__init__(where, reason, file, line, good_generation)
        self.is_of_code = is_of_code
        self.no_edit_helps = no_edit_helps
        self.where = where
        self.reason = reason
        self.file = file
        self.line = line
        self.good_generation = good_generation

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}"


class StepsInVain(TaskError, RunFailed):
    """A group has discarded many steps for the same reason, and no group has made one.

    Neither a restart nor a person can help, unless new code is the reason.
    """

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(where, reason, is_of_code=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.where, self.reason)


@contextmanager
def task_errors(where: str, but: type[Exception] | tuple[()] = ()) -> Iterator[None]:
    """Turn every error within the block into a TaskError, except errors of the type ``but``.

    SystemExit and KeyboardInterrupt are turned, too: they would end the process.
    """
    try:
        yield
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        if isinstance(error, but):
            raise
        raise TaskError(
            where,
            in_words(error),
            *place_of(error),
            getattr(error, "good_generation", None),
            is_of_code=is_of_code(error),
            no_edit_helps=getattr(error, "no_edit_helps", False),
        ) from error


class Unsaved(MonarchError):
    """A checkpoint could not be written, for example to a full disk. The run goes on.

    If the reason is a value in the state that cannot be saved, ``key`` names it; else it is None.
    """

    def __init__(self, step: int, reason: str, key: str | None = None) -> None:
        super().__init__(step, reason, key)
        self.step = step
        self.reason = reason
        self.key = key

    def __str__(self) -> str:
        return f"could not save a checkpoint after step {self.step}: {self.reason}"
