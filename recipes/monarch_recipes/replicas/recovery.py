"""The cost of each fault: seconds until it is noticed, until the restart, to heal, without
training.

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

    ``began_at`` is the time at which an injected fault was ordered. For another fault it is the
    time at which it was noticed, and ``detection_seconds`` is None.
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
        """Seconds from the fault until it was noticed; None if the fault was not injected."""
        return self.detected_at - self.began_at if self.on_purpose else None

    @property
    def restart_seconds(self) -> float | None:
        """Seconds from the notice of the fault until the new processes have built the model.

        This includes waits. It is None until then.
        """
        return None if self.ready_at is None else self.ready_at - self.detected_at

    @property
    def heal_seconds(self) -> float | None:
        """Seconds from the restart to the first step that the victim takes part in.

        It is None before that.
        """
        if self.ready_at is None or self.healed_at is None:
            return None
        return self.healed_at - self.ready_at

    def overlaps(self, gap: _Gap) -> bool:
        """Return whether the fault disturbed training between the two times of ``gap``."""
        ended_at = self.healed_at or self.ready_at or math.inf
        return gap[1] >= self.began_at and gap[0] <= ended_at

    def row(self) -> dict[str, Any]:
        """Return the incident as plain data, with times rounded to milliseconds."""
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
    """The faults of a whole run, and what they cost.

    ``goodput`` is the useful share of the time between the beginning of the first step and the end
    of the last one. A committed step counts for ``usual_step_seconds``, the time of an undisturbed
    step; if only some groups made it, for their share. So everything else lowers it: waits for dead
    groups, discarded or repeated steps, saves, evaluations, holds.

    ``batch_share`` is the share of the possible batches that were learned from. An absent group
    misses batches, a discarded step wastes them, and steps after the last checkpoint are lost when
    all groups die. It does not depend on time.
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
        """The useful share of the time, from 0 to 1."""
        return min(1.0, self.useful_seconds / max(self.training_seconds, 1e-9))

    @property
    def batch_share(self) -> float:
        """The share of the batches that were learned from, from 0 to 1."""
        return self.num_batches_committed / max(1, self.num_batches_possible)

    @property
    def longest_stall_seconds(self) -> float:
        """The longest time without training because of one fault."""
        return max((incident.stall_seconds for incident in self.incidents), default=0.0)

    def data(self) -> dict[str, Any]:
        """Return the report as plain data for JSON."""
        plain = asdict(self)
        plain["incidents"] = [incident.row() for incident in self.incidents]
        return {
            **plain,
            "goodput": round(self.goodput, 4),
            "batch_share": round(self.batch_share, 4),
            "longest_stall_seconds": round(self.longest_stall_seconds, 3),
        }

    def lines(self) -> list[str]:
        """Return the report as lines of text: a table of the faults, then the shares."""
        head = ("step", "victim", "detected", "restarted", "healed", "stall", "cause")
        rows = [
            (
                str(incident.step),
                incident.victim,
                _seconds(incident.detection_seconds),
                _seconds(incident.restart_seconds),
                _seconds(incident.heal_seconds),
                _seconds(incident.stall_seconds),
                incident.cause,
            )
            for incident in self.incidents
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
    """Collects faults and committed steps of a run, and computes the report."""

    def __init__(self, num_groups: int, now: float) -> None:
        self._num_groups = num_groups
        self._started_at = now
        self._incidents: list[Incident] = []
        self._ordered: dict[str, float] = {}  # when a fault was injected, by victim
        self._participants: dict[int, int] = {}  # the number of groups, by committed step
        self._commit_times: list[float] = []
        self._num_wasted = 0  # batches that were learned from in vain

    def ordered(self, victim: str, now: float) -> None:
        """Note that a fault was injected into ``victim``."""
        self._ordered[victim] = now

    def detected(self, victim: str, cause: str, step: int, now: float) -> Incident:
        """Note that something has died, hangs, or has wrong parameters; return the incident."""
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
        """Note that ``victim`` has committed a step.

        Return the incident of the victim that this step ends; ``None`` if it ends none.
        """
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
        """Count one discarded step of a group."""
        self._num_wasted += 1

    def rolled_back(self, step: int) -> None:
        """Note that all groups have died, so that the steps after ``step`` are made again."""
        lost = [self._participants.pop(late) for late in list(self._participants) if late > step]
        self._num_wasted += sum(lost)

    def report(self, now: float) -> RecoveryReport:
        """Return the report up to now."""
        stalls: set[_Gap] = set()  # Groups that are lost together cause one stall.
        for incident in self._incidents:
            end = incident.healed_at or incident.ready_at or incident.detected_at
            gap = self._longest_gap(incident.began_at, end)
            incident.stall_seconds = _length(gap)
            stalls.add(gap)
        gaps = list(itertools.pairwise(self._commit_times))
        undisturbed = [
            gap for gap in gaps if not any(incident.overlaps(gap) for incident in self._incidents)
        ]
        usual = statistics.median(map(_length, undisturbed or gaps)) if gaps else 0.0
        num_committed = sum(self._participants.values())
        # The beginning of the first step is not known.
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
        return [
            incident
            for incident in self._incidents
            if incident.victim == victim and incident.healed_at is None
        ]

    def _longest_gap(self, begin: float, end: float) -> _Gap:
        """Return the longest time between two commits that overlaps ``begin`` to ``end``."""
        pairs = itertools.pairwise(self._commit_times)
        touched = (pair for pair in pairs if pair[1] > begin and pair[0] < end)
        return max(touched, key=_length, default=(begin, begin))


def _length(gap: _Gap) -> float:
    return gap[1] - gap[0]


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.2f} s"
