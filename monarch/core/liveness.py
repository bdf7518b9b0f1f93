"""Who has been heard of lately. Time is an argument."""

from __future__ import annotations

__all__ = ["Liveness"]


class Liveness:
    """Tells when to send heartbeats, and which peers have missed too many.

    A peer is lost when nothing was heard of it for ``timeout_seconds``; it is reported once.
    """

    def __init__(self, interval_seconds: float, timeout_seconds: float) -> None:
        self._interval = interval_seconds
        self._timeout = timeout_seconds
        self._heard: dict[str, float] = {}
        self._sent: dict[str, float] = {}

    def expect(self, uid: str, now: float) -> None:
        """Start to watch a peer."""
        self._heard.setdefault(uid, now)

    def is_expected(self, uid: str) -> bool:
        """Whether this peer is watched."""
        return uid in self._heard

    def forget(self, uid: str) -> None:
        self._heard.pop(uid, None)
        self._sent.pop(uid, None)

    def heard(self, uid: str, now: float) -> None:
        """Anything came from this peer. Peers that nobody watches are ignored."""
        if uid in self._heard:
            self._heard[uid] = now

    def due(self, now: float) -> list[str]:
        """The peers to send a heartbeat to now; they count as sent."""
        due = [
            uid for uid in list(self._heard) if now - self._sent.get(uid, -1e9) >= self._interval
        ]
        self._sent.update(dict.fromkeys(due, now))
        return due

    def lost(self, now: float) -> list[tuple[str, float]]:
        """Peers that were silent for too long, with the seconds; they are watched no longer."""
        silent = [(uid, now - heard) for uid, heard in dict(self._heard).items()]
        lost = [(uid, seconds) for uid, seconds in silent if seconds >= self._timeout]
        for uid, _ in lost:
            self.forget(uid)
        return lost
