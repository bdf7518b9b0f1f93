"""Whose thread is this? In one process, threads are what tells the procs apart.

Every thread belongs to one proc, or to the client: the loops and actors of a proc run on
threads of its own, and what a proc's thread starts is that proc's too.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["ProcEnded", "belonging_to", "end_all_of", "inherited", "owner_of_thread"]

_here = threading.local()
_ATTRIBUTE = "_monarch_in_process_owner"
_ending = threading.Lock()


class ProcEnded(BaseException):
    """Unwinds a thread whose proc has ended. Only code that catches everything notices."""


def owner_of_thread() -> Any:
    """The proc that the calling thread belongs to; ``None`` for the client and strangers."""
    return getattr(_here, "owner", None)


@contextmanager
def belonging_to(owner: Any) -> Iterator[None]:
    """Within the block the calling thread, and each that it starts, belongs to ``owner``."""
    before = owner_of_thread()
    _here.owner = owner
    try:
        yield
    finally:
        _here.owner = before


@contextmanager
def inherited() -> Iterator[None]:
    """Within the block new threads belong to whom the thread that starts them belongs."""
    start = threading.Thread.start

    def start_as_ours(thread: threading.Thread) -> None:
        owner = owner_of_thread()
        if owner is not None:
            setattr(thread, _ATTRIBUTE, owner)
            run = thread.run

            def run_as_ours() -> None:
                del thread.run
                _here.owner = owner
                # A thread that is unwound because its proc has ended is no error.
                with contextlib.suppress(ProcEnded):
                    try:
                        run()
                    finally:
                        _end_in_peace(thread)

            thread.run = run_as_ours  # type: ignore[method-assign]
        start(thread)

    threading.Thread.start = start_as_ours  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        threading.Thread.start = start  # type: ignore[method-assign]


def _end_in_peace(thread: threading.Thread) -> None:
    """The calling thread is done; nothing must unwind the little that Python still does in it."""
    is_over = False
    while not is_over:
        with contextlib.suppress(ProcEnded), _ending:
            setattr(thread, _ATTRIBUTE, None)
            _unwind(thread, None)
            is_over = True


def end_all_of(owner: Any) -> None:
    """Unwind what actors and other user code run on threads of ``owner``, except the calling one.

    Python code stops at its next step. A thread that waits in C stops when its wait is over.
    The runtime's own threads end by themselves.
    """
    for thread in threading.enumerate():
        if thread is threading.current_thread() or thread.name.startswith("monarch-"):
            continue
        with _ending:
            if getattr(thread, _ATTRIBUTE, None) is owner:
                _unwind(thread, ProcEnded)


def _unwind(thread: threading.Thread, error: type[BaseException] | None) -> None:
    """Raise ``error`` in another thread; ``None`` takes back what it has not noticed yet."""
    ident = ctypes.c_ulong(thread.ident or 0)
    raised = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, raised)
