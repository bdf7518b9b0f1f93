"""Writes samples to a file: prompt, completion, reward, and the versions of policy and code."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from monarch.runs.record.rows import ROLLOUTS, RowFile
from monarch_recipes.rollouts.groups import SampleGroup


class RolloutRecorder:
    """Writes `rollouts.jsonl` of a run. If it cannot write, as on a full disk, the run goes on."""

    def __init__(self, folder: Path) -> None:
        self._rows = RowFile(folder / ROLLOUTS)

    def add(
        self, step: int, groups: Sequence[SampleGroup], solved: Sequence[Sequence[bool]], most: int
    ) -> None:
        """Write at most ``most`` samples of a batch, in the order of their groups.

        ``solved`` says for each sample of each group whether it is right.
        """
        now = time.time()
        pairs = [
            (group, sample, is_right)
            for group, rights in zip(groups, solved, strict=True)
            for sample, is_right in zip(group.samples, rights, strict=True)
        ]
        for group, sample, is_right in pairs[:most]:
            row = {
                "step": step,
                "time": now,
                "problem": group.problem,
                "prompt": "".join(map(chr, group.prompt[1:])),
                "completion": sample.text,
                "reward": sample.reward,
                "solved": is_right,
                "num_tokens": len(sample.tokens),
                "version": group.version,
                "generation": group.generation,
                "reward_generation": group.reward_generation,
                "reward_code": group.reward_code,
                "temperature": group.temperature,
            }
            try:
                self._rows.add(row)
            except OSError:
                return
