"""Finds rings of actors that wait for each other (Chandy, Misra and Haas: edge chasing).

An actor handles one message after another. So an actor that waits for the answer to a call waits
for everything that the callee does before it; and while it waits for a call of its own, it answers
no other. A wait that lasts is followed from process to process: each process asks the actors that
its own actor waits for whether they wait as well, and goes on with those that do. A path that comes
back to the wait where it began is a ring: a deadlock.

No false ring is reported. Each wait has a number. Actor Y's message that it waits reaches X after
every answer of Y to X. If X is then still in the same wait, Y has not finished X's call, and cannot
before Y's own wait ends. The actor that is asked last is the first of the path, and is still in the
same wait: so its call of the second actor is unfinished, hence the second's wait holds, and so on
round the ring.

Time is an argument. The only effect of a ring is a report: a timeout may end it.
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
    """The actor ``actor``, in the process ``proc``, whose answer an actor waits for. ``method`` is
    the endpoint that was called.
    """

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
    """The waits of the actors of one process. Each wait gets a number when it is first seen; the
    first number is ``base + 1``.

    A wait is any object that equals only itself. ``None`` means that an actor does not wait.
    """

    def __init__(self, base: int = 0) -> None:
        self._followed: dict[Uid, _FollowedWait] = {}
        self._numbers = itertools.count(base + 1)

    def __len__(self) -> int:
        return len(self._followed)

    def number(self, actor: Uid, wait: object | None, now: float) -> int:
        """Return the number of the wait that an actor is in; 0 if it does not wait."""
        followed = self._followed.get(actor)
        if wait is None:
            self._followed.pop(actor, None)
            return 0
        if followed is None or followed.wait != wait:
            followed = _FollowedWait(wait, next(self._numbers), now + LASTING_SECONDS)
            self._followed[actor] = followed
        return followed.number

    def due(self, actor: Uid, wait: object | None, now: float) -> int:
        """Return whether it is time to follow an actor's wait, that is, to ask whether the awaited
        actors wait as well. The result is the number of the attempt, from 1; 0 means that it is not
        time.
        """
        if not self.number(actor, wait, now):
            return 0
        followed = self._followed[actor]
        if now < followed.due:
            return 0
        followed.interval = min(2 * followed.interval, _MOST_SECONDS)
        followed.due = now + followed.interval
        followed.num_attempts += 1
        return followed.num_attempts

    def is_first(self, path: Path, attempt: int) -> bool:
        """Return whether no other path of this attempt has come to the last actor of ``path``. The
        path counts as the first from now on.

        A later path need not be followed on, because it would find the same actors.
        """
        passed = self._followed[path[-1].actor].passed
        is_first = passed.get(path[0].key, 0) < attempt
        passed[path[0].key] = max(attempt, passed.get(path[0].key, 0))
        return is_first

    def keep(self, actors: Iterable[Uid]) -> None:
        """Forget all actors but these."""
        for actor in self._followed.keys() - set(actors):
            del self._followed[actor]


def follow(path: Path, asked: Asked, waiter: Waiter) -> tuple[Path, bool]:
    """Extend ``path`` by ``waiter``, for which the last member of the path waits. ``asked`` says
    which endpoint that member has called.

    Returns (path, whether it is a ring). It is a ring if ``waiter`` is its first member. The path
    is empty if it need not be followed on: it is too long, or it leads into a ring without its
    first member, which a member of that ring finds.
    """
    *others, last = path
    path = (*others, msgspec.structs.replace(last, asks=asked.method))
    if waiter.key == path[0].key:
        return path, True
    if len(path) >= _LONGEST or any(waiter.key == member.key for member in path):
        return (), False
    return (*path, waiter), False


class RingsTold:
    """The rings that a client was told about. Every member of a ring reports it, and the client
    shows it once.

    Rings that differ only in ranks are shown together if they are reported within a few seconds.
    """

    _MOST = 1000
    _TOGETHER_SECONDS = 10.0

    def __init__(self) -> None:
        self._rings: dict[object, None] = {}
        self._kinds: dict[object, float] = {}

    def is_new(self, path: Sequence[Waiter], now: float) -> bool:
        ring = frozenset(member.key for member in path)
        if ring in self._rings:
            return False
        _remember(self._rings, ring, None, self._MOST)
        kind = frozenset((member.actor, member.endpoint, member.asks) for member in path)
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
    """Return a text that says which actors wait for which, and what to do."""
    # The same words, whichever process has found it.
    first = min(range(len(path)), key=lambda i: (path[i].name, path[i].rank, path[i].key))
    path = [*path[first:], *path[:first]]
    if len(path) == 1:
        member = path[0]
        return (
            f"an actor waits for itself and will never answer: {member.name} {member.rank} (in "
            f"{member.name}.{member.endpoint}, waits for its own {member.name}."
            f"{_called(member)}). Only a timeout of that wait ends it. Call the method directly, "
            f"`self.{member.asks}(...)`."
        )
    nexts = [*path[1:], path[0]]
    hops = [
        f"{member.name} {member.rank} (in {member.name}.{member.endpoint}, waits for "
        f"{awaited.name}.{_called(member)})"
        for member, awaited in zip(path, nexts, strict=True)
    ]
    ring = " -> ".join([*hops, f"{path[0].name} {path[0].rank}"])
    return (
        f"actors wait for each other and will never answer: {ring}. Only a timeout of one of these "
        "waits ends it. Let one of them return without waiting: hand over what the other needs as "
        "an argument, or have the answer sent with `broadcast` or through a channel."
    )


def _called(waiter: Waiter) -> str:
    return waiter.asks or "initialized"
