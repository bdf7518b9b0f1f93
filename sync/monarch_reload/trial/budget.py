"""How long planning a reload may take: a few times as long as importing everything."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator


class OverBudget(Exception):
    """Raised if preparing the change takes longer than importing everything in a new process."""


class Budget:
    """The processor time that the preparing thread may use. It is ``times`` times as much as
    importing everything takes, but at least ``least_seconds``. The time that new code itself takes
    does not count.
    """

    def __init__(
        self, import_seconds: float, *, times: float = 2.0, least_seconds: float = 2.0
    ) -> None:
        self._import_seconds = import_seconds
        self._seconds = max(least_seconds, times * import_seconds)
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
