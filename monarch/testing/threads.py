"""Knows to which proc a thread belongs, since procs in one process differ only by their threads.

Every thread belongs to one proc, or to the client: the loops and actors of a proc run on threads of
its own, and threads that a proc's thread starts are that proc's too.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

_current = threading.local()
_ATTRIBUTE = "_monarch_in_process_owner"
_ORDERED = "_monarch_unwound"
_ending = threading.Lock()
_ended: weakref.WeakSet[Any] = weakref.WeakSet()

# A thread that is unwound in the middle of one of these would never release a lock that others
# share, as `Event.set` and `logging` take.
_HAND_OVERS = {"__enter__", "__exit__", "acquire", "release", "_acquireLock", "_releaseLock"}
_PATIENCE_SECONDS = 5.0
_LOOK_SECONDS = 0.001


class ProcEnded(BaseException):
    """Unwinds a thread whose proc has ended. Only code that catches everything sees it."""


def owner_of_thread() -> Any:
    """Return the proc of the calling thread; ``None`` for the client's and other threads."""
    return getattr(_current, "owner", None)


@contextmanager
def belonging_to(owner: Any) -> Iterator[None]:
    """Within the block the calling thread, and each that it starts, belongs to ``owner``."""
    outer = owner_of_thread()
    _current.owner = owner
    try:
        yield
    finally:
        _current.owner = outer


@contextmanager
def inherited() -> Iterator[None]:
    """Within the block, make each new thread belong to the proc of the thread that starts it."""
    start = threading.Thread.start

    def start_as_ours(thread: threading.Thread) -> None:
        owner = owner_of_thread()
        if owner is not None:
            run = thread.run

            def run_as_ours() -> None:
                del thread.run
                _current.owner = owner
                # A thread that is unwound because its proc has ended is no error.
                with contextlib.suppress(ProcEnded):
                    try:
                        with _ending:
                            is_late = owner in _ended and not _is_the_runtimes(thread)
                            setattr(thread, _ATTRIBUTE, owner)
                        if not is_late:
                            run()
                    finally:
                        _end_in_peace(thread)

            thread.run = run_as_ours  # type: ignore[method-assign]
        start(thread)

    with mock.patch.object(threading.Thread, "start", start_as_ours):
        yield


def _end_in_peace(thread: threading.Thread) -> None:
    """Make sure that ``ProcEnded`` is not raised in the calling thread while Python ends the
    thread.
    """
    is_over = False
    while not is_over:
        with contextlib.suppress(ProcEnded), _ending:
            setattr(thread, _ATTRIBUTE, None)
            if hasattr(thread, _ORDERED):
                # It is noticed here, if it was not before. Taking it back would leave Python a note
                # that something is to be raised; with such a note, a thread that is traced, by a
                # debugger or for coverage, never gets beyond the beginning of a function (3.11).
                delattr(thread, _ORDERED)
                _unwind(thread, ProcEnded)
                for _ in range(1000):
                    pass
            is_over = True


def end_all_of(owner: Any) -> None:
    """Unwind actors and other user code on threads of ``owner``, except the calling one.

    Python code stops at its next step, or when it has taken or released the lock that it is about
    to (from Python 3.13 on it may stop with the lock). A thread that waits in C stops when its wait
    is over. The runtime's own threads end by themselves.
    """
    with _ending:
        _ended.add(owner)
    busy = []
    for thread in threading.enumerate():
        if thread is threading.current_thread() or _is_the_runtimes(thread):
            continue
        if not _is_unwound(thread, owner):
            busy.append(thread)
    if busy:
        threading.Thread(
            target=_unwind_soon, args=(busy, owner), name="monarch-unwinding", daemon=True
        ).start()


def _unwind_soon(busy: list[threading.Thread], owner: Any) -> None:
    end = time.monotonic() + _PATIENCE_SECONDS
    while busy:
        time.sleep(_LOOK_SECONDS)
        must = time.monotonic() > end  # It waits for a lock that another thread has.
        busy = [thread for thread in busy if not _is_unwound(thread, owner, must)]


def _is_the_runtimes(thread: threading.Thread) -> bool:
    return thread.name.startswith("monarch-")


def _is_unwound(thread: threading.Thread, owner: Any, must: bool = False) -> bool:
    """Unwind the thread if it belongs to ``owner``; return False if it is just handing over a lock.

    ``must`` unwinds it in any case.
    """
    with _ending:
        if getattr(thread, _ATTRIBUTE, None) is not owner:
            return True
        frame = sys._current_frames().get(thread.ident or 0)
        if frame is not None and frame.f_code.co_name in _HAND_OVERS and not must:
            return False
        setattr(thread, _ORDERED, True)
        _unwind(thread, ProcEnded)
        return True


def _unwind(thread: threading.Thread, error: type[BaseException]) -> None:
    """Raise ``error`` in another thread."""
    ident = ctypes.c_ulong(thread.ident or 0)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(error))
