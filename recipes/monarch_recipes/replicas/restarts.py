"""How often, and how soon, something that has died is started again."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["RestartBudget"]

_FIRST_DELAY_SECONDS = 0.5


@dataclass
class RestartBudget:
    """At most ``max_restarts`` within any ``window_seconds``.

    The first is at once; those that follow within the window wait 0.5 s, 1 s, 2 s, ...: a machine
    that came to grief by chance costs no time, one that cannot work does not burn the others' time.
    """

    max_restarts: int
    window_seconds: float
    longest_delay_seconds: float = 30.0
    _starts: list[float] = field(default_factory=list)

    def next_delay(self, now: float) -> float | None:
        """Seconds to wait before the restart that is due now; ``None`` when there is none left."""
        self._starts = [at for at in self._starts if now - at < self.window_seconds]
        num_before = len(self._starts)
        if num_before >= self.max_restarts:
            return None
        self._starts.append(now)
        if num_before == 0:
            return 0.0
        return float(min(self.longest_delay_seconds, _FIRST_DELAY_SECONDS * 2 ** (num_before - 1)))
