"""Leaves files out of the workspace into which our own commands write their output.

``monarch sync --watch > sync.log`` would push its log for each line that a push adds to it, and
``monarch run ddp | tee run.log``, in another terminal, would train on a new generation with each
line that it prints.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from monarch.config import runtime_dir
from monarch_sync import Workspace

_SPECIAL = str.maketrans({char: f"\\{char}" for char in "\\*?[] !#"})
_OUTPUTS = (1, 2)  # stdout and stderr


def without_own_output(workspace: Workspace) -> Workspace:
    """Return the workspace without files into which our own processes write.

    Of this process, only the files of stdout and stderr are meant.
    """
    processes = _Processes()
    files = processes.files_behind(os.getpid(), _OUTPUTS)
    for pid in processes.ours():
        files |= processes.files_behind(pid)
    patterns = patterns_of(workspace, files)
    return workspace.ignoring(patterns) if patterns else workspace


def patterns_of(workspace: Workspace, files: set[str]) -> list[str]:
    """Return patterns for ignore files that leave out the ``files`` that are in the workspace."""
    return [
        exact_pattern(inside)
        for folder in workspace.folders
        for file in sorted(files)
        if (inside := os.path.relpath(file, os.path.realpath(folder.local))).split("/")[0] != ".."
    ]


def exact_pattern(inside: str) -> str:
    """Return the ignore file's pattern that matches only the path ``inside`` its folder."""
    return f"/{inside.translate(_SPECIAL)}"


def files_of_our_processes() -> dict[str, int]:
    """Return the files that our processes have open for writing, each with the pid.

    They include files of programs that read such a process's output (``| tee run.log``). Processes
    of other users are not seen; without ``/proc`` the result is empty.
    """
    processes = _Processes()
    return {file: pid for pid in processes.ours() for file in processes.files_behind(pid)}


class _Processes:
    """The open files of this user's processes, at the moment when it is made."""

    def __init__(self) -> None:
        self._links = {pid: dict(_links(pid)) for pid in _pids()}

    def ours(self) -> list[int]:
        """Return the pids of our processes.

        They have a socket in our runtime folder, or are ``monarch`` commands. A command has no such
        socket in its first second, so it is known by the words of its command line.
        """
        sockets = _sockets_below(runtime_dir())
        return [
            pid
            for pid, links in self._links.items()
            if sockets & set(links.values()) or _is_command(pid)
        ]

    def files_behind(self, pid: int, descriptors: tuple[int, ...] | None = None) -> set[str]:
        """Return the regular files that a process writes through ``descriptors`` (None: all)."""
        links = self._links.get(pid, {})
        files = set()
        for number, target in links.items():
            if descriptors is not None and number not in descriptors:
                continue
            if target.startswith("pipe:") and number in _OUTPUTS:
                for reader, links_of_reader in self._links.items():
                    if reader != pid and target in links_of_reader.values():
                        files |= set(_written(reader, links_of_reader))
            else:
                files |= set(_written(pid, {number: target}))
        return files


def _pids() -> Iterator[int]:
    user = os.getuid()
    try:
        names = os.listdir("/proc")
    except OSError:
        return  # a system without /proc
    for name in names:
        try:
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == user:
                yield int(name)
        except OSError:
            pass  # it has ended


def _is_command(pid: int) -> bool:
    """Whether a process is a ``monarch`` command, by its first words (``python bin/monarch``)."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:3]
    except OSError:
        return False
    return any(
        os.path.basename(word) == b"monarch" or word == b"monarch.cli.main" for word in words
    )


def _links(pid: int) -> Iterator[tuple[int, str]]:
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        try:
            yield int(name), os.readlink(f"{folder}/{name}")
        except OSError:
            pass


def _written(pid: int, links: dict[int, str]) -> Iterator[str]:
    """Yield the regular files that a process has open for writing, without deleted files.

    ``links`` has the target of each of the process's descriptors.
    """
    for number, path in links.items():
        if not path.startswith("/") or path.startswith(("/dev/", "/proc/")):
            continue
        try:
            flags = Path(f"/proc/{pid}/fdinfo/{number}").read_text().split("flags:")[1].split()[0]
            is_written = int(flags, 8) & os.O_ACCMODE != os.O_RDONLY
            if is_written and stat.S_ISREG(os.stat(path).st_mode):
                yield path
        except (OSError, IndexError):
            pass  # closed meanwhile


def _sockets_below(folder: str) -> set[str]:
    """Return the Unix sockets that are bound below a folder, in the form of descriptors' links."""
    sockets = set()
    try:
        lines = Path("/proc/net/unix").read_text(errors="replace").splitlines()
    except OSError:
        return set()
    for line in lines[1:]:
        fields = line.split(maxsplit=7)
        if len(fields) == 8 and fields[7].startswith(f"{folder}/"):
            sockets.add(f"socket:[{fields[6]}]")
    return sockets
