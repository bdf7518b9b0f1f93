"""Stacks of this machine's processes by py-spy. They need not answer: it reads their memory.

It needs no thread of ours in them, so it also works for a process whose GIL is held. The kernel may
refuse it (Yama's ``ptrace_scope``, containers without ``SYS_PTRACE``); then py-spy's own message is
returned.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from shutil import which
from typing import Any

_SECONDS = 20.0
MISSING = "py-spy is not installed there: pip install 'monarch-loop[debug]'"


def dump(pid: int, *, native: bool = False) -> tuple[str, str]:
    """Return the stacks of a process as py-spy's JSON, and "" as the error.

    If there are none, returns "" and the reason.
    """
    beside = Path(sys.executable).with_name("py-spy")
    program = str(beside) if beside.exists() else which("py-spy")
    if program is None:
        return "", MISSING
    command = [program, "dump", "--json", *(["--native"] if native else []), "--pid", str(pid)]
    quietly: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True}
    try:
        done = subprocess.run(command, timeout=_SECONDS, text=True, **quietly)
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", f"py-spy could not look: {error}"
    if done.returncode:
        errors = done.stderr.strip().splitlines() or [f"it ended with status {done.returncode}"]
        return "", f"py-spy could not look: {errors[0]}"
    return done.stdout, ""


def dump_aside(
    pids: Mapping[str, int], native: bool, done: Callable[[dict[str, str], dict[str, str]], None]
) -> None:
    """Dump the stacks of processes one after the other, on a separate thread.

    ``done`` is called with the dumps and the errors, both by uid. Each process is in one of them.
    """

    def run() -> None:
        dumps, errors = {}, {}
        for uid, pid in pids.items():
            dumps[uid], errors[uid] = dump(pid, native=native)
        done(
            {uid: text for uid, text in dumps.items() if text},
            {uid: text for uid, text in errors.items() if text},
        )

    threading.Thread(target=run, name="monarch-py-spy", daemon=True).start()
