"""Finds rings of actors that wait for each other (Chandy, Misra and Haas: edge chasing).

An actor handles one message after another, so an actor that waits for the answer to a call waits
for all that the callee does before, and while it waits for a call of its own, it answers no other.
A wait that lasts is followed from process to process: each asks the actors for which its own actor
waits whether they wait as well, and goes on with those that do. A path that comes back to the wait
where it began is a ring: a deadlock.

No ring is told that is none. Each wait has a number. Y's word that it waits comes to X behind
every answer of Y to X, and if X then still is in the same wait, the call is not done, and cannot be
before Y's wait ends. The last actor to be asked is the first of the path, and is still in the
same wait: so its call of the second stands, hence the second's wait, and so on round the ring.

Time is an argument. Nothing follows from a ring but words: a timeout may end it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from monarch.wire.address import ProcAddress, Uid
from monarch.wire.message import Waiter

LASTING_SECONDS = 1.0
"""How long a wait lasts before it is followed. It is followed again after twice that, and so on:
a call may be under way while its receiver is asked."""

MOST_ASKED = 16
"""A wait for more answers than this is not followed until some of them have come."""

_MOST_SECONDS = 60.0
_LONGEST = 32

T = TypeVar("T")

Path = tuple[Waiter, ...]


class Asked(NamedTuple):
    """The actor whose answer is waited for, and its endpoint."""

    proc: ProcAddress
    actor: Uid
    method: str


class _FollowedWait(msgspec.Struct):
    wait: object
    number: int
    due: float
    interval: float = LASTING_SECONDS
    num_attempts: int = 0
    # By the first of a path that has come here: its last attempt.
    passed: dict[tuple[Uid, Uid, int], int] = msgspec.field(default_factory=dict)


class Waits:
    """The waits of the actors of one process, by actor: each is numbered when it is first seen.

    A wait is anything that is equal to itself alone; ``None`` for an actor that does not wait.
    Numbers are above ``base``.
    """

    def __init__(self, base: int = 0) -> None:
        self._known: dict[Uid, _FollowedWait] = {}
        self._numbers = itertools.count(base + 1)

    def __len__(self) -> int:
        return len(self._known)

    def number(self, actor: Uid, wait: object | None, now: float) -> int:
        """The number of the wait that an actor is in; 0 for none."""
        known = self._known.get(actor)
        if wait is None:
            self._known.pop(actor, None)
            return 0
        if known is None or known.wait != wait:
            known = _FollowedWait(wait, next(self._numbers), now + LASTING_SECONDS)
            self._known[actor] = known
        return known.number

    def due(self, actor: Uid, wait: object | None, now: float) -> int:
        """Return the attempt, counted from 1, if the wait of ``actor`` should be followed now;
        otherwise 0."""
        if not self.number(actor, wait, now):
            return 0
        known = self._known[actor]
        if now < known.due:
            return 0
        known.interval = min(2 * known.interval, _MOST_SECONDS)
        known.due = now + known.interval
        known.num_attempts += 1
        return known.num_attempts

    def is_first(self, path: Path, attempt: int) -> bool:
        """Whether a path that has come to its last actor, which still waits, is the first of this
        attempt: the others lead on to the same."""
        passed = self._known[path[-1].actor].passed
        is_first = passed.get(path[0].key, 0) < attempt
        passed[path[0].key] = max(attempt, passed.get(path[0].key, 0))
        return is_first

    def keep(self, actors: Iterable[Uid]) -> None:
        """All others have gone."""
        for actor in self._known.keys() - set(actors):
            del self._known[actor]


def follow(path: Path, asked: Asked, found: Waiter) -> tuple[Path, bool]:
    """Extend ``path``, whose last member waits for ``found``. Returns the new path, and whether it
    is a ring.

    The path is empty where it need not be followed: members of a ring without the first member find
    the ring themselves.
    """
    *before, last = path
    path = (*before, _asking(last, asked.method))
    if found.key == path[0].key:
        return path, True
    if len(path) >= _LONGEST or any(found.key == one.key for one in path):
        return (), False
    return (*path, found), False


def _asking(waiter: Waiter, method: str) -> Waiter:
    return Waiter(
        proc=waiter.proc,
        actor=waiter.actor,
        number=waiter.number,
        name=waiter.name,
        rank=waiter.rank,
        endpoint=waiter.endpoint,
        asks=method,
    )


class RingsTold:
    """The rings that a client has been told of: each member finds its ring, which is told once.

    Rings that differ in nothing but ranks are told as one where they come together.
    """

    _MOST = 1000
    _TOGETHER_SECONDS = 10.0

    def __init__(self) -> None:
        self._rings: dict[object, None] = {}
        self._kinds: dict[object, float] = {}

    def is_new(self, path: Sequence[Waiter], now: float) -> bool:
        ring = frozenset(one.key for one in path)
        if ring in self._rings:
            return False
        _remember(self._rings, ring, None, self._MOST)
        kind = frozenset((one.actor, one.endpoint, one.asks) for one in path)
        last = self._kinds.get(kind)
        if last is not None and now < last + self._TOGETHER_SECONDS:
            return False
        _remember(self._kinds, kind, now, self._MOST)
        return True


def _remember(where: dict[object, T], key: object, value: T, most: int) -> None:
    where[key] = value
    while len(where) > most:
        del where[next(iter(where))]


def in_words(path: Sequence[Waiter]) -> str:
    """Describe a ring for people: which actors wait for which, and what to do."""
    # The same words, whichever process has found it.
    first = min(range(len(path)), key=lambda i: (path[i].name, path[i].rank, path[i].key))
    path = [*path[first:], *path[:first]]
    if len(path) == 1:
        one = path[0]
        return (
            f"an actor waits for itself and will never answer: {one.name} {one.rank} (in "
            f"{one.name}.{one.endpoint}, waits for its own {one.name}.{_called(one)}). Only a "
            f"timeout of that wait ends it. Call the method directly, `self.{one.asks}(...)`."
        )
    nexts = [*path[1:], path[0]]
    hops = [
        f"{one.name} {one.rank} (in {one.name}.{one.endpoint}, waits for {to.name}.{_called(one)})"
        for one, to in zip(path, nexts, strict=True)
    ]
    ring = " -> ".join([*hops, f"{path[0].name} {path[0].rank}"])
    return (
        f"actors wait for each other and will never answer: {ring}. Only a timeout of one of these "
        "waits ends it. Let one of them return without waiting: hand over what the other needs as "
        "an argument, or have the answer sent with `broadcast` or through a channel."
    )


def _called(waiter: Waiter) -> str:
    return waiter.asks or "initialized"
