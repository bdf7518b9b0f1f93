"""Decides from looks at the ranks whether a call that takes long is slow, or stuck.

Ranks are stuck if nothing moves: the frames of those that do not wait for others are the same from
look to look, they use no processor, and read and write nothing; or if all wait in different
collectives. A rank that uses a processor or moves is slow, whatever it does. Time in which a rank
compiles or imports on the processor does not count.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from monarch_sync.words import took

# What a person may want of a run whose step takes long: the kinds of bulletins about `ASKED`, and
# the keys for them.
ASKED = "slow runs"
HOLD, MORE = "hold", "more-time"
KEYS = {"k": HOLD, "+": MORE}

TIMES_MORE = 4.0
TIMES_STUCK = 4.0
TIMES_MOST = 20.0
_NUM_LOOKS = 8  # before it is told
_LEAST_LOOK_SECONDS, _MOST_LOOK_SECONDS = 0.2, 5.0
_TIMES_PROVED = TIMES_MOST / TIMES_STUCK
# Threads that only wait, and wake up now and then, use less. A thread that is ready but gets no
# processor, as others have them all, uses little as well.
_BUSY_SHARE = 0.01
_READY_SHARE = 0.25


@dataclass(frozen=True)
class Patience:
    """The seconds that a call may take.

    After ``told`` a person is notified, after ``stuck`` without progress it counts as stuck, after
    ``most`` it ends even with progress, after ``hard`` it ends without a further look. ``usual`` is
    the usual time of such a call.
    """

    told: float
    stuck: float
    most: float
    hard: float = math.inf
    usual: float | None = None

    @property
    def look_seconds(self) -> float:
        """Return how many seconds to wait between two looks."""
        return min(max(self.told / _NUM_LOOKS, _LEAST_LOOK_SECONDS), _MOST_LOOK_SECONDS)

    @classmethod
    def of_proved_code(cls, seconds: float, usual: float | None = None) -> Patience:
        """Return the patience for code that has succeeded: this long without progress, longer with
        some."""
        return cls(seconds, seconds, _TIMES_PROVED * seconds, usual=usual)

    @classmethod
    def on_trial(cls, seconds: float, usual: float | None = None) -> Patience:
        """Return the patience for new code: a person is notified after this long; it ends much
        later."""
        return cls(seconds, TIMES_STUCK * seconds, TIMES_MOST * seconds, usual=usual)

    @classmethod
    def unseen(cls, seconds: float) -> Patience:
        """Return the patience for ranks that nobody can look at."""
        return cls(seconds, seconds, seconds, hard=seconds)


@dataclass(frozen=True)
class RankLook:
    """The state of one rank at a look.

    ``where`` is the function and line of the user's code, for people. ``place`` is a number that
    changes as soon as any frame moves; ``spot`` is equal for all ranks at the same place. The
    seconds are processor time that its threads and child processes have used so far, and time they
    waited for a processor; ``num_bytes`` is how much they have read and written. ``is_idle``: it
    runs no user's code, and so has answered. ``may_compute``: it is in a place, such as a backward
    pass, in which it waits for others or computes.
    """

    rank: int
    where: str = ""
    place: int = 0
    spot: int = 0
    busy_seconds: float = 0.0
    ready_seconds: float = 0.0
    num_bytes: int = 0
    is_waiting: bool = False
    may_compute: bool = False
    is_compiling: bool = False
    is_idle: bool = False


class Slowness:
    """The findings of all looks so far at a call of ``num_ranks`` ranks.

    Times are of one clock, which stops while a person debugs.
    """

    def __init__(self, num_ranks: int, started: float) -> None:
        self.looks: Sequence[RankLook] = ()
        self._num_ranks = num_ranks
        self._started = started
        self._looked_at = started
        self._moved_at = started
        self._num_looks = 0
        self._excused_seconds = 0.0
        self._computing: set[int] = set()  # ranks that seem to wait, and use a processor

    def seen(self, now: float, looks: Iterable[RankLook]) -> None:
        """Add a look at the ranks; ranks that did not answer are left out."""
        seconds = now - self._looked_at
        before = {one.rank: one for one in self.looks}
        self.looks, self._looked_at = sorted(looks, key=lambda one: one.rank), now
        self._num_looks += 1
        self._computing = {
            one.rank
            for one in self.looks
            if one.may_compute and one.rank in before and _uses(before[one.rank], one, seconds)
        }
        if any(
            one.is_compiling and (one.rank not in before or _uses(before[one.rank], one, seconds))
            for one in self.looks
        ):
            self._excused_seconds += seconds
            self._moved_at = now
        elif self._has_moved(before, seconds):
            self._moved_at = now

    @property
    def do_not_match(self) -> bool:
        """Whether all ranks wait in collectives that differ."""
        waiting = [one for one in self.looks if one.is_waiting and one.rank not in self._computing]
        return len(waiting) == self._num_ranks > 1 and len({one.spot for one in waiting}) > 1

    def counted_seconds(self, now: float) -> float:
        """Return how long the call has taken, without time that does not count."""
        return now - self._started - self._excused_seconds

    def still_seconds(self, now: float) -> float:
        """Return for how long nothing has moved."""
        return now - self._moved_at

    def is_stuck(self, now: float, patience: Patience) -> bool:
        """Whether the call has made no progress for longer than it may."""
        limit = patience.told if self.do_not_match else patience.stuck
        return self._num_looks > 1 and self.still_seconds(now) >= limit

    def is_over(self, now: float, patience: Patience) -> bool:
        """Whether the call has taken longer than it may at all."""
        return self.counted_seconds(now) >= patience.most or now - self._started >= patience.hard

    def _has_moved(self, before: dict[int, RankLook], seconds: float) -> bool:
        acting = [one for one in self.looks if not (one.is_waiting or one.is_idle)]
        if not acting and len(self.looks) == self._num_ranks:
            waiting = [one for one in self.looks if one.is_waiting]
            if not waiting:
                return True  # The answers are on their way.
            if self.do_not_match:
                # A rank may use a processor while it waits for something that never comes.
                return any(_has_other_place(before, one) for one in waiting)
            acting = waiting
        return any(
            _has_other_place(before, one)
            or (one.rank in before and _uses(before[one.rank], one, seconds))
            for one in acting
        )


def _has_other_place(before: dict[int, RankLook], look: RankLook) -> bool:
    return look.rank in before and before[look.rank].place != look.place


def _uses(before: RankLook, now: RankLook, seconds: float) -> bool:
    """Whether the rank has used a processor, or read or written, in these seconds."""
    busy = abs(now.busy_seconds - before.busy_seconds)  # Less, where a process below it has ended.
    ready = busy + abs(now.ready_seconds - before.ready_seconds)
    is_busy = busy > _BUSY_SHARE * seconds or ready > _READY_SHARE * seconds
    return is_busy or now.num_bytes != before.num_bytes


def told_as_slow(
    doing: str, seconds: float, patience: Patience, looks: Sequence[RankLook], num_ranks: int
) -> str:
    """Return a line for people: how long the call has taken, and where the ranks are."""
    usual = "" if patience.usual is None else f", usual {took(patience.usual)}"
    places: dict[str, list[int]] = {}
    for one in looks:
        places.setdefault(_state(one), []).append(one.rank)
    silent = sorted(set(range(num_ranks)) - {one.rank for one in looks})
    if silent:
        places["give no answer: stopped, or in C with the GIL"] = silent
    where = ", ".join(_of_ranks(text, ranks, num_ranks) for text, ranks in places.items())
    return f"{doing} takes {took(seconds)} so far{usual}: {where or 'nobody has looked yet'}"


def _state(look: RankLook) -> str:
    if look.is_idle:
        return "have answered"
    at = f" {look.where}" if look.where else " code of a library"
    if look.is_compiling:
        return f"compile or import, in{at}"
    return f"wait for others, in{at}" if look.is_waiting else f"are in{at}"


def _of_ranks(text: str, ranks: Sequence[int], num_ranks: int) -> str:
    if len(ranks) == num_ranks > 1:
        return f"all ranks {text}"
    if len(ranks) > 1:
        return f"ranks {', '.join(map(str, ranks))} {text}"
    verb, _, rest = text.partition(" ")
    one = {"are": "is", "have": "has", "compile": "compiles", "wait": "waits", "give": "gives"}
    return f"rank {ranks[0]} {one[verb]} {rest}".replace(" or import", " or imports")
