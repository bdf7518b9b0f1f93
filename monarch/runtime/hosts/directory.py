"""Directories for Unix sockets: private, short, and swept of what dead processes left."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys

from monarch.config import runtime_dir
from monarch.net.machine import machine_id
from monarch.runtime.ends.process_start import is_there
from monarch.wire.address import Uid

_MAX_SOCKET_PATH = 103 if sys.platform == "darwin" else 107


def new_directory(uid: Uid) -> str:
    """A directory for the sockets of this process and its procs. Remove it when done."""
    base = runtime_dir()
    sweep(base)
    path = os.path.join(base, f"{machine_id()[:6]}-{os.getpid()}-{uid}")
    if len(path) + 1 + len(uid) > _MAX_SOCKET_PATH:
        raise OSError(
            f"{base} is too long a path for Unix sockets; set MONARCH_RUNTIME_DIR to a shorter one"
        )
    os.makedirs(path, mode=0o700, exist_ok=True)
    return path


def sweep(base: str) -> None:
    """Remove the directories of processes of this machine that are no more."""
    for name in os.listdir(base):
        machine, _, rest = name.partition("-")
        pid = rest.partition("-")[0]
        if machine == machine_id()[:6] and pid.isdigit() and not is_there(int(pid)):
            with contextlib.suppress(OSError):
                shutil.rmtree(os.path.join(base, name))
