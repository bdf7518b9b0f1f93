"""Decides from looks at the ranks whether a call that takes long is slow, or stuck.

Ranks are stuck if nothing moves: the frames of ranks that do not wait for others are the same from
look to look, they use no processor, and read and write nothing; or if all wait in different
collectives. A rank that uses a processor or moves is slow, whatever it does. Time in which a rank
compiles or imports on the processor does not count.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from monarch_sync.words import took

# Requests of a person about a slow step: kinds of bulletins about `ASKED`, and the keys for them.
ASKED = "slow runs"
HOLD, MORE = "hold", "more-time"
KEYS = {"k": HOLD, "+": MORE}

TIMES_MORE = 4.0
TIMES_STUCK = 4.0
TIMES_MOST = 20.0
_NUM_LOOKS = 8  # before a slow call is reported
_LEAST_LOOK_SECONDS, _MOST_LOOK_SECONDS = 0.2, 5.0
_TIMES_PROVED = TIMES_MOST / TIMES_STUCK
# Threads that only wait use less than this share of a processor. A thread that gets no processor,
# since others have them all, is busy if it was ready to run for this share of the time.
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
        """Return the patience for code that has succeeded.

        A call may take ``seconds`` without progress. With progress it may take several times as
        long.
        """
        return cls(seconds, seconds, _TIMES_PROVED * seconds, usual=usual)

    @classmethod
    def on_trial(cls, seconds: float, usual: float | None = None) -> Patience:
        """Return the patience for new code.

        A person is notified after ``seconds``. The call ends only after several times as long.
        """
        return cls(seconds, TIMES_STUCK * seconds, TIMES_MOST * seconds, usual=usual)

    @classmethod
    def unseen(cls, seconds: float) -> Patience:
        """Return the patience for ranks that nobody can look at."""
        return cls(seconds, seconds, seconds, hard=seconds)


@dataclass(frozen=True)
class RankLook:
    """The state of one rank at a look.

    ``where`` is the function and line of the user's code, for people. ``place`` is a number that
    changes as soon as any frame moves; ``spot`` is equal for all ranks at the same place.
    ``busy_seconds`` is the processor time that its threads and child processes have used so far,
    and ``ready_seconds`` the time that they waited for a processor; ``num_bytes`` is how much they
    have read and written. ``is_idle``: it runs no user's code, and so has answered.
    ``may_compute``: it is in a place, such as a backward pass, in which it waits for others or
    computes.
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
    """What all looks so far have found during a call of ``num_ranks`` ranks.

    Times are of one clock, which stops while a person debugs.
    """

    def __init__(self, num_ranks: int, started: float) -> None:
        self.looks: Sequence[RankLook] = ()
        self._num_ranks = num_ranks
        self._started = started
        #: The times of the last look and of the last progress.
        self._looked_at = started
        self._moved_at = started
        self._num_looks = 0
        #: Seconds that do not count, as ranks compiled or imported.
        self._excused_seconds = 0.0
        #: Ranks that seem to wait, but use a processor.
        self._computing: set[int] = set()

    def seen(self, now: float, looks: Iterable[RankLook]) -> None:
        """Add a look at the ranks; ranks that did not answer are left out."""
        seconds = now - self._looked_at
        last_looks = {look.rank: look for look in self.looks}
        self.looks, self._looked_at = sorted(looks, key=lambda look: look.rank), now
        self._num_looks += 1
        busy = {
            look.rank
            for look in self.looks
            if look.rank in last_looks and _uses(last_looks[look.rank], look, seconds)
        }
        self._computing = {look.rank for look in self.looks if look.may_compute} & busy
        if any(
            look.is_compiling and (look.rank in busy or look.rank not in last_looks)
            for look in self.looks
        ):
            self._excused_seconds += seconds
            self._moved_at = now
        elif self._has_moved(last_looks, busy):
            self._moved_at = now

    @property
    def do_not_match(self) -> bool:
        """Whether all ranks wait in collectives that differ."""
        waiting = [x for x in self.looks if x.is_waiting and x.rank not in self._computing]
        return len(waiting) == self._num_ranks > 1 and len({look.spot for look in waiting}) > 1

    def is_stuck(self, now: float, patience: Patience) -> bool:
        """Whether the call has made no progress for longer than it may."""
        limit = patience.told if self.do_not_match else patience.stuck
        return self._num_looks > 1 and now - self._moved_at >= limit

    def is_over(self, now: float, patience: Patience) -> bool:
        """Whether the call has taken longer than it may, even with progress."""
        seconds = now - self._started
        return seconds - self._excused_seconds >= patience.most or seconds >= patience.hard

    def _has_moved(self, last_looks: dict[int, RankLook], busy: set[int]) -> bool:
        acting = [look for look in self.looks if not (look.is_waiting or look.is_idle)]
        if not acting and len(self.looks) == self._num_ranks:
            acting = [look for look in self.looks if look.is_waiting]
            if not acting:
                return True  # The answers are on their way.
            if self.do_not_match:
                # A rank may use a processor while it waits for something that never comes.
                busy = set()
        return any(
            look.rank in busy
            or (look.rank in last_looks and last_looks[look.rank].place != look.place)
            for look in acting
        )


def _uses(last: RankLook, look: RankLook, seconds: float) -> bool:
    """Whether the rank has used a processor, or read or written, in these seconds."""
    # The absolute difference: the sum shrinks when a child process has ended.
    busy = abs(look.busy_seconds - last.busy_seconds)
    ready = busy + abs(look.ready_seconds - last.ready_seconds)
    is_busy = busy > _BUSY_SHARE * seconds or ready > _READY_SHARE * seconds
    return is_busy or look.num_bytes != last.num_bytes


def told_as_slow(
    doing: str, seconds: float, patience: Patience, looks: Sequence[RankLook], num_ranks: int
) -> str:
    """Return a line for people: how long the call has taken, and where the ranks are."""
    usual = "" if patience.usual is None else f", usual {took(patience.usual)}"
    places: dict[str, list[int]] = {}
    for look in looks:
        places.setdefault(_state(look), []).append(look.rank)
    silent = sorted(set(range(num_ranks)) - {look.rank for look in looks})
    if silent:
        places["give no answer: stopped, or in C with the GIL"] = silent
    states = ", ".join(_of_ranks(text, ranks, num_ranks) for text, ranks in places.items())
    return f"{doing} takes {took(seconds)} so far{usual}: {states or 'nobody has looked yet'}"


def _state(look: RankLook) -> str:
    if look.is_idle:
        return "have answered"
    place = look.where or "code of a library"
    if look.is_compiling:
        return f"compile or import, in {place}"
    return f"wait for others, in {place}" if look.is_waiting else f"are in {place}"


def _of_ranks(text: str, ranks: Sequence[int], num_ranks: int) -> str:
    if len(ranks) == num_ranks > 1:
        return f"all ranks {text}"
    if len(ranks) > 1:
        return f"ranks {', '.join(map(str, ranks))} {text}"
    verb, _, rest = text.partition(" ")
    singular = {"are": "is", "have": "has", "compile": "compiles", "wait": "waits", "give": "gives"}
    return f"rank {ranks[0]} {singular[verb]} {rest}".replace(" or import", " or imports")
