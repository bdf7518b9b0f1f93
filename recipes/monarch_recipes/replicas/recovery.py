"""The cost of each fault: seconds to notice it, to restart, to heal, and without training.

Time is an argument, in seconds of a clock that never goes back.
"""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import asdict, dataclass
from typing import Any

from monarch_sync.words import counted

_Gap = tuple[float, float]  # without a committed step: from one commit to the next


@dataclass
class Incident:
    """One fault, from its beginning to the first step that its victim committed again.

    ``began_at`` is when a fault on purpose was sent off; for another kind it is when it was
    noticed, and ``detection_seconds`` is not known.
    """

    victim: str
    cause: str
    step: int
    began_at: float
    detected_at: float
    on_purpose: bool
    ready_at: float | None = None
    healed_at: float | None = None
    stall_seconds: float = 0.0

    @property
    def detection_seconds(self) -> float | None:
        """Seconds from the fault to its discovery; None where the fault was not injected."""
        return self.detected_at - self.began_at if self.on_purpose else None

    @property
    def restart_seconds(self) -> float | None:
        """Seconds from the discovery to processes with the model built, the back-off included."""
        return None if self.ready_at is None else self.ready_at - self.detected_at

    @property
    def heal_seconds(self) -> float | None:
        """Seconds from then to the first step that the victim shares in again."""
        if self.ready_at is None or self.healed_at is None:
            return None
        return self.healed_at - self.ready_at

    def overlaps(self, gap: _Gap) -> bool:
        """Whether it disturbed steps between these two times."""
        ended_at = self.healed_at or self.ready_at or math.inf
        return gap[1] >= self.began_at and gap[0] <= ended_at

    def row(self) -> dict[str, Any]:
        """The incident as data, rounded to milliseconds."""
        return {
            "victim": self.victim,
            "cause": self.cause,
            "step": self.step,
            "detection_seconds": _rounded(self.detection_seconds),
            "restart_seconds": _rounded(self.restart_seconds),
            "heal_seconds": _rounded(self.heal_seconds),
            "stall_seconds": _rounded(self.stall_seconds),
        }


@dataclass(frozen=True)
class RecoveryReport:
    """A whole run.

    ``goodput`` is the share of the time that was of use: of all seconds from the begin of the first
    step to the end of the last, those that its committed steps take where nothing disturbs them
    (``usual_step_seconds`` each). A step that a group was away from counts for the share of the
    groups that made it. So all that is no such step lowers it: waits for the dead, steps that are
    discarded or made again, saves, evaluations, holds.

    ``batch_share`` is the share of the batches that could have been learnt from which were: a group
    that is away misses batches, a step that is discarded wastes them, and what was made after the
    last checkpoint is lost when all groups die. Time is not in it.
    """

    incidents: tuple[Incident, ...]
    num_steps: int
    num_batches_committed: int
    num_batches_possible: int
    total_seconds: float
    stalled_seconds: float
    training_seconds: float
    usual_step_seconds: float
    useful_seconds: float

    @property
    def goodput(self) -> float:
        """0 to 1."""
        return min(1.0, self.useful_seconds / max(self.training_seconds, 1e-9))

    @property
    def batch_share(self) -> float:
        """0 to 1."""
        return self.num_batches_committed / max(1, self.num_batches_possible)

    @property
    def longest_stall_seconds(self) -> float:
        """The longest time without training because of one fault."""
        return max((one.stall_seconds for one in self.incidents), default=0.0)

    def data(self) -> dict[str, Any]:
        """The same as plain data for JSON, with the goodput and the longest stall in seconds."""
        plain = asdict(self)
        plain["incidents"] = [incident.row() for incident in self.incidents]
        return {
            **plain,
            "goodput": round(self.goodput, 4),
            "batch_share": round(self.batch_share, 4),
            "longest_stall_seconds": round(self.longest_stall_seconds, 3),
        }

    def lines(self) -> list[str]:
        """A table for people."""
        head = ("step", "victim", "detected", "restarted", "healed", "stall", "cause")
        rows = [
            (
                str(one.step),
                one.victim,
                *map(
                    _seconds,
                    (
                        one.detection_seconds,
                        one.restart_seconds,
                        one.heal_seconds,
                        one.stall_seconds,
                    ),
                ),
                one.cause,
            )
            for one in self.incidents
        ]
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        table = [head, *rows] if rows else []
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in table]
        lines.append(
            f"goodput {self.goodput:.1%} of the time: {counted(self.num_steps, 'step')} of "
            f"{self.usual_step_seconds:.3f} s when undisturbed, in {self.training_seconds:.1f} s, "
            f"of which {self.stalled_seconds:.1f} s were spent waiting for recoveries"
            + (f", at most {self.longest_stall_seconds:.2f} s for one" if self.incidents else "")
        )
        lines.append(
            f"{self.batch_share:.1%} of the batches: {self.num_batches_committed} of "
            f"{self.num_batches_possible} were learned from"
        )
        return lines


