"""Which code of a run has proved good, and what to do with newer code that fails.

An **activity** is what a run does again and again: a step, an evaluation, a save. Code is on trial
in an activity as long as that last went well with an older generation, and the run **holds** where
it fails then: it waits for a mend.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from monarch.config import settings

__all__ = ["Edits", "Failure", "OnEditError", "default_policy"]

OnEditError = Literal["hold", "rollback", "end"]

_NUM_REMEMBERED = 20
_TIMES_USUAL = 10.0
_TIMES_LONGEST = 3.0  # the longest was the first, as a rule, which compiled


def default_policy() -> OnEditError:
    """Hold where somebody sees it: at a terminal, in a notebook."""
    wanted = settings().on_edit_error
    if wanted in get_args(OnEditError):
        return wanted  # type: ignore[return-value]
    is_interactive = "ipykernel" in sys.modules or hasattr(sys, "ps1")
    return "hold" if is_interactive or (sys.stdin and sys.stdin.isatty()) else "rollback"


@dataclass(frozen=True)
class Failure:
    """What failed on new code, on which ranks; ``file`` and ``line`` are empty where nobody knows.

    ``generation`` failed, ``good`` is the one that went well before.
    """

    doing: str
    error: str
    generation: int
    good: int
    ranks: tuple[int, ...] = ()
    file: str = ""
    line: int = 0
    details: str = ""

    @property
    def first_line(self) -> str:
        return f"{self.doing} failed on generation {self.generation}: {self._error_line}"

    @property
    def _error_line(self) -> str:
        return (self.error.splitlines() or ["?"])[0]

    @property
    def place(self) -> str:
        """File, line and ranks, as far as they are known."""
        parts = [f"{Path(self.file).as_posix()}:{self.line}"] if self.file else []
        if self.ranks:
            many = "ranks" if len(self.ranks) > 1 else "rank"
            parts.append(f"on {many} {', '.join(map(str, self.ranks))}")
        return ", ".join(parts)

    def told(self, what_now: str) -> str:
        """For both terminals."""
        return "\n".join(line for line in (self.first_line, self.place, what_now) if line)


@dataclass
class Edits:
    """What a run knows of its code, over all its attempts.

    ``good`` is the generation with which each activity last went well; under "", the first one
    with which any did.
    """

    policy: OnEditError = field(default_factory=default_policy)
    good: dict[str, int] = field(default_factory=dict)
    deaths: dict[int, int] = field(default_factory=dict)  # in activities on trial, by generation
    held_since: float | None = None  # while what failed has not gone well
    rolled_back: int = 0  # the generation that a rollback of ours has made
    _usual: dict[str, deque[float]] = field(default_factory=dict)
    _longest: dict[str, float] = field(default_factory=dict)

    def good_for(self, activity: str) -> int | None:
        """With which generation it last went well; of one that is new, with which the run began."""
        return self.good.get(activity, self.good.get(""))

    def is_new(self, activity: str, generation: int) -> bool:
        """Whether that code is on trial."""
        good = self.good_for(activity)
        return good is not None and generation > good

    def went_well(self, activity: str, generation: int, seconds: float) -> None:
        self.good.setdefault("", generation)
        self.good[activity] = max(generation, self.good.get(activity, 0))
        self._usual.setdefault(activity, deque(maxlen=_NUM_REMEMBERED)).append(seconds)
        self._longest[activity] = max(seconds, self._longest.get(activity, 0.0))

    def patience_seconds(self, activity: str, generation: int, most: float) -> float:
        """How long it may take: on trial, a generous multiple of what it took before."""
        usual = self._usual.get(activity)
        if not usual or not self.is_new(activity, generation):
            return most
        ordinary = sorted(usual)[len(usual) // 2]
        generous = max(_TIMES_USUAL * ordinary, _TIMES_LONGEST * self._longest[activity])
        return min(most, max(settings().edit_patience_seconds, generous))

    def seed(self) -> Mapping[str, int]:
        """For processes that begin."""
        return dict(self.good)
