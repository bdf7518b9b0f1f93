"""Which code of a run has proved good, and what to do with newer code that fails.

An **activity** is what a run does again and again: a step, an evaluation, a save. Code is on trial
in an activity as long as that last went well with an older generation, or never. The run **holds**,
and waits for a fix, where code fails that is newer than what the run began with: while it starts,
on trial, or later, as where a branch is first taken. For ranks that die or hang the run holds when
that happens again, as it may be chance.
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
_MEND_SECONDS = 2.0  # where a fix waits, code on trial is given no more time than this


def default_policy() -> OnEditError:
    """Hold where a person sees it: at a terminal, in a notebook."""
    wanted = settings().on_edit_error
    if wanted in get_args(OnEditError):
        return wanted  # type: ignore[return-value]
    is_interactive = "ipykernel" in sys.modules or hasattr(sys, "ps1")
    return "hold" if is_interactive or (sys.stdin and sys.stdin.isatty()) else "rollback"


@dataclass(frozen=True)
class Failure:
    """A failure on new code, and its ranks; ``file`` and ``line`` are empty if the place is
    unknown.

    ``generation`` failed; ``good`` is the generation to go back to: it went well before, or the run
    began with it; it equals ``generation`` if there is none. ``is_first``: the generation had not
    gone well yet. ``older`` are all earlier generations that had.
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
        error = self._error_line.removeprefix(f"{self.doing} ")  # of a hang, which says it too
        return f"{self.doing} failed on generation {self.generation}: {error}"

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
        """Return the text of the failure for terminals, ending with ``what_now``."""
        return "\n".join(line for line in (self.first_line, self.place, what_now) if line)


@dataclass
class Edits:
    """The history of a run's code, over all its attempts.

    ``good`` is the generation with which each activity last went well; under "", the one that the
    run began with. ``origins`` has the generations that a rollback of ours has made, with those
    that they are again.
    """

    policy: OnEditError = field(default_factory=default_policy)
    good: dict[str, int] = field(default_factory=dict)
    origins: dict[int, int] = field(default_factory=dict)
    held_since: float | None = None  # while what failed has not gone well
    in_place: bool = True  # whether the ranks are as they were, so that they can be saved
    told: object = None  # how the last hold was explained at length
    is_told_of_room: bool = False  # that hosts have none for copies
    _well: set[int] = field(default_factory=set)  # generations with which anything went well
    _losses: dict[tuple[int, str], int] = field(default_factory=dict)
    # Seconds that calls took: the first in new processes, or on new code, and all others.
    _firsts: dict[str, deque[float]] = field(default_factory=dict)
    _usual: dict[str, deque[float]] = field(default_factory=dict)
    _warm: set[str] = field(default_factory=set)  # activities that these processes have done

    def begin(self, generation: int) -> None:
        """The run begins with it, unless it has begun before; in new processes, in any case."""
        self.good.setdefault("", generation)
        self._warm.clear()

    def has_gone_well(self, activity: str) -> bool:
        """Whether it ever did, in this run."""
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
        """Whether that code is on trial."""
        good = self.good_for(activity)
        return good is not None and generation > good

    def is_edited(self, generation: int) -> bool:
        """Whether the generation is newer than the run's first."""
        start = self.good.get("")
        return start is not None and generation > start

    def older(self, generation: int) -> tuple[int, ...]:
        """The generations before it that went well, the newest last."""
        return tuple(sorted(one for one in self._well if one < generation))

    def good_before(self, activity: str, generation: int) -> int:
        """The one to go back to, if that one fails."""
        good = self.good_for(activity)
        if good is not None and good < generation:
            return good
        return max(self.older(generation), default=self.good.get("", 0))

    def way_back(self, failure: Failure) -> int | None:
        """The generation to go back to from it: further than the last time, if that has failed as
        well. None where there is nothing older."""
        origin = self.origins.get(failure.generation)
        if origin is None:
            return failure.good if failure.good < failure.generation else None
        older = {self.origins.get(one, one) for one in failure.older}
        return max((one for one in older if one < origin), default=None)

    def went_well(self, activity: str, generation: int, seconds: float) -> None:
        is_first = activity not in self._warm or self.is_new(activity, generation)
        self.good.setdefault("", generation)
        self.good[activity] = max(generation, self.good.get(activity, 0))
        self._well.add(generation)
        self._warm.add(activity)
        history = self._firsts if is_first else self._usual
        history.setdefault(activity, deque(maxlen=_NUM_REMEMBERED)).append(seconds)

    def is_lost_again(self, activity: str, doing: str, generation: int) -> bool:
        """Note that a process died or hung. Whether the code must be why: on trial, the second
        time; later, the second time in the same step."""
        if not self.is_edited(generation):
            return False
        where = "" if self.is_new(activity, generation) else doing
        self._losses[generation, where] = self._losses.get((generation, where), 0) + 1
        return self._losses[generation, where] > 1

    def patience(
        self,
        activity: str,
        generation: int,
        most: float,
        *,
        least: float | None = None,
        mend_waits: bool = False,
    ) -> Patience:
        """Return how long a call may take, judged by earlier calls. ``most`` is for code that has
        gone well, ``least`` for code on trial: then the call is reported, and continues while it
        makes progress. It gets less time if a fix waits for its end.
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
            # The first of all may compile. That newer code waits for it says that it should end.
            patience = Patience.of_proved_code(max(most, measured), usual)
            if not is_new:
                return patience
            patience = replace(patience, told=min(most, least))
            hard = min(most, least)
        else:
            patience = Patience.on_trial(max(min(least, most / TIMES_STUCK), measured), usual)
            hard = min(patience.most, max(_MEND_SECONDS, generous))
        return replace(patience, hard=hard) if mend_waits else patience

    def seed(self) -> Mapping[str, int]:
        """For processes that begin."""
        return dict(self.good)
