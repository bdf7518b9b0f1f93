"""Delays spawns while the files of the workspace change.

A process that starts before the gate closes is switched with all others; a process that starts
after it opens runs the new code. In between it would import a mix of both.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from monarch.errors import MonarchError

_PATIENCE_SECONDS = 20.0


class SpawnGate:
    """Lets no spawn run while a push changes files: from its first changed file until its switch.

    A spawn waits for at most ``patience_seconds``, and then fails.
    """

    def __init__(self, patience_seconds: float = _PATIENCE_SECONDS) -> None:
        self._patience_seconds = patience_seconds
        self._changed = threading.Condition()
        #: The generation that the gate is closed for; 0 while it is open.
        self._generation = 0
        self._num_inside = 0
        #: Called once no spawn is inside; None if nobody waits for that.
        self._closed: Callable[[], None] | None = None
        #: Called when a spawn has to wait for the gate.
        self.on_held: Callable[[], None] = lambda: None

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Spawn within the block. Waits while the gate is closed.

        Raises ``MonarchError`` after ``patience_seconds``, since a push that closes the gate may
        wait for this thread.
        """
        with self._changed:
            deadline = time.monotonic() + self._patience_seconds
            if self._generation:
                self.on_held()
            while self._generation:
                if not self._changed.wait(deadline - time.monotonic()):
                    raise MonarchError(
                        f"generation {self._generation} of the workspace is being switched to, "
                        f"and has not got there in {self._patience_seconds:g} s: spawn again when "
                        "it has"
                    )
            self._num_inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._num_inside -= 1
            self._look()

    def close(self, generation: int, closed: Callable[[], None]) -> None:
        """Let no further spawn begin until the gate is opened. ``closed`` is called once all spawns
        in progress have ended, unless the gate is opened before that.
        """
        with self._changed:
            self._generation = generation
            self._closed = closed
        self._look()

    def open(self) -> None:
        with self._changed:
            self._generation = 0
            self._closed = None
            self._changed.notify_all()

    def _look(self) -> None:
        with self._changed:
            if self._num_inside or self._closed is None:
                return
            closed, self._closed = self._closed, None
        closed()
