"""A rate-limited log: each kind of warning once, and then how often it was repeated."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable
from typing import Any

_MAX_KINDS = 256


class RareLog:
    """Logs the first warning of a kind at once, and then at most one line a minute for each
    kind."""

    def __init__(
        self,
        log: logging.Logger,
        every_seconds: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._every = every_seconds
        self._clock = clock
        self._kinds: dict[Hashable, tuple[float, int]] = {}
        self._lock = threading.Lock()

    def warning(self, kind: Hashable, text: str, *values: object) -> None:
        self._write(logging.WARNING, kind, text, values, None)

    def exception(self, kind: Hashable, text: str, *values: object) -> None:
        """Log the exception that is being handled, with its traceback, if its ``kind`` was not
        logged lately.
        """
        self._write(logging.ERROR, kind, text, values, True)

    def _write(
        self, level: int, kind: Hashable, text: str, values: tuple[Any, ...], trace: bool | None
    ) -> None:
        now = self._clock()
        with self._lock:
            if kind not in self._kinds and len(self._kinds) >= _MAX_KINDS:
                kind = None  # A peer that makes up kinds shares one.
            logged_at, num_unlogged = self._kinds.get(kind, (now - self._every, 0))
            is_due = now - logged_at >= self._every
            self._kinds[kind] = (now, 0) if is_due else (logged_at, num_unlogged + 1)
        if not is_due:
            return
        if num_unlogged:
            text += " (and %d more of this kind before)"
            values = (*values, num_unlogged)
        self._log.log(level, text, *values, exc_info=trace)
