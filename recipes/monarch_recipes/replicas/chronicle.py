"""What is told of a run, and what is remembered of it to tell: metrics, faults, fingerprints."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from monarch.actor import Channel, Port
from monarch_recipes.replicas.fingerprint import FingerprintBook
from monarch_recipes.replicas.messages import Event, Mark, Metrics, StepResult
from monarch_recipes.replicas.recovery import RecoveryBook

__all__ = ["LIGHTHOUSE", "Chronicle"]

LIGHTHOUSE = "lighthouse"


class Chronicle:
    """``news`` is where the client listens. ``newest_step`` is the last that was reported."""

    def __init__(self, num_groups: int, num_steps: int, news: Port[Any]) -> None:
        self.news = news
        self.num_steps = num_steps
        self.newest_step = 0
        self.history: list[dict[str, float]] = []  # of all evaluations
        self.recovery = RecoveryBook(num_groups, time.monotonic())
        self.fingerprints = FingerprintBook()

    def tell(self, kind: str, text: str, **data: Any) -> None:
        """An event of the run."""
        self.news.send(Event(kind, text, data))

    async def written(self) -> None:
        """Wait until all that was told is written down."""
        port, answer = Channel[None].open(once=True)
        self.news.send(Mark(port))
        await answer.recv()

    def died(self, victim: str, step: int, why: str, details: str = "", **data: Any) -> None:
        """A group or the lighthouse is lost. ``details`` are lines of their own."""
        incident = self.recovery.detected(victim, why, step, time.monotonic())
        detection = incident.detection_seconds
        noticed = "" if detection is None else f" (noticed after {detection:.2f} s)"
        self.tell(
            "died", f"{victim} is lost after step {step}{noticed}: {why}\n{details}".rstrip(),
            step=step, reason=why, detection_seconds=detection, **data,
        )  # fmt: skip

    def committed(self, group: int, results: Sequence[StepResult]) -> dict[int, str]:
        """A group has committed a step; tells what is wrong with whose parameters, if anything."""
        result, name, now = results[0], f"group {group}", time.monotonic()
        healed = self.recovery.committed(name, result.step, result.participants, now)
        if healed is not None:
            self.tell(
                "healed",
                f"{name} trains again from step {result.step}: "
                f"{healed.heal_seconds or 0:.2f} s after it was there",
                group=group, **healed.row(),
            )  # fmt: skip
        self.recovery.committed(LIGHTHOUSE, result.step, result.participants, now)
        if result.step > self.newest_step:
            self.newest_step = result.step
            self._report(result)
        if result.fingerprint is None:
            return {}
        return self.compare(group, result.step, [one.fingerprint or "" for one in results])

    def compare(self, group: int, step: int, digests: Sequence[str]) -> dict[int, str]:
        """What is wrong with whose parameters, by group."""
        complaints = self.fingerprints.add(step, group, digests)
        for accused, what in complaints.items():
            self.tell(
                "fingerprint", f"group {accused}: {what}",
                group=accused, step=step, digests=self.fingerprints.of(step),
                agreed_step=self.fingerprints.agreed_step,
            )  # fmt: skip
        return complaints

    def discarded(self, group: int, step: int, results: Sequence[StepResult]) -> None:
        """A group has made a step in vain."""
        self.recovery.wasted()
        why = next((one.error for one in results if one.error), "").strip().partition("\n")[0]
        self.tell(
            "discarded", f"group {group} discards its step {step}: {why}",
            group=group, step=step, reason=why,
        )  # fmt: skip

    def rolled_back(self, step: int) -> None:
        """All groups are lost, and with them what came after the checkpoint of ``step``."""
        num_lost = self.newest_step - step
        if num_lost > 0:
            self.tell(
                "rolled_back",
                f"no group is left: all begin again after step {step}, {num_lost} steps are lost",
                step=step, num_steps_lost=num_lost,
            )  # fmt: skip
        self.fingerprints.roll_back()
        self.recovery.rolled_back(step)
        self.newest_step = step
        self.history = [row for row in self.history if row["step"] <= step]

    def evaluated(self, step: int) -> dict[str, float] | None:
        """What the held-out samples said after a step, if they were looked at."""
        for row in reversed(self.history):
            if row["step"] == step:
                return {name: value for name, value in row.items() if name != "step"}
        return None

    def _report(self, result: StepResult) -> None:
        values = {
            "loss": result.loss,
            **result.metrics,
            "learning_rate": result.learning_rate,
            "grad_norm": result.grad_norm,
            "samples_per_second": result.samples_per_second,
            "participants": float(result.participants),
            "generation": float(result.generation),
        }
        self.news.send(Metrics(result.step, self.num_steps, values))
