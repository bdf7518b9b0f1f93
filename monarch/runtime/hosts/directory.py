"""Directories in the runtime folder: of processes, for their Unix sockets, and of jobs."""

from __future__ import annotations

import contextlib
import glob
import os
import sys

from monarch import ours
from monarch.config import runtime_dir
from monarch.net.machine import machine_id
from monarch.runtime.ends.process_start import is_there
from monarch.wire.address import Uid

_MAX_SOCKET_PATH = 103 if sys.platform == "darwin" else 107
_OF_PROCESS = r"[\w]{1,6}-\d+-\w+"
_OF_JOB = r"job-[\w-]+"


def new_directory(uid: Uid) -> str:
    """Make a directory for the sockets of this process and its procs. Call ``remove_directory``
    when done."""
    base = runtime_dir()
    sweep(base)
    path = os.path.join(base, f"{machine_id()[:6]}-{os.getpid()}-{uid}")
    if len(path) + 1 + len(uid) > _MAX_SOCKET_PATH:
        raise OSError(
            f"{base} is too long a path for Unix sockets; set MONARCH_RUNTIME_DIR to a shorter one"
        )
    os.makedirs(path, mode=0o700, exist_ok=True)
    return path


def store_path(socket_path: str, number: int) -> str:
    """Return the path of a file beside a proc's socket, at which ranks of a process group meet.

    The file is removed with the socket.
    """
    return f"{socket_path}.store-{number}"


def stores_beside(socket_path: str) -> list[str]:
    """Return the paths that ``store_path`` gave and that exist."""
    return glob.glob(f"{glob.escape(socket_path)}.store-*")


def remove_directory(path: str) -> None:
    """Remove a directory that ``new_directory`` made. Raises ``ours.NotOurs`` for any other."""
    ours.remove_folder(path, _runtime_dir_of(path), name=_OF_PROCESS)


def sweep(base: str) -> None:
    """Remove the directories of this machine's processes that have ended."""
    for name in os.listdir(base):
        machine, _, rest = name.partition("-")
        pid = rest.partition("-")[0]
        if machine == machine_id()[:6] and pid.isdigit() and not is_there(int(pid)):
            with contextlib.suppress(OSError):
                ours.remove_folder(os.path.join(base, name), base, name=_OF_PROCESS)


def make_job_directory(job: str, host: str = "") -> str:
    """Make the directory of a job on this machine, or of one of its hosts; return its path."""
    path = os.path.join(runtime_dir(), f"job-{job}")
    ours.make_folder(path)
    if host:
        path = os.path.join(path, host)
        ours.make_folder(path)
    return path


def check_job_directory(path: str) -> None:
    """Raise ``ours.NotOurs`` for a folder that ``make_job_directory`` has not made.

    A missing folder passes: nothing can happen to it.
    """
    job = _job_of(path)
    base = _runtime_dir_of(job)
    with contextlib.suppress(FileNotFoundError):
        ours.check_folder(job, base, mark=ours.MARK, name=_OF_JOB)
        ours.check_folder(path, base, mark=ours.MARK)


def remove_job_directory(path: str) -> None:
    """Remove a directory that ``make_job_directory`` made.

    The directory of the whole job is removed as well if no other host is left in it. Raises
    ``ours.NotOurs`` for any other directory.
    """
    check_job_directory(path)
    job = _job_of(path)
    base = _runtime_dir_of(job)
    ours.remove_folder(path, base, mark=ours.MARK)
    if path != job:
        with contextlib.suppress(OSError):
            if os.listdir(job) == [ours.MARK]:
                ours.remove_folder(job, base, mark=ours.MARK, name=_OF_JOB)


def _job_of(path: str) -> str:
    """Return the directory of the job to which the directory ``path`` belongs.

    ``path`` is the job's own directory, or the directory of one of its hosts, which is inside the
    job's.
    """
    above = os.path.dirname(path)
    return above if os.path.basename(above).startswith("job-") else path


def _runtime_dir_of(path: str) -> str:
    """Return the runtime folder that a directory is in.

    The runtime folder of a program with another TMPDIR counts as well: it is recognised by its name
    and its mode.
    """
    above = os.path.dirname(os.path.abspath(path))
    with contextlib.suppress(OSError):
        status = os.lstat(above)
        is_named = os.path.basename(above) == f"monarch-{os.getuid()}"
        if is_named and status.st_uid == os.getuid() and not status.st_mode & 0o077:
            return above
    return runtime_dir()
