"""The buffer of judged groups between judging and training: its rules, and the actor that has
it.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monarch.actor import Actor, endpoint
from monarch.whole_file import replacing
from monarch_recipes.rollouts.groups import SampleGroup


@dataclass(frozen=True)
class Taken:
    """The groups that a step learns from. Others were too old (stale) or wait for the next step."""

    groups: list[SampleGroup]
    num_stale: int
    num_waiting: int

    def numbers(self, step: int) -> dict[str, float]:
        """Return what a step reports about the buffer, as metrics by name.

        ``staleness`` is the mean age of the groups' policies, in steps.
        """
        ages = [step - group.version for group in self.groups]
        return {
            "groups": len(self.groups),
            "stale_groups": self.num_stale,
            "waiting_groups": self.num_waiting,
            "staleness": sum(ages) / max(1, len(ages)),
        }


class Replay:
    """Groups in the order in which they were made, up to ``capacity``.

    After the loss of a process, ``add`` of the same batch or ``take`` of the same step may be
    called again: it has no further effect.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.groups: list[SampleGroup] = []
        self.newest_batch = -1
        self._taken: tuple[int, Taken] | None = None

    def add(self, batch: int, groups: Sequence[SampleGroup]) -> int:
        """Add the groups of a batch.

        Drop the oldest groups if there are too many; return how many.
        """
        if batch <= self.newest_batch:
            return 0
        self.newest_batch = batch
        self.groups += groups
        num_dropped = max(0, len(self.groups) - self.capacity)
        del self.groups[:num_dropped]
        return num_dropped

    def take(self, step: int, most: int, max_staleness: int) -> Taken:
        """Remove and return the oldest ``most`` groups, for a policy that has made ``step`` steps.

        Groups whose policy is more than ``max_staleness`` steps older are dropped.
        """
        if self._taken is not None and self._taken[0] == step:
            return self._taken[1]
        fresh = [group for group in self.groups if step - group.version <= max_staleness]
        num_stale = len(self.groups) - len(fresh)
        self.groups = fresh[most:]
        taken = Taken(fresh[:most], num_stale, len(self.groups))
        self._taken = step, taken
        return taken

    def drop_judged_by(self, generation: int) -> int:
        """Remove the groups whose rewards come from this generation of the code; return how
        many.
        """
        old_num = len(self.groups)
        self.groups = [group for group in self.groups if group.reward_generation != generation]
        return old_num - len(self.groups)

    def state(self) -> dict[str, Any]:
        """Return the whole state as numbers, texts, lists and dicts."""
        taken = None
        if self._taken is not None:
            step, last = self._taken
            taken = [step, [group.plain() for group in last.groups], last.num_stale]
        return {
            "groups": [group.plain() for group in self.groups],
            "newest_batch": self.newest_batch,
            "taken": taken,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Replace the state by one that `state` returned."""
        self.groups = [SampleGroup.of(plain) for plain in state["groups"]]
        self.newest_batch = state["newest_batch"]
        self._taken = None
        if state["taken"] is not None:
            step, groups, num_stale = state["taken"]
            taken = Taken([SampleGroup.of(plain) for plain in groups], num_stale, len(self.groups))
            self._taken = step, taken


class ReplayBuffer(Actor):
    """Keeps the groups in a process of its own, and writes its state to ``file``.

    A process that replaces a dead one continues from the file.
    """

    def __init__(self, capacity: int, file: Path) -> None:
        self.replay = Replay(capacity)
        self.file = file
        with contextlib.suppress(FileNotFoundError):
            self.replay.load(json.loads(file.read_text()))

    @endpoint
    def add(self, batch: int, groups: list[SampleGroup]) -> int:
        """Call `Replay.add`, write the state, and return the result."""
        num_dropped = self.replay.add(batch, groups)
        self.write()
        return num_dropped

    @endpoint
    def take(self, step: int, most: int, max_staleness: int) -> Taken:
        """Call `Replay.take`, write the state, and return the result."""
        taken = self.replay.take(step, most, max_staleness)
        self.write()
        return taken

    @endpoint
    def waiting(self) -> list[SampleGroup]:
        """Return the groups that no step has taken yet."""
        return self.replay.groups

    @endpoint
    def replace(self, groups: list[SampleGroup]) -> None:
        """Replace the waiting groups by these."""
        self.replay.groups = groups
        self.write()

    @endpoint
    def drop_judged_by(self, generation: int) -> int:
        """Call `Replay.drop_judged_by`, write the state, and return the result."""
        num_dropped = self.replay.drop_judged_by(generation)
        self.write()
        return num_dropped

    @endpoint
    def state(self) -> dict[str, Any]:
        """Call `Replay.state`."""
        return self.replay.state()

    @endpoint
    def load(self, state: dict[str, Any] | None) -> None:
        """Replace the state by that of a checkpoint; None empties the buffer."""
        self.replay = Replay(self.replay.capacity)
        if state is not None:
            self.replay.load(state)
        self.write()

    def write(self) -> None:
        """Write the state to the file.

        Ignores errors, such as a full disk, so that the training goes on.
        """
        with contextlib.suppress(OSError):
            os.makedirs(self.file.parent, 0o700, exist_ok=True)
            with replacing(self.file) as file:
                file.write(json.dumps(self.replay.state()).encode())
