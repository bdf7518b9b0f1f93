"""A time limit for code of one thread, at ``monarch.experimental.thread_timeout``.

Signals only reach the main thread, and actors run on others. The interpreter raises the error in
the thread between two of its instructions: a call into C is not interrupted, the error comes at its
return.
"""

from __future__ import annotations

import ctypes
import math
import threading
from types import TracebackType

_limited = threading.local()


class ThreadTimeoutError(BaseException):
    """The time is over. It is no ``Exception``, so that ``except Exception`` does not catch it."""


class ThreadTimeout:
    """``with ThreadTimeout(5): work()`` raises ``ThreadTimeoutError`` in this thread after five
    seconds.

    Each object can be used once; none may be inside another, or span an ``await``.
    """

    def __init__(self, seconds: float) -> None:
        if not math.isfinite(seconds) or seconds <= 0:
            raise ValueError(f"seconds must be a positive, finite number, not {seconds!r}")
        self._seconds = seconds
        self._lock = threading.Lock()
        self._is_over = self._has_fired = False
        self._timer: threading.Timer | None = None

    def __enter__(self) -> ThreadTimeout:
        if self._timer is not None:
            raise RuntimeError("a ThreadTimeout serves once: make another")
        if getattr(_limited, "is_limited", False):
            raise RuntimeError("a ThreadTimeout inside another: a thread has one limit at a time")
        self._timer = threading.Timer(self._seconds, self._fire, [threading.get_ident()])
        self._timer.daemon = True
        self._timer.start()
        _limited.is_limited = True
        return self

    def _fire(self, thread: int) -> None:
        # The lock is held while the error is raised: whoever leaves in time gets none later.
        with self._lock:
            if not self._is_over:
                self._has_fired = _raise_in(thread, ThreadTimeoutError)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._timer is not None
        try:
            with self._lock:
                self._is_over = True
        finally:
            self._timer.cancel()
            _limited.is_limited = False
        if self._has_fired:
            _raise_in(threading.get_ident(), None)  # It may not have been raised yet.
            if kind is None:
                raise ThreadTimeoutError


def _raise_in(thread: int, error: type[BaseException] | None) -> bool:
    """Make the interpreter raise ``error`` in a thread; return whether the thread exists.

    ``None`` cancels an error that has not been raised yet.
    """
    raised = ctypes.py_object(error) if error is not None else ctypes.py_object()
    return bool(ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), raised))
