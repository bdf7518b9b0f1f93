"""The Python stacks of another process, even while a thread holds its GIL and none of our code
runs.

The kernel runs faulthandler's signal handler on any thread, and that needs no GIL. The stacks go
into a file beside the process's socket, for its host agent to read.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal

import monarch
from monarch.runtime.ends.process_group import signal_process

_SIGNAL = signal.SIGRTMIN + 9
_OURS = os.path.dirname(os.path.abspath(monarch.__file__))
_LIBRARY = os.path.dirname(os.__file__)


def offer_stacks(path: str) -> None:
    """Have this process write the stacks of its threads to ``path`` at each ``ask_for_stacks``."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    faulthandler.register(_SIGNAL, file=file, all_threads=True)


def ask_for_stacks(pid: int, started: int, path: str) -> None:
    """Ask a process that offers its stacks to write them. It takes a moment."""
    with contextlib.suppress(OSError):
        # A process that offers nothing (yet) would die of the signal.
        os.truncate(path, 0)
        signal_process(pid, started, _SIGNAL)


def read_stacks(path: str) -> str:
    """Return the stacks that the process wrote, innermost frame first; "" if it has not."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def innermost_of_users(stacks: str) -> str:
    """Return the innermost line of user code as ``path, line N, ...``; "" if there is none.

    ``stacks`` is text as faulthandler writes it.
    """
    for line in stacks.splitlines():
        path, _, position = line.strip().removeprefix('File "').partition('", ')
        is_frame = line.startswith("  File ")
        if is_frame and not path.startswith((_OURS, _LIBRARY, "<frozen")):
            return f"{path}, {position}"
    return ""
