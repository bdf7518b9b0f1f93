"""Prints what procs of this host have printed: a script of its own, which a host runs for a person.

``read_logs.py FOLDER AGENT_PID [--since=SECONDS] [--rank=N]... [--tail=N] [--follow] [--agents]``.
Each line has ``mesh rank``, a tab, and the text. A file's ``.times`` says at which byte a second
began; so ``--since`` is right to a second.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time

_LOOK_SECONDS = 0.2
_NAME = re.compile(r"(\d+)\.log(\.1)?")
_AGENT = "agent"


class LogText:
    """One file, and how much of it was printed."""

    def __init__(self, who: str, path: str, start: int) -> None:
        self.who, self.path = who, path
        self._offset = start
        self._inode = 0

    def take(self, *, is_over: bool) -> list[bytes]:
        """Return the new lines since the last call; an unfinished line is kept back, unless the run
        is over.
        """
        try:
            with open(self.path, "rb") as file:
                inode = os.fstat(file.fileno()).st_ino
                if self._inode and inode != self._inode:
                    self._offset = 0  # It was full, and another one was begun.
                self._inode = inode
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return []
        end = len(data) if is_over else data.rfind(b"\n") + 1
        self._offset += end
        text = data[:end]
        return text.removesuffix(b"\n").split(b"\n") if text else []


def find(folder: str, pid: int, ranks: set[int], *, agents: bool) -> list[tuple[str, str]]:
    """Return the rank's name and the path of each log file, in the order of mesh and rank.

    ``ranks`` selects files; an empty set means all. With ``agents`` the only file is the log of the
    host agent with this ``pid``, if it has one.
    """
    if agents:
        with contextlib.suppress(OSError):
            path = os.readlink(f"/proc/{pid}/fd/2")
            if os.path.isfile(path):
                return [(_AGENT, path)]
        return []
    files = []
    for mesh in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        with contextlib.suppress(OSError):
            for name in os.listdir(os.path.join(folder, mesh)):
                match = _NAME.fullmatch(name)
                if match and (not ranks or int(match[1]) in ranks):
                    key = mesh, int(match[1]), match[2] is None
                    files.append((key, os.path.join(folder, mesh, name)))
    return [(f"{key[0]} {key[1]}", path) for key, path in sorted(files)]


def start_of(path: str, since: float) -> int:
    """Return the offset in bytes at which the output since the time ``since`` begins.

    0 if that is not known.
    """
    if not since:
        return 0
    start = 0
    try:
        with open(f"{path}.times") as file:
            for line in file:
                when, _, offset = line.partition(" ")
                if float(when) >= since:
                    return int(offset)
                start = int(offset)
        return os.path.getsize(path) if os.path.getmtime(path) < since else start
    except (OSError, ValueError):
        return 0


def main(arguments: list[str]) -> None:
    """Print lines of log files; with ``--follow``, print new lines as they come.

    The arguments are the run's folder, the host agent's pid, and options.
    """
    folder, pid = arguments[0], int(arguments[1])
    options = [argument.partition("=") for argument in arguments[2:]]
    names = {name for name, _, _ in options}
    ranks = {int(value) for name, _, value in options if name == "--rank"}
    since = next((float(value) for name, _, value in options if name == "--since"), 0.0)
    tail = next((int(value) for name, _, value in options if name == "--tail"), None)
    texts: dict[str, LogText] = {}
    is_first = True
    while True:
        for who, path in find(folder, pid, ranks, agents="--agents" in names):
            if path not in texts:
                if not is_first and path.endswith(".1"):
                    texts[path] = LogText(who, path, os.path.getsize(path))
                    continue
                texts[path] = LogText(who, path, start_of(path, since))
            lines = texts[path].take(is_over="--follow" not in names)
            if is_first and tail is not None:
                lines = lines[len(lines) - min(tail, len(lines)) :]
            for line in lines:
                sys.stdout.buffer.write(who.encode() + b"\t" + line + b"\n")
        sys.stdout.flush()
        if "--follow" not in names:
            return
        is_first = False
        time.sleep(_LOOK_SECONDS)


if __name__ == "__main__":
    main(sys.argv[1:])
