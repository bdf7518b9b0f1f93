"""An asyncio loop as the guest of an I/O loop: async actors get messages without a thread
switch."""

from __future__ import annotations

import selectors
from collections.abc import Callable

from monarch.net.cork import flush, sent_one
from monarch.net.io_loop import IoLoop


class LentSelector(selectors.DefaultSelector):
    """Polls for the I/O loop, too, while asyncio has nothing to do.

    It does so only while ``has_guests()`` is true. Without async actors it is false, because then
    the thread of a sync actor should poll instead.
    """

    def __init__(self, io: IoLoop, has_guests: Callable[[], bool] = lambda: True) -> None:
        super().__init__()
        self._io = io
        self._has_guests = has_guests
        self._is_watching = False

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0:
            return self._others(super().select(timeout))
        flush()
        if not self._has_guests() or not self._io.take_turn():
            self._watch(False)
            return super().select(timeout)
        try:
            self._watch(True)
            seconds = self._io.timeout()
            if seconds is None or (timeout is not None and timeout < seconds):
                seconds = timeout
            if sent_one() and self._io.iterate_eagerly():
                seconds = 0.0
            events = super().select(seconds)
            self._io.iterate(0)
        finally:
            self._io.give_turn_back()
        return self._others(events)

    def _others(
        self, events: list[tuple[selectors.SelectorKey, int]]
    ) -> list[tuple[selectors.SelectorKey, int]]:
        return [event for event in events if event[0].fileobj is not self._io]

    def _watch(self, is_wanted: bool) -> None:
        if is_wanted is not self._is_watching:
            self._is_watching = is_wanted
            if is_wanted:
                self.register(self._io, selectors.EVENT_READ)
            else:
                self.unregister(self._io)
