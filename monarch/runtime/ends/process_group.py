"""Ending processes for good: whole groups, and children whose parent has died."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import threading
from typing import Any

from monarch.runtime.ends.process_start import is_ours, is_running, process_start

_PR_SET_PDEATHSIG = 1
_END_SECONDS = 10.0


def kill_group(pid: int) -> None:
    """Send SIGKILL to a proc and all that it has started (data loader workers, compilers)."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def end_child(child: subprocess.Popen[Any], seconds: float = _END_SECONDS) -> None:
    """Send SIGTERM, and SIGKILL to the group of a child that has not ended in time. It has ended on
    return."""
    child.terminate()
    try:
        child.wait(seconds)
    except subprocess.TimeoutExpired:
        if os.getpgid(child.pid) == child.pid:
            kill_group(child.pid)
        child.kill()
        child.wait()


def kill_lost_group(pid: int, started: int) -> None:
    """Kill the group of a process whose parent is gone, as ``kill_group`` does.

    ``started`` tells whether the pid belongs to another process by now; then nothing is killed.
    """
    is_gone = process_start(pid, even_ended=True) is None
    if is_gone or is_running(pid, started, even_ended=True):
        kill_group(pid)


def signal_process(pid: int, started: int, number: int, *words: str) -> None:
    """Send a signal to a process of this user; do nothing if it has ended.

    ``started`` tells it from a later process with its pid. If the pid was read from a file, give
    ``words`` that must be in the command of the process.
    """
    with contextlib.suppress(ProcessLookupError):
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        except (OSError, AttributeError):  # A kernel before 5.3, or none of Linux.
            if is_ours(pid, started, *words):
                os.kill(pid, number)
            return
        try:
            # The signal goes to the same process that was looked at: the descriptor belongs to no
            # other.
            if is_ours(pid, started, *words):
                signal.pidfd_send_signal(fd, number)
        finally:
            os.close(fd)


def signal_own_group(child: subprocess.Popen[Any], number: int) -> None:
    """Send a signal to the group that a child of ours leads, and that may outlive it.

    Its number stays the group's until ``child`` has been waited for.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, number)


def signal_self(number: int) -> None:
    """Send a signal to this process, which wakes its main thread."""
    os.kill(os.getpid(), number)


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that made it ends."""
    _ask_for(signal.SIGKILL)


def wake_with_parent() -> None:
    """Make the kernel continue this process, if it is stopped, when its parent ends.

    It can then react to that. A running process notices nothing.
    """
    _ask_for(signal.SIGCONT)


def _ask_for(number: int) -> None:
    """Ask the kernel to send this process a signal when its parent thread ends.

    That is the thread that made this process, and later the thread that adopts it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def end_with(parent: int) -> None:
    """Have this process end when the process ``parent`` does.

    Unlike the kernel's own signal, it does not depend on the thread of ``parent`` that made us.
    """
    try:
        watched = os.pidfd_open(parent)
    except ProcessLookupError:
        _end_here()
    except OSError:  # A kernel before 5.3.
        die_with_parent()
    else:
        wake_with_parent()
        threading.Thread(
            target=_end_after, args=(watched,), name="monarch-parent", daemon=True
        ).start()
    if os.getppid() != parent:
        _end_here()  # It had ended before, and another process may have its pid.


def _end_after(watched: int) -> None:
    poll = select.poll()
    poll.register(watched, select.POLLIN)
    poll.poll()
    _end_here()


def _end_here() -> None:
    signal_self(signal.SIGKILL)
