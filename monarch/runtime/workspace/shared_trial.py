"""Ranks of a host that cannot prepare the same new code have one fresh process import it for all.

An import of torch takes seconds of processor time, and there may be as many ranks as cores: so the
first process that asks has the code imported, and the others wait for the result.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

from monarch.config import runtime_dir
from monarch.whole_file import write_whole
from monarch_reload import ReloadError
from monarch_reload.trial.spare import NewState, Spare, import_in_subprocess

_KEPT_SECONDS = 3600.0  # far longer than a push


class SharedTrial:
    """Imports a new state in a fresh process, and shares the verdict with all processes of the host
    that ask about the same state in the same ``push``.

    Environment variables that differ by rank, such as RANK, do not count: all ranks get the verdict
    of the first.
    """

    def __init__(self, spare: Spare = import_in_subprocess) -> None:
        self._spare = spare
        self.push = ""  # its name; nothing is shared under none

    def __call__(self, state: NewState) -> ReloadError | None:
        if not self.push:
            return self._spare(state)
        folder = os.path.join(runtime_dir(), "trials")
        os.makedirs(folder, mode=0o700, exist_ok=True)
        _sweep(folder)
        path = os.path.join(folder, _name(self.push, state))
        with open(f"{path}.lock", "w") as lock:
            with contextlib.suppress(OSError):  # where there are no locks, each asks for itself
                fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                with open(path, "rb") as file:
                    verdict: ReloadError | None = pickle.load(file)
            except FileNotFoundError:
                verdict = self._spare(state)
                write_whole(Path(path), pickle.dumps(verdict))
            return verdict


def _name(push: str, state: NewState) -> str:
    """Return the name of the file for a verdict: a digest of everything that the verdict depends
    on, except files on disk.
    """
    files = {
        path: hashlib.sha256(content).hexdigest() if isinstance(content, bytes) else [content]
        for path, content in state.files.items()
    }
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    code = [push, sorted(files.items()), sorted(state.modules), list(state.path)]
    process = [os.getcwd(), sys.argv, sys.executable, flags]
    return hashlib.sha256(json.dumps([*code, *process]).encode()).hexdigest()[:32]


def _sweep(folder: str) -> None:
    """Remove the files of pushes of long ago."""
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        with contextlib.suppress(OSError):
            if time.time() - os.stat(path).st_mtime > _KEPT_SECONDS:
                os.unlink(path)
