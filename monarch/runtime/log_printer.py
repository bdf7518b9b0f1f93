"""Prints what procs print, on a thread of its own: a slow terminal must not stall messages."""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
from collections.abc import Sequence

__all__ = ["LogPrinter"]

_Job = tuple[str, int, Sequence[str]]


class LogPrinter:
    """Each line goes to our stdout or stderr with ``[label] `` in front."""

    def __init__(self) -> None:
        self.is_enabled = True
        self._queue: queue.SimpleQueue[_Job | threading.Event | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def print(self, label: str, stream: int, lines: Sequence[str]) -> None:
        """Print lines of one proc. From any thread."""
        if not self.is_enabled:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="monarch-logs", daemon=True)
            self._thread.start()
        self._queue.put((label, stream, lines))

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            if isinstance(job, threading.Event):
                job.set()
                continue
            label, stream, lines = job
            text = "".join(f"[{label}] {line}\n" for line in lines)
            # The program may have closed or replaced its streams; that is its business.
            with contextlib.suppress(Exception):
                file = sys.stdout if stream == 1 else sys.stderr
                file.write(text)
                file.flush()

    def flush(self, timeout: float = 1.0) -> None:
        """Wait until what was handed over is printed."""
        if self._thread is not None:
            done = threading.Event()
            self._queue.put(done)
            done.wait(timeout)

    def close(self) -> None:
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(1.0)
            self._thread = None
