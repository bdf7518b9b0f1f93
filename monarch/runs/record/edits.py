"""Knows which code of a run has succeeded, and decides what to do when newer code fails.

An **activity** is repeated work of a run: a step, an evaluation, a save. Code is on trial in an
activity as long as that last succeeded with an older generation, or never. The run **holds**, and
waits for a fix, when code fails that is newer than the run's first: while it starts, on trial, or
later, as when a branch is first taken. If ranks die or hang, the run holds when that happens again,
as it may be chance.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, get_args

from monarch.config import settings
from monarch.runs.record.slowness import TIMES_STUCK, Patience

OnEditError = Literal["hold", "rollback", "end"]

_NUM_REMEMBERED = 20
_TIMES_USUAL = 10.0
_TIMES_LONGEST = 3.0  # the longest was the first, as a rule, which compiled
_FIX_SECONDS = 2.0  # While a fix waits, code on trial gets no more time than this.


def default_policy() -> OnEditError:
    """Return the policy for failing edits: the setting ``on_edit_error``, if it is valid.

    Without the setting, hold if a person is there, at a terminal or in a notebook; else roll back.
    """
    policy = settings().on_edit_error
    if policy in get_args(OnEditError):
        return policy  # type: ignore[return-value]
    is_interactive = "ipykernel" in sys.modules or hasattr(sys, "ps1")
    return "hold" if is_interactive or (sys.stdin and sys.stdin.isatty()) else "rollback"


@dataclass(frozen=True)
class Failure:
    """A failure on new code, and its ranks.

    ``file`` is "" and ``line`` is 0 if the place is unknown. ``generation`` failed; ``good`` is the
    generation to go back to: it went well before, or the run began with it. If there is none, it
    equals ``generation``. ``is_first``: the generation had not gone well yet. ``older`` are all
    earlier generations that had gone well.
    """

    doing: str
    error: str
    generation: int
    good: int
    ranks: tuple[int, ...] = ()
    file: str = ""
    line: int = 0
    details: str = ""
    is_first: bool = True
    older: tuple[int, ...] = ()

    @property
    def first_line(self) -> str:
        """Return what failed, on which generation, and the first line of the error."""
        error = (self.error.splitlines() or ["?"])[0]
        error = error.removeprefix(f"{self.doing} ")  # The error of a hang begins with it.
        return f"{self.doing} failed on generation {self.generation}: {error}"

    @property
    def place(self) -> str:
        """Return file, line and ranks, as far as they are known."""
        parts = [f"{Path(self.file).as_posix()}:{self.line}"] if self.file else []
        if self.ranks:
            noun = "ranks" if len(self.ranks) > 1 else "rank"
            parts.append(f"on {noun} {', '.join(map(str, self.ranks))}")
        return ", ".join(parts)

    def told(self, what_now: str) -> str:
        """Return the text of the failure for terminals, ending with ``what_now``."""
        return "\n".join(line for line in (self.first_line, self.place, what_now) if line)


@dataclass
class Edits:
    """The history of a run's code, over all its attempts.

    ``good`` is the generation with which each activity last succeeded; under "", the run's first.
    ``origins`` has each generation that a rollback of the run has made, with the older generation
    whose code it repeats.
    """

    policy: OnEditError = field(default_factory=default_policy)
    good: dict[str, int] = field(default_factory=dict)
    origins: dict[int, int] = field(default_factory=dict)
    #: When the hold began, by the monotonic clock; ``None`` outside of a hold.
    held_since: float | None = None
    #: Whether the ranks' state is as before the failure, so that it can be saved.
    in_place: bool = True
    #: The facts that the last long text about a hold was made of.
    told: object = None
    #: Whether the run has reported that hosts have no room for copies.
    is_told_of_room: bool = False
    #: Generations with which any activity has succeeded.
    _well: set[int] = field(default_factory=set)
    #: How often ranks were lost, by generation and step.
    _losses: dict[tuple[int, str], int] = field(default_factory=dict)
    #: Seconds of an activity's calls: the first in new processes or on new code, and all others.
    _firsts: dict[str, deque[float]] = field(default_factory=dict)
    _usual: dict[str, deque[float]] = field(default_factory=dict)
    #: Activities that the current processes have done.
    _warm: set[str] = field(default_factory=set)

    def begin(self, generation: int) -> None:
        """Record the start of new processes. If the run has no first generation yet, ``generation``
        becomes its first.
        """
        self.good.setdefault("", generation)
        self._warm.clear()

    def has_gone_well(self, activity: str) -> bool:
        """Whether the activity ever succeeded in this run."""
        return activity in self.good

    @property
    def has_worked(self) -> bool:
        """Whether anything has gone well in this run."""
        return bool(self._well)

    def good_for(self, activity: str) -> int | None:
        """Return the generation with which the activity last went well; for a new activity, the
        run's first generation.
        """
        return self.good.get(activity, self.good.get(""))

    def is_new(self, activity: str, generation: int) -> bool:
        """Whether the generation is newer than the one with which the activity last succeeded."""
        good = self.good_for(activity)
        return good is not None and generation > good

    def is_edited(self, generation: int) -> bool:
        """Whether the generation is newer than the run's first."""
        start = self.good.get("")
        return start is not None and generation > start

    def older(self, generation: int) -> tuple[int, ...]:
        """Return the generations before ``generation`` that succeeded, the newest last."""
        return tuple(sorted(good for good in self._well if good < generation))

    def good_before(self, activity: str, generation: int) -> int:
        """Return the generation to roll back to if ``generation`` fails.

        It is the last generation with which the activity succeeded. If there is none before
        ``generation``, it is the last with which anything else succeeded, or the run's first.
        """
        good = self.good_for(activity)
        if good is not None and good < generation:
            return good
        return max(self.older(generation), default=self.good.get("", 0))

    def way_back(self, failure: Failure) -> int | None:
        """Return the generation to roll back to after a failure; ``None`` if there is none.

        If the failed generation was made by a rollback, its code has failed too: return a
        generation that is older than that code.
        """
        origin = self.origins.get(failure.generation)
        if origin is None:
            return failure.good if failure.good < failure.generation else None
        older = {self.origins.get(generation, generation) for generation in failure.older}
        return max((generation for generation in older if generation < origin), default=None)

    def went_well(self, activity: str, generation: int, seconds: float) -> None:
        """Record that a call of the activity has succeeded, after this many seconds."""
        is_first = activity not in self._warm or self.is_new(activity, generation)
        self.good.setdefault("", generation)
        self.good[activity] = max(generation, self.good.get(activity, 0))
        self._well.add(generation)
        self._warm.add(activity)
        history = self._firsts if is_first else self._usual
        history.setdefault(activity, deque(maxlen=_NUM_REMEMBERED)).append(seconds)

    def is_lost_again(self, activity: str, doing: str, generation: int) -> bool:
        """Record that a process died or hung; return whether the code must be the cause.

        It must be if this is the second loss with an edited generation. For code on trial, losses
        in any step count; for code that has gone well, only losses in the same step, ``doing``.
        """
        if not self.is_edited(generation):
            return False
        key = generation, "" if self.is_new(activity, generation) else doing
        self._losses[key] = self._losses.get(key, 0) + 1
        return self._losses[key] > 1

    def patience(
        self,
        activity: str,
        generation: int,
        most: float,
        *,
        least: float | None = None,
        mend_waits: bool = False,
    ) -> Patience:
        """Return how long a call may take, judged by earlier calls of the activity.

        ``most`` is the limit in seconds for code that has gone well. A person is told of code on
        trial after ``least`` seconds, and it may continue while it makes progress. ``mend_waits``:
        a fix of the code waits for the end of the call, so the call gets less time.
        """
        least = settings().edit_patience_seconds if least is None else least
        firsts, others = self._firsts.get(activity, ()), self._usual.get(activity, ())
        history = sorted(others or firsts)
        usual = history[len(history) // 2] if history else None
        generous = 0.0 if usual is None else _TIMES_USUAL * usual
        is_new = self.is_new(activity, generation)
        is_first = is_new or activity not in self._warm
        longest = max([0.0, *others, *(firsts if is_first else ())])
        measured = max(generous, _TIMES_LONGEST * longest)
        if not is_new or usual is None:
            # The very first call may compile. If newer code waits for it, it should end.
            patience = Patience.of_proved_code(max(most, measured), usual)
            if not is_new:
                return patience
            patience = replace(patience, told=min(most, least))
            hard = min(most, least)
        else:
            patience = Patience.on_trial(max(min(least, most / TIMES_STUCK), measured), usual)
            hard = min(patience.most, max(_FIX_SECONDS, generous))
        return replace(patience, hard=hard) if mend_waits else patience

    def seed(self) -> Mapping[str, int]:
        """Return the generation with which each activity last succeeded, for new processes."""
        return dict(self.good)
