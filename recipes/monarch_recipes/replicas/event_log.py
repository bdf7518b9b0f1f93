"""The events of a run: metrics, faults, and fingerprints.

A fingerprint is a digest of parameters and buffers. It shows whether replicas are equal. Two groups
that train apart, because each believes the other is dead, look healthy: their losses fall, and
their steps are the same. So does a group with another learning rate. Only the parameters show it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from monarch.actor import Channel, Port
from monarch_recipes.fingerprint import differences
from monarch_recipes.replicas.discards import Discards, reason_of
from monarch_recipes.replicas.messages import FlushRequest, GroupStep, RunEvent, StepMetrics
from monarch_recipes.replicas.recovery import RecoveryBook

LIGHTHOUSE = "lighthouse"
_NUM_STEPS_KEPT = 4  # for which fingerprints are remembered


class EventLog:
    """Sends the events of a run to the client, and remembers what later events need."""

    def __init__(
        self,
        num_groups: int,
        num_steps: int,
        news: Port[Any],
        *,
        collective_timeout_seconds: float = math.inf,
    ) -> None:
        #: The client's port.
        self.news = news
        #: The steps of the whole run.
        self.num_steps = num_steps
        #: The last step with metrics.
        self.newest_step = 0
        #: The values of all evaluations, each with its ``step``.
        self.history: list[dict[str, float]] = []
        self.discards = Discards()
        self.recovery = RecoveryBook(num_groups, time.monotonic())
        self.fingerprints = FingerprintBook()
        #: The texts about copies that were reported.
        self._copy_texts: set[str] = set()
        #: After so long a group has waited for others until its time was up.
        self._collective_timeout_seconds = collective_timeout_seconds

    def tell(self, kind: str, text: str, **data: Any) -> None:
        """Send an event of the run to the client."""
        self.news.send(RunEvent(kind, text, data))

    def tell_of_copies(self, texts: Iterable[str]) -> None:
        """Report each text about copies in the hosts' memory, once in a run."""
        for text in texts:
            if text not in self._copy_texts:
                self._copy_texts.add(text)
                self.tell("copies", text)

    async def written(self) -> None:
        """Wait until the client has written all events so far."""
        port, answer = Channel[None].open(once=True)
        self.news.send(FlushRequest(port))
        await answer.recv()

    def died(self, victim: str, step: int, why: str, details: str = "", **data: Any) -> None:
        """Report the loss of a group or the lighthouse. ``details`` is text for further lines."""
        if "group" in data:
            self._end_discards(data["group"])
        incident = self.recovery.detected(victim, why, step, time.monotonic())
        detection = incident.detection_seconds
        noticed = "" if detection is None else f" (noticed after {detection:.2f} s)"
        self.tell(
            "died",
            f"{victim} is lost after step {step}{noticed}: {why}\n{details}".rstrip(),
            step=step,
            reason=why,
            detection_seconds=detection,
            **data,
        )

    def committed(self, group: int, results: Sequence[GroupStep]) -> dict[int, str]:
        """Record a committed step of a group, from the results of its ranks.

        Returns how a group's parameters differ from the others', by group; {} if they do not.
        """
        self._end_discards(group)
        result, name, now = results[0], f"group {group}", time.monotonic()
        healed = self.recovery.committed(name, result.step, result.participants, now)
        if healed is not None:
            self.tell(
                "healed",
                f"{name} trains again from step {result.step}: "
                f"{healed.heal_seconds or 0:.2f} s after it was there",
                group=group,
                **healed.row(),
            )
        self.recovery.committed(LIGHTHOUSE, result.step, result.participants, now)
        if result.step > self.newest_step:
            self.newest_step = result.step
            self._report(result)
        if result.fingerprint is None:
            return {}
        digests = [rank.fingerprint or "" for rank in results]
        return self.compare(group, result.step, digests, [rank.sums or {} for rank in results])

    def compare(
        self, group: int, step: int, digests: Sequence[str], sums: Sequence[Mapping[str, int]] = ()
    ) -> dict[int, str]:
        """Compare a group's digests with those of the other groups, and report the differences.

        Return the differences as text, by group; {} if there are none. ``digests`` and ``sums``
        have one entry for each rank; a digest is computed from the sums.
        """
        complaints = self.fingerprints.add(step, group, digests, sums)
        for accused, difference in complaints.items():
            self.tell(
                "fingerprint",
                f"group {accused}: {difference}",
                group=accused,
                step=step,
                digests=self.fingerprints.of(step),
                agreed_step=self.fingerprints.agreed_step,
            )
        return complaints

    def discarded(
        self, group: int, step: int, results: Sequence[GroupStep], seconds: float
    ) -> None:
        """Record that a group's step was discarded after this many ``seconds``.

        Only the first of several discards for the same reason is reported here.
        """
        self.recovery.wasted()
        reason = reason_of(rank.error for rank in results)
        has_waited = seconds >= self._collective_timeout_seconds
        discard = self.discards.add(group, step, reason, has_waited=has_waited)
        if discard.count == 1:
            self.tell(
                "discarded",
                f"group {group} discards its step {step}: {reason}",
                group=group,
                step=step,
                reason=reason,
            )

    def _end_discards(self, group: int) -> None:
        discard = self.discards.end(group)
        if discard is not None and discard.count > 1:
            self.tell(
                "discarded",
                f"group {group} has discarded {discard.count} steps in a row for that reason",
                group=group,
                step=discard.step,
                reason=discard.reason,
                count=discard.count,
            )

    def rolled_back(self, step: int) -> None:
        """Report that all groups are lost, and with them the steps after ``step``."""
        num_lost = self.newest_step - step
        if num_lost > 0:
            self.tell(
                "rolled_back",
                f"no group is left: all begin again after step {step}, {num_lost} steps are lost",
                step=step,
                num_steps_lost=num_lost,
            )
        self.fingerprints.roll_back()
        self.recovery.rolled_back(step)
        self.newest_step = step
        self.history = [row for row in self.history if row["step"] <= step]

    def evaluated(self, step: int) -> dict[str, float] | None:
        """Return the held-out values after a step; None if it was not evaluated."""
        for row in reversed(self.history):
            if row["step"] == step:
                return {name: value for name, value in row.items() if name != "step"}
        return None

    def _report(self, result: GroupStep) -> None:
        values = {
            "loss": result.loss,
            **result.metrics,
            "learning_rate": result.learning_rate,
            "grad_norm": result.grad_norm,
            "samples_per_second": result.samples_per_second,
            "participants": float(result.participants),
            "generation": float(result.generation),
        }
        self.news.send(StepMetrics(result.step, self.num_steps, values))


