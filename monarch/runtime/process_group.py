"""Ending processes for good: whole groups, and children whose parent has died."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal

__all__ = ["die_with_parent", "kill_group"]

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
