"""Threads that move bytes, so that no actor and no loop waits for a copy."""

from __future__ import annotations

import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence

Task = Callable[[], None]

_MOST_THREADS = 8
_IDLE_SECONDS = 10.0


class Workers:
    """A pool of threads, up to a maximum, that are started on demand and end when idle."""

    def __init__(self, most: int = 0) -> None:
        self._most = most or min(_MOST_THREADS, (os.cpu_count() or 1) + 2)
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        #: Both are under the lock.
        self._num_threads = self._num_idle = 0
        self._is_closed = False

    def submit(self, task: Task) -> None:
        """Run ``task``, which must not raise, on a thread of the pool."""
        with self._lock:
            if self._num_idle <= self._tasks.qsize() and self._num_threads < self._most:
                self._num_threads += 1
                thread = threading.Thread(target=self._work, name="monarch-rdma", daemon=True)
                thread.start()
        self._tasks.put(task)

    def _work(self) -> None:
        while True:
            with self._lock:
                self._num_idle += 1
            try:
                task = self._tasks.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                task = None
            with self._lock:
                self._num_idle -= 1
                if task is None and (self._is_closed or self._tasks.empty()):
                    self._num_threads -= 1
                    return
            if task is not None:
                task()
                del task

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            for _ in range(self._num_threads):
                self._tasks.put(None)

    def run_all(self, tasks: Sequence[Task], at_once: int) -> None:
        """Run all of ``tasks``, at most ``at_once`` at a time, with this thread as one of the
        workers.

        After an error no more tasks are started; the error is raised when the running tasks have
        ended.
        """
        if len(tasks) == 1:
            tasks[0]()
            return
        shared = _Shared(tasks)
        for _ in range(min(at_once, len(tasks)) - 1):
            self.submit(shared.help)
        shared.help()
        shared.wait()


class _Shared:
    """A list of tasks from which several threads take the next one."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._tasks = deque(tasks)
        self._changed = threading.Condition()
        self._num_active = 0
        self._error: BaseException | None = None

    def help(self) -> None:
        while True:
            with self._changed:
                if not self._tasks:
                    return
                task = self._tasks.popleft()
                self._num_active += 1
            error: BaseException | None = None
            try:
                task()
            except BaseException as raised:
                error = raised
            with self._changed:
                self._num_active -= 1
                if error is not None:
                    self._error = self._error or error
                    self._tasks.clear()
                self._changed.notify_all()

    def wait(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._num_active)
        if self._error is not None:
            raise self._error
