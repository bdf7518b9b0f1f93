"""The output of procs, in files on their host: a directory for each run, a file for each rank.

    <log_dir>/<date>-<time>-<machine>-<pid of the host agent>/<mesh>/<rank>.log

A file has stdout and stderr, line by line in the order of arrival. When it grows beyond half of
``log_file_bytes``, it is renamed to ``<rank>.log.1``, which replaces the earlier one.
``<rank>.log.times`` has a line for each second in which lines were written: the time, and the byte
position. Directories of ended runs are removed when they are old, or too many.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time

from monarch import ours
from monarch.config import runtime_dir, settings
from monarch.net.machine import machine_id
from monarch.runtime.ends.process_start import is_there
from monarch.wire.address import Uid

_log = logging.getLogger("monarch.host")

_KEPT_RUNS = 20
_KEPT_SECONDS = 7 * 24 * 3600.0
_UNUSUAL = re.compile(r"[^\w.-]+")
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


class LogFiles:
    """The log files of the procs of this host agent.

    Files and folders are made only when lines are written.
    """

    def __init__(self) -> None:
        #: The directory of this run; "" if nothing has been written yet.
        self.directory = ""
        #: The folder of each mesh.
        self._meshes: dict[Uid, str] = {}
        #: By folder name: the last number that was added to it.
        self._taken: dict[str, int] = {}
        self._is_broken = False

    def file(self, mesh: Uid, name: str, rank: int) -> LogFile:
        """Return the file of one proc; ``mesh`` distinguishes meshes of one name."""
        return LogFile(self, mesh, name, rank)

    def directory_of(self, mesh: Uid, name: str) -> str:
        """Return the folder with the files of a mesh; make it if it is missing.

        Raises ``OSError`` if it cannot be made.
        """
        if mesh not in self._meshes:
            if not self.directory:
                self.directory = _new_run()
            path = os.path.join(self.directory, self._free_name(name))
            os.makedirs(path, mode=0o700, exist_ok=True)
            self._meshes[mesh] = path
        return self._meshes[mesh]

    def _free_name(self, name: str) -> str:
        """Return ``name``, with a number if another mesh has the name."""
        base = _UNUSUAL.sub("_", name).strip(".") or "mesh"
        free, number = base, self._taken.get(base, 1)
        while free in self._taken:
            number += 1
            free = f"{base}-{number}"
        self._taken[base] = number
        self._taken.setdefault(free, 1)
        return free

    def broke(self, error: OSError) -> None:
        """Report, once, that files cannot be written."""
        if not self._is_broken:
            self._is_broken = True
            _log.warning("what procs print is not kept in files: %s", error)


class LogFile:
    """The log file of one proc, bounded in size; made with its first line."""

    def __init__(self, files: LogFiles, mesh: Uid, name: str, rank: int) -> None:
        self._files = files
        self._mesh, self._name, self._rank = mesh, name, rank
        self._fd = -1
        self._num_bytes = 0
        self._marked_at = 0.0
        self._max_bytes = settings().log_file_bytes // 2
        self.path = ""

    def write(self, lines: bytes) -> None:
        """Add whole lines. Never raises: if files cannot be written, the lines are dropped."""
        if self._max_bytes <= 0:
            return
        try:
            if self._fd < 0 or self._num_bytes + len(lines) > self._max_bytes:
                self._open()
            if (now := time.time()) >= self._marked_at + 1.0:
                self._mark(now)
            view = memoryview(lines)
            while view:
                view = view[os.write(self._fd, view) :]
            self._num_bytes += len(lines)
        except OSError as error:
            self._max_bytes = 0
            self.close()
            self._files.broke(error)

    def _mark(self, now: float) -> None:
        self._marked_at = now
        fd = os.open(f"{self.path}.times", _FLAGS, 0o600)
        try:
            os.write(fd, b"%.3f %d\n" % (now, os.fstat(self._fd).st_size))
        finally:
            os.close(fd)

    def _open(self) -> None:
        directory = self._files.directory_of(self._mesh, self._name)
        self.path = os.path.join(directory, f"{self._rank}.log")
        if self._fd >= 0:
            self.close()
            os.replace(self.path, f"{self.path}.1")
            with contextlib.suppress(OSError):
                os.replace(f"{self.path}.times", f"{self.path}.1.times")
            self._marked_at = 0.0
        self._fd = os.open(self.path, _FLAGS, 0o600)
        self._num_bytes = 0

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _new_run() -> str:
    base = settings().log_dir or os.path.join(runtime_dir(), "logs")
    os.makedirs(base, mode=0o700, exist_ok=True)
    _sweep(base)
    when = time.strftime("%Y%m%d-%H%M%S")
    path = os.path.join(base, f"{when}-{machine_id()[:6]}-{os.getpid()}")
    os.makedirs(path, mode=0o700, exist_ok=True)
    return path


def _sweep(base: str) -> None:
    """Remove the files of ended runs, except the newest few runs that are not old."""
    over = sorted(name for name in os.listdir(base) if _is_over(base, name))
    too_old = time.time() - _KEPT_SECONDS
    for index, name in enumerate(over):
        path = os.path.join(base, name)
        with contextlib.suppress(OSError):
            if index < len(over) - _KEPT_RUNS or os.stat(path).st_mtime < too_old:
                ours.remove_folder(path, base, name=_RUN.pattern)


_RUN = re.compile(r"\d{8}-\d{6}-(\w{6})-(\d+)")


def _is_over(base: str, name: str) -> bool:
    """Return whether ``name`` is a run of this machine whose host agent has ended."""
    match = _RUN.fullmatch(name)
    if match is None or os.path.islink(os.path.join(base, name)):
        return False
    return match[1] == machine_id()[:6] and not is_there(int(match[2]))
