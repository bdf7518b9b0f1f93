"""Failure detection: peers that are lost, by missed heartbeats, and peers that hang.

Time is an argument.
"""

from __future__ import annotations

from collections.abc import Iterable


class Heartbeats:
    """Tells when to send heartbeats, and which peers have missed too many.

    A peer is lost when nothing was heard of it for ``timeout_seconds``; it is reported once.
    """

    def __init__(self, interval_seconds: float, timeout_seconds: float) -> None:
        self._interval = interval_seconds
        self._timeout = timeout_seconds
        self._heard: dict[str, float] = {}
        self._sent: dict[str, float] = {}

    def expect(self, uid: str, now: float) -> None:
        """Start watching a peer."""
        self._heard.setdefault(uid, now)

    def is_expected(self, uid: str) -> bool:
        """Return whether this peer is watched."""
        return uid in self._heard

    def forget(self, uid: str) -> None:
        self._heard.pop(uid, None)
        self._sent.pop(uid, None)

    def heard(self, uid: str, now: float) -> None:
        """Record a message from this peer at ``now``. Peers that are not watched are ignored."""
        if uid in self._heard:
            self._heard[uid] = now

    def due(self, now: float) -> list[str]:
        """Return the peers that need a heartbeat now, and note that it was sent to them."""
        due = [
            uid for uid in list(self._heard) if now - self._sent.get(uid, -1e9) >= self._interval
        ]
        self._sent.update(dict.fromkeys(due, now))
        return due

    def lost(self, now: float) -> list[tuple[str, float]]:
        """Return the peers that were silent for too long, each with the seconds of its silence.

        They are not watched any more.
        """
        silent = [(uid, now - heard) for uid, heard in dict(self._heard).items()]
        lost = [(uid, seconds) for uid, seconds in silent if seconds >= self._timeout]
        for uid, _ in lost:
            self.forget(uid)
        return lost


class Hangs:
    """Asks each peer whether it is alive, again and again, and reports a peer that does not answer
    for ``timeout_seconds``.

    The beginning and the end of each silence are reported once. A silent peer is not treated as
    dead: it may answer at any moment.
    """

    def __init__(self, timeout_seconds: float) -> None:
        self._timeout = timeout_seconds
        self._asked: dict[str, float] = {}
        self._reported: set[str] = set()

    def due(self, uids: Iterable[str], now: float) -> list[str]:
        """Return the peers of ``uids`` that have answered all questions; they count as asked
        now."""
        due = [uid for uid in uids if uid not in self._asked]
        self._asked.update(dict.fromkeys(due, now))
        return due

    def answered(self, uid: str, now: float) -> float | None:
        """Record that a peer has answered.

        If its silence was reported as too long, returns how many seconds it lasted; else None.
        """
        asked = self._asked.pop(uid, now)
        if uid not in self._reported:
            return None
        self._reported.discard(uid)
        return now - asked

    def forget(self, uid: str) -> None:
        self._asked.pop(uid, None)
        self._reported.discard(uid)

    def overdue(self, now: float) -> list[tuple[str, float]]:
        """Return the peers that have been silent for too long, each with the seconds since it was
        asked.

        Each silence is returned once.
        """
        silent = [(uid, now - asked) for uid, asked in self._asked.items()]
        late = [(uid, s) for uid, s in silent if s >= self._timeout and uid not in self._reported]
        self._reported.update(uid for uid, _ in late)
        return late

    def silence(self, uid: str, now: float) -> float:
        """Return for how many seconds a peer has been silent; 0 if that was not reported as too
        long.
        """
        return now - self._asked[uid] if uid in self._reported else 0.0
