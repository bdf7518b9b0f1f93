"""Combines the reports of all processes on the actors that a switch waits for into one line for
people."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

from monarch.mesh.ranges import ranges_in_words
from monarch.net.loop import Loop
from monarch.wire.message import BusyActor

_MOST_NAMED = 3


class BusyActors:
    """Collects the reports, which all processes send at the same times. ``tell`` is called a moment
    after the first report: one line for all. From any thread."""

    def __init__(self, loop: Loop, tell: Callable[[str], None]) -> None:
        self._loop = loop
        self._tell = tell
        # Each process counts from when the fence came to it: they do not say it all at once.
        self.gather_seconds = 0.3
        self._gathered: dict[tuple[int, float], list[BusyActor]] = {}
        self._lock = threading.Lock()

    def add(self, generation: int, busy: Iterable[BusyActor], seconds: float) -> None:
        """Add actors that have kept the switch to ``generation`` waiting for so long."""
        key = generation, seconds
        with self._lock:
            is_first = key not in self._gathered
            self._gathered.setdefault(key, []).extend(busy)
        if is_first:
            self._loop.call_later(self.gather_seconds, lambda: self._say(*key))

    def forget(self) -> None:
        """Drop the collected reports, because the switch waits for no actor any longer."""
        with self._lock:
            for busy in self._gathered.values():
                busy.clear()

    def _say(self, generation: int, seconds: float) -> None:
        with self._lock:
            busy = self._gathered.pop((generation, seconds))
        if busy:
            self._tell(waits_for(generation, busy, seconds))


def waits_for(generation: int, busy: Sequence[BusyActor], seconds: float) -> str:
    """Return the actors, by mesh, and the methods that they run, as a text."""
    ranks: dict[tuple[str, str], list[int]] = {}
    for actor in busy:
        ranks.setdefault((actor.name, actor.method), []).append(actor.rank)
    names = [
        f"{name} {ranges_in_words(numbers)}{f' (in {method})' if method else ''}"
        for (name, method), numbers in sorted(ranks.items())
    ]
    shown = ", ".join(names[:_MOST_NAMED])
    few = shown if len(names) <= _MOST_NAMED else f"{shown} and {len(names) - _MOST_NAMED} more"
    return f"generation {generation} waits for {few}, for {seconds:g} s"
