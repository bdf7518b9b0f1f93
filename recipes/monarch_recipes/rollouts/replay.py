"""The bounded buffer between judging and training: pure rules, and the actor that keeps to them."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monarch.actor import Actor, endpoint
from monarch.whole_file import replacing
from monarch_recipes.rollouts.groups import SampleGroup


@dataclass(frozen=True)
class Taken:
    """What a step learns from, and what became of the rest: groups that were too old, and those
    that wait for the next step."""

    groups: list[SampleGroup]
    num_stale: int
    num_waiting: int

    def numbers(self, step: int) -> dict[str, float]:
        """What a step reports of it; ``staleness`` is the mean age of the groups in steps."""
        ages = [step - group.version for group in self.groups]
        return {
            "groups": len(self.groups),
            "stale_groups": self.num_stale,
            "waiting_groups": self.num_waiting,
            "staleness": sum(ages) / max(1, len(ages)),
        }


class Replay:
    """Groups in the order of their making. ``add`` and ``take`` of the same batch or step may be
    asked again, after a process was lost: they are done once."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.groups: list[SampleGroup] = []
        self.newest_batch = -1
        self._taken: tuple[int, Taken] | None = None

    def add(self, batch: int, groups: Sequence[SampleGroup]) -> int:
        """Take the groups of a batch. Where there is no room, the oldest give way: so many."""
        if batch <= self.newest_batch:
            return 0
        self.newest_batch = batch
        self.groups += groups
        num_dropped = max(0, len(self.groups) - self.capacity)
        del self.groups[:num_dropped]
        return num_dropped

    def take(self, step: int, version: int, most: int, max_staleness: int) -> Taken:
        """The oldest ``most`` groups that a policy of this version may still learn from."""
        if self._taken is not None and self._taken[0] == step:
            return self._taken[1]
        fresh = [group for group in self.groups if version - group.version <= max_staleness]
        num_stale = len(self.groups) - len(fresh)
        self.groups = fresh[most:]
        taken = Taken(fresh[:most], num_stale, len(self.groups))
        self._taken = step, taken
        return taken

    def drop(self, is_dropped: Callable[[SampleGroup], bool]) -> int:
        """Remove groups: how many."""
        before = len(self.groups)
        self.groups = [group for group in self.groups if not is_dropped(group)]
        return before - len(self.groups)

    def state(self) -> dict[str, Any]:
        """All of it, as numbers, texts, lists and dicts."""
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
        """Go on from a ``state``."""
        self.groups = [SampleGroup.of(plain) for plain in state["groups"]]
        self.newest_batch = state["newest_batch"]
        self._taken = None
        if state["taken"] is not None:
            step, groups, num_stale = state["taken"]
            taken = Taken([SampleGroup.of(plain) for plain in groups], num_stale, len(self.groups))
            self._taken = step, taken


class ReplayBuffer(Actor):
    """Keeps the groups in a process of its own, and its state in ``file``: a process that takes the
    place of one that died goes on from there."""

    def __init__(self, capacity: int, file: Path) -> None:
        self.replay = Replay(capacity)
        self.file = file
        with contextlib.suppress(FileNotFoundError):
            self.replay.load(json.loads(file.read_text()))

    @endpoint
    def add(self, batch: int, groups: list[SampleGroup]) -> int:
        """As `Replay.add`."""
        num_dropped = self.replay.add(batch, groups)
        self.write()
        return num_dropped

    @endpoint
    def take(self, step: int, version: int, most: int, max_staleness: int) -> Taken:
        """As `Replay.take`."""
        taken = self.replay.take(step, version, most, max_staleness)
        self.write()
        return taken

    @endpoint
    def waiting(self) -> list[SampleGroup]:
        """The groups that no step has taken yet."""
        return self.replay.groups

    @endpoint
    def replace(self, groups: list[SampleGroup]) -> None:
        """Have these groups in the place of those that wait."""
        self.replay.groups = groups
        self.write()

    @endpoint
    def drop_judged_by(self, generation: int) -> int:
        """Remove what the reward of this generation of the code has judged: how many groups."""
        num_dropped = self.replay.drop(lambda group: group.reward_generation == generation)
        self.write()
        return num_dropped

    @endpoint
    def state(self) -> dict[str, Any]:
        """As `Replay.state`."""
        return self.replay.state()

    @endpoint
    def load(self, state: dict[str, Any] | None) -> None:
        """Go on from the state of a checkpoint; ``None`` is an empty buffer."""
        self.replay = Replay(self.replay.capacity)
        if state is not None:
            self.replay.load(state)
        self.write()

    def write(self) -> None:
        """Write the state down. A training is worth more than what its buffer would be after the
        next death: a disk that is full ends nothing."""
        with contextlib.suppress(OSError):
            os.makedirs(self.file.parent, 0o700, exist_ok=True)
            with replacing(self.file) as file:
                file.write(json.dumps(self.replay.state()).encode())