class FingerprintBook:
    """The fingerprints of each group by step.

    The fingerprint that most groups have counts as right. If several fingerprints have equally many
    groups, it is the one that came first. ``agreed_step`` is the last step at which several groups
    were equal.
    """

    def __init__(self) -> None:
        self.agreed_step = 0
        self._digests: dict[int, dict[int, str]] = {}  # by step and group
        self._sums: dict[tuple[int, int], Mapping[str, int]] = {}  # by step and group

    def add(
        self, step: int, group: int, digests: Sequence[str], sums: Sequence[Mapping[str, int]] = ()
    ) -> dict[int, str]:
        """Add a group's fingerprints at a step.

        Return a text for each group that differs, by group. ``digests`` has one fingerprint for
        each rank; ``sums`` has the numbers behind it, if known.
        """
        by_group = self._digests.setdefault(step, {})
        for old_step in sorted(self._digests)[:-_NUM_STEPS_KEPT]:
            del self._digests[old_step]
        self._sums = {key: sums for key, sums in self._sums.items() if key[0] in self._digests}
        if len(set(digests)) > 1:
            ranks = differences(dict(enumerate(sums)))
            names = f": {ranks[0]}" if ranks else ""
            return {group: f"its ranks differ at step {step}: {', '.join(digests)}{names}"}
        by_group[group] = digests[0]
        self._sums[step, group] = sums[0] if sums else {}
        if len(by_group) > 1 and len(set(by_group.values())) == 1:
            self.agreed_step = max(self.agreed_step, step)
        right = self.reference(step)
        return {
            other: f"it has {digest} at step {step}, where group {right} has {by_group[right]}"
            + self._difference(step, other, right)
            for other, digest in by_group.items()
            if digest != by_group[right]
        }

    def _difference(self, step: int, group: int, right: int) -> str:
        """Return the tensors in which a group differs from the group ``right``, as text."""
        sums = {number: self._sums.get((step, number), {}) for number in (right, group)}
        groups = differences(sums) if all(sums.values()) else []
        return f", in {groups[0].what}" if groups else ""

    def reference(self, step: int) -> int:
        """Return the group whose fingerprint counts as right at a step.

        It is the first group that has the fingerprint of the most groups.
        """
        by_group = self._digests[step]
        digests = list(by_group.values())
        return max(by_group, key=lambda group: digests.count(by_group[group]))

    def of(self, step: int) -> dict[int, str]:
        """Return the fingerprints of a step, by group."""
        return dict(self._digests.get(step, {}))

    def forget(self, group: int) -> None:
        """Forget the fingerprints of a group, because it is started again."""
        for step, by_group in self._digests.items():
            by_group.pop(group, None)
            self._sums.pop((step, group), None)

    def roll_back(self) -> None:
        """Forget all fingerprints, because the steps after a checkpoint are made again."""
        self._digests.clear()
        self._sums.clear()