class RecoveryBook:
    """Takes down what happens, and draws the sum."""

    def __init__(self, num_groups: int, now: float) -> None:
        self._num_groups = num_groups
        self._started_at = now
        self._incidents: list[Incident] = []
        self._ordered: dict[str, float] = {}
        self._participants: dict[int, int] = {}
        self._commit_times: list[float] = []
        self._num_wasted = 0

    def ordered(self, victim: str, now: float) -> None:
        """A fault on purpose has been sent off."""
        self._ordered[victim] = now

    def detected(self, victim: str, cause: str, step: int, now: float) -> Incident:
        """Something has died, or hangs, or has gone astray."""
        began_at = self._ordered.pop(victim, None)
        incident = Incident(
            victim=victim,
            cause=cause,
            step=step,
            began_at=now if began_at is None else began_at,
            detected_at=now,
            on_purpose=began_at is not None,
        )
        self._incidents.append(incident)
        return incident

    def ready(self, victim: str, now: float) -> None:
        """Note that a victim has been started again."""
        for incident in self._open(victim):
            incident.ready_at = incident.ready_at or now

    def committed(self, victim: str, step: int, participants: int, now: float) -> Incident | None:
        """``victim`` has committed a step; the incident of it that this ends, if one was open."""
        if step not in self._participants:
            self._participants[step] = participants
            self._commit_times.append(now)
        ended = None
        for incident in self._open(victim):
            if incident.ready_at is not None:
                incident.healed_at = now
                ended = incident
        return ended

    def wasted(self) -> None:
        """A group has made a step that was discarded."""
        self._num_wasted += 1

    def rolled_back(self, step: int) -> None:
        """All groups have died: what came after ``step`` will be made again."""
        lost = [self._participants.pop(late) for late in list(self._participants) if late > step]
        self._num_wasted += sum(lost)

    def report(self, now: float) -> RecoveryReport:
        """The sum up to now."""
        stalls: set[_Gap] = set()  # Groups that are lost together are waited for together.
        for incident in self._incidents:
            end = incident.healed_at or incident.ready_at or incident.detected_at
            gap = self._longest_gap(incident.began_at, end)
            incident.stall_seconds = _length(gap)
            stalls.add(gap)
        gaps = list(itertools.pairwise(self._commit_times))
        quiet = [gap for gap in gaps if not any(one.overlaps(gap) for one in self._incidents)]
        usual = statistics.median(map(_length, quiet or gaps)) if gaps else 0.0
        num_committed = sum(self._participants.values())
        # Nobody saw the first step begin.
        training = self._commit_times[-1] - self._commit_times[0] + usual if gaps else 0.0
        return RecoveryReport(
            incidents=tuple(sorted(self._incidents, key=lambda incident: incident.began_at)),
            num_steps=len(self._participants),
            num_batches_committed=num_committed,
            num_batches_possible=self._num_groups * len(self._participants) + self._num_wasted,
            total_seconds=round(now - self._started_at, 3),
            stalled_seconds=round(sum(max(0.0, _length(gap) - usual) for gap in stalls), 3),
            training_seconds=round(training, 3),
            usual_step_seconds=round(usual, 6),
            useful_seconds=round(usual * num_committed / self._num_groups, 3),
        )

    def _open(self, victim: str) -> list[Incident]:
        return [one for one in self._incidents if one.victim == victim and one.healed_at is None]

    def _longest_gap(self, begin: float, end: float) -> _Gap:
        """The longest time without a commit that has a part between ``begin`` and ``end``."""
        pairs = itertools.pairwise(self._commit_times)
        touched = (pair for pair in pairs if pair[1] > begin and pair[0] < end)
        return max(touched, key=_length, default=(begin, begin))


def _length(gap: _Gap) -> float:
    return gap[1] - gap[0]


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.2f} s"
