"""Where a thread that waits for the answer to an order does the work that the order brings."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from monarch.runtime.promise import Promise
from monarch.runtime.workspace.reload_plan import ReloadOutcome

__all__ = ["Desk", "in_background"]


class Desk:
    def __init__(self) -> None:
        self._items: deque[Callable[[], None] | ReloadOutcome] = deque()
        self._there: Promise[None] = Promise()
        self._lock = threading.Lock()
        self._is_left = False

    def put(self, item: Callable[[], None] | ReloadOutcome) -> None:
        """Work, or the answer. From any thread."""
        with self._lock:
            is_left = self._is_left
            self._items.append(item)
            there = self._there
        if is_left:
            self._clear()
        there.set(None)

    def wait(self) -> ReloadOutcome:
        """Do what comes until the answer is there. Ctrl-C leaves the rest to others."""
        try:
            while True:
                self._there.wait()
                with self._lock:
                    item = self._items.popleft()
                    if not self._items:
                        self._there = Promise()
                if isinstance(item, ReloadOutcome):
                    return item
                item()
        except BaseException:
            with self._lock:
                self._is_left = True
            self._clear()
            raise

    def _clear(self) -> None:
        with self._lock:
            items, self._items = list(self._items), deque()
        for item in items:
            if not isinstance(item, ReloadOutcome):
                in_background(item)


def in_background(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="monarch-reload", daemon=True).start()
