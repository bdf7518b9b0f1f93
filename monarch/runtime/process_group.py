"""Ending processes for good: whole groups, and children whose parent has died."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import threading

__all__ = ["die_with_parent", "end_with", "kill_group"]

_PR_SET_PDEATHSIG = 1


def kill_group(pid: int) -> None:
    """SIGKILL a proc and what it started (data loader workers, compilers)."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that made it ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def end_with(parent: int) -> None:
    """Have this process end when ``parent`` does, whichever of its threads has made us.

    The kernel's own signal comes as soon as that thread has ended.
    """
    try:
        watched = os.pidfd_open(parent)
    except ProcessLookupError:
        _end_here()
    except OSError:  # A kernel before 5.3.
        die_with_parent()
    else:
        threading.Thread(
            target=_end_after, args=(watched,), name="monarch-parent", daemon=True
        ).start()
    if os.getppid() != parent:
        _end_here()  # It had ended before we could ask, and the number may be another's.


def _end_after(watched: int) -> None:
    poll = select.poll()
    poll.register(watched, select.POLLIN)
    poll.poll()
    _end_here()


def _end_here() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
