"""Reads the last samples of reinforcement learning from a run's `rollouts.jsonl`.

The file grows with the run, and may come from a stranger: only its end is read, each text is cut to
a length, and values of a wrong type count as missing.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monarch.observe.json_rows import rows_in
from monarch.observe.kept_files import open_kept
from monarch.runs.record.measured import int_or_none, is_number
from monarch.runs.record.rows import ROLLOUTS

_MOST_BYTES = 1 << 18
_MOST_TEXT = 500


@dataclass(frozen=True)
class Rollout:
    """A sample: the prompt, the completion, and who made and judged it.

    ``version`` counts the steps of the policy; generations are those of the code. Unknown values
    are ``None``.
    """

    step: int | None
    prompt: str
    completion: str
    reward: float | None
    is_solved: bool
    version: int | None
    generation: int | None
    reward_generation: int | None

    @property
    def made_by(self) -> str:
        """Return the versions of the policy and the code, in words."""
        versions = {
            "policy": self.version,
            "made by": self.generation,
            "judged by": self.reward_generation,
        }
        return ", ".join(f"{name} {n}" for name, n in versions.items() if n is not None)


def last_rollouts(folder: Path, most: int) -> list[Rollout]:
    """Return the last samples of a run's folder, at most ``most``, oldest first."""
    try:
        with open_kept(folder / ROLLOUTS) as file:
            start = max(0, os.fstat(file.fileno()).st_size - _MOST_BYTES)
            file.seek(start)
            data = file.read(_MOST_BYTES)
    except OSError:
        return []
    if start:
        data = data.partition(b"\n")[2]  # The first line may begin before what was read.
    return [_rollout(row) for row in rows_in(data)[-most:]]


def _rollout(row: Mapping[str, Any]) -> Rollout:
    return Rollout(
        step=int_or_none(row.get("step")),
        prompt=_text(row.get("prompt")),
        completion=_text(row.get("completion")),
        reward=_finite(row.get("reward")),
        is_solved=row.get("solved") is True,
        version=int_or_none(row.get("version")),
        generation=int_or_none(row.get("generation")),
        reward_generation=int_or_none(row.get("reward_generation")),
    )


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else ""
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}…"


def _finite(value: Any) -> float | None:
    return float(value) if is_number(value) and math.isfinite(value) else None
