"""How long deciding may take: a few times what importing afresh takes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

_TIMES = 2.0
_LEAST_SECONDS = 2.0


class OverBudget(Exception):
    """To try it beside the live modules takes longer than to begin anew."""


class Budget:
    """Processor time of the thread that prepares; time that new code takes itself is not
    counted."""

    def __init__(self, import_seconds: float) -> None:
        self._import_seconds = import_seconds
        self._seconds = max(_LEAST_SECONDS, _TIMES * import_seconds)
        self._end = time.thread_time() + self._seconds

    def is_over(self) -> bool:
        return time.thread_time() > self._end

    def check(self) -> None:
        if self.is_over():
            raise OverBudget(
                f"to find what follows from the edit takes more than {self._seconds:.1f} s, and to"
                f" import everything afresh {self._import_seconds:.1f} s"
            )

    @contextlib.contextmanager
    def not_counting(self) -> Iterator[None]:
        started = time.thread_time()
        try:
            yield
        finally:
            self._end += time.thread_time() - started
