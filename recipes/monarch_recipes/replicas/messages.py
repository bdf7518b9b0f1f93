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
    """Which replica a process is a part of. ``slot`` counts the procs before it on its host."""

    group: int
    rank: int
    num_groups: int
    num_ranks: int
    slot: int

    @property
    def name(self) -> str:
        """The name of the rank and its group, for people."""
        return f"group {self.group}, rank {self.rank}"


@dataclass(frozen=True)
class TrainerReady:
    """A process that has built its model.

    ``resumed_from`` is the checkpoint that it loaded; ``skipped`` says of newer ones what is wrong,
    ``history`` has the evaluations of the run that has saved it.
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

    ``peers`` are the hosts of all groups, where they are not all on one machine; they must be able
    to reach the group's processes. ``uses_nccl``, within groups and between them, where each
    process has a GPU of its own.
    """

    store_host: str
    store_port: int
    lighthouse: str
    peers: tuple[str, ...] = ()
    uses_nccl: bool = False


@dataclass(frozen=True)
class StepOrder:
    """Make one step.

    ``least_step`` is what others have committed: a group that is behind that and does not heal
    is alone, and must not train. ``last_step`` is where the run ends. ``learning_rate`` is the
    highest of the schedule. ``least_groups`` are alive and about to make it too, as far as is
    known: one that meets fewer has come before the lighthouse has heard of the others.
    """

    least_step: int
    last_step: int
    learning_rate: float
    fingerprint_every: int = 0
    fault: InjectedFault | None = None
    least_groups: int = 1


@dataclass(frozen=True)
class GroupStep:
    """One step of one rank. ``step`` is how many are committed now, this one included if it was.

    ``error`` is why it was not, as far as this rank knows. ``samples_per_second`` is of all groups
    that take part. ``sums`` are behind the ``fingerprint``, by parameter.
    """

    step: int
    committed: bool
    healed: bool
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
    """How a run ended. ``fingerprints`` are of the parameters at its end, by group."""

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
    """New code has failed, and all groups wait for newer one; or, without a ``failure``, a step has
    gone well since, on this ``generation``. ``state`` is what has become of the groups, in words;
    ``begins_anew``: one is started again with the newer code.
    """

    doing: str
    generation: int
    failure: Failure | None = None
    state: str = ""
    in_place: bool = True
    begins_anew: bool = False


@dataclass(frozen=True)
class FlushRequest:
    """To be answered once all that was told before it is written down."""

    port: Port[None]


@dataclass(frozen=True)
class Finished:
    """The last of a run that has come to its end."""

    outcome: GroupsOutcome


@dataclass(frozen=True)
class Failed:
    """The last of a run that has not."""

    error: Exception


class TaskError(MonarchError):
    """The model or the data raised: the code's fault, which no restart mends.

    ``good_generation`` is that of the last code that is known to be without it, if any is.
    ``is_of_code``: a fix of the code may help. ``no_edit_helps``: none does, even where an edit
    came before.
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
    """A group has discarded step after step for the same reason, and nobody has made one: no
    restart would help, nor would a person who looks at the run, unless new code is the reason."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(where, reason, is_of_code=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.where, self.reason)


@contextmanager
def task_errors(where: str, but: type[Exception] | tuple[()] = ()) -> Iterator[None]:
    """Within, whatever is raised is the task's fault, ``but`` for errors of that kind; so is a
    ``SystemExit`` or a ``KeyboardInterrupt``, which would end the process."""
    try:
        yield
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        if isinstance(error, but):
            raise
        good = getattr(error, "good_generation", None)
        raise TaskError(
            where, in_words(error), *place_of(error), good,
            is_of_code=is_of_code(error), no_edit_helps=getattr(error, "no_edit_helps", False),
        ) from error  # fmt: skip


class Unsaved(MonarchError):
    """The operating system refused a checkpoint, as where the disk is full, or the state has under
    ``key`` what cannot be saved: it goes on without."""

    def __init__(self, step: int, reason: str, key: str | None = None) -> None:
        super().__init__(step, reason, key)
        self.step = step
        self.reason = reason
        self.key = key

    def __str__(self) -> str:
        return f"could not save a checkpoint after step {self.step}: {self.reason}"
