"""The last events of one process, kept as tuples until they are asked for.

A row is added for every call, so adding it must be fast: it is a tuple in a deque, without a lock,
a thread or a text. Rows are made readable when they are drained. Rows about lives and failures are
kept apart from those about calls, so that a busy actor does not push them out.

Times are nanoseconds of the machine's monotonic clock, which all its processes share.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

_NUM_LIVES = 2048

CALL = "call"
SENT = "sent"
SPAN = "span"
ACTOR = "actor"
STATUS = "status"
FAILURE = "failure"
PUSH = "push"

# By kind: the names of what follows the kind in a row.
COLUMNS: dict[str, tuple[str, ...]] = {
    # A call has ended at its receiver. ``wait``: between its arrival and its turn.
    CALL: (
        "t", "mesh", "rank", "method", "sender", "port", "wait", "run", "ok", "generation",
    ),
    # A call was answered at its sender, or was told without an answer (``port`` 0).
    SENT: ("t", "mesh", "rank", "to_mesh", "method", "port", "num", "run", "ok"),
    # A block of the user's, by ``monarch.actor.span``.
    SPAN: ("t", "mesh", "rank", "method", "run"),
    ACTOR: ("t", "mesh", "rank", "name", "class", "labels", "sizes", "owner", "owner_mesh"),
    STATUS: ("t", "mesh", "rank", "status", "text"),
    FAILURE: ("t", "name", "text", "about"),
    PUSH: ("t", "generation", "text"),
}  # fmt: skip


class EventRing:
    """At most ``size`` rows of calls and spans. Safe to use from any thread.

    ``clock`` returns nanoseconds.
    """

    def __init__(self, size: int, clock: Callable[[], int]) -> None:
        self.clock = clock
        self._calls: deque[tuple[Any, ...]] = deque(maxlen=size)
        self._lives: deque[tuple[Any, ...]] = deque(maxlen=_NUM_LIVES)
        self.add = self._calls.append

    def __len__(self) -> int:
        return len(self._calls) + len(self._lives)

    def note(self, kind: str, *values: Any) -> None:
        """Add a row with the present time about an event in the life of an actor or a proc, or
        about a change of the code.
        """
        self._lives.append((kind, self.clock(), *values))

    def rows(self) -> list[tuple[Any, ...]]:
        """Return the rows. First come the rows about the lives of actors and procs, then the rows
        about calls and spans.

        Each of the two parts begins with its oldest row.
        """
        return [*self._lives.copy(), *self._calls.copy()]

    def take(self) -> list[tuple[Any, ...]]:
        """Return all rows, as `rows` does, and remove them from the ring."""
        taken = []
        for kept in (self._lives, self._calls):
            for _ in range(len(kept)):
                try:
                    taken.append(kept.popleft())
                except IndexError:
                    break  # Another thread has taken the rest.
        return taken


class CallInHand(NamedTuple):
    """A running call: begun at ``since``, after it had waited in the mailbox for ``wait``
    nanoseconds."""

    method: str
    sender: str
    port: int
    since: int
    wait: int


class CallsInHand:
    """The calls that one actor runs at this moment, and the rows of those that have ended.

    Only the actor's own thread may use ``begins`` and ``ends``; any thread may read the rest.
    """

    __slots__ = (
        "_add", "_clock", "_mesh", "_open", "_rank", "_ring", "_take", "num_ended", "num_failed",
    )  # fmt: skip

    def __init__(self, ring: EventRing | None, mesh: str, rank: int) -> None:
        self._ring = ring
        self._mesh = mesh
        self._rank = rank
        self._open: dict[int, tuple[str, str, int, int, int]] = {}
        self.num_ended = 0
        self.num_failed = 0
        # On the path of every call: looked up once.
        self._take = self._open.pop
        if ring is not None:
            self._clock, self._add = ring.clock, ring.add

    def begins(self, key: int, method: str, sender: str, port: int, arrived: int) -> None:
        """Note that a call begins. ``key`` distinguishes the call from other calls that run at the
        same time.
        """
        if self._ring is not None:
            now = self._clock()
            # A plain one: to make a named one takes as long as all the rest.
            self._open[key] = (method, sender, port, now, now - arrived if arrived else 0)

    def ends(self, key: int, generation: int, *, is_ok: bool) -> None:
        """Record that a call has returned or raised; ignored if the call has already ended."""
        call = self._take(key, None)
        if call is None:
            return
        method, sender, port, since, wait = call
        self.num_ended += 1
        if not is_ok:
            self.num_failed += 1
        now = self._clock()
        self._add(
            (CALL, now, self._mesh, self._rank, method, sender, port, wait, now - since, is_ok,
             generation)
        )  # fmt: skip

    def note(self, status: str, text: str = "") -> None:
        """Add a row about a change of the actor's status."""
        if self._ring is not None:
            self._ring.note(STATUS, self._mesh, self._rank, status, text)

    def all(self) -> list[CallInHand]:
        """Return the running calls, the oldest first."""
        return [CallInHand(*call) for call in self._open.copy().values()]


SentCall = tuple[EventRing, int, str, int, str, str, int, int]
"""A call that is not answered yet: the ring, the moment at which it was sent, the mesh and the rank
that sent it, the mesh that it was sent to, its method, its port, and to how many members. A plain
tuple, as a named one takes twice as long to make and to read, at every call."""


def sent_call_ends(call: SentCall, *, is_ok: bool) -> None:
    """Add a row about a sent call whose last answer has arrived, or will never arrive."""
    ring, since, mesh, rank, to_mesh, method, port, num = call
    now = ring.clock()
    ring.add((SENT, now, mesh, rank, to_mesh, method, port, num, now - since, is_ok))
