"""The output of a run's procs, in its folder: ``logs/rank0.log`` and so on.

``RunLogs`` writes these files, ``PrintedLines`` reads them, also while they grow.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Collection
from pathlib import Path
from typing import BinaryIO, NamedTuple

from monarch.observe.kept_files import open_kept, open_to_append
from monarch.wire.message import Log

_RANK = re.compile(r"rank(\d+)$")
_UNUSUAL = re.compile(r"[^\w.-]+")


class RunLogs:
    """Writes each rank's output into a file of its own, as far as it reaches the client.

    ``name`` is the name of the training's mesh. For procs of another mesh, the file's name begins
    with the name of that mesh: ``logs/eval-rank0.log``. A new proc that replaces a dead one
    continues the same file.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._files: dict[str, BinaryIO] = {}
        self._lock = threading.Lock()

    def take(self, log: Log, lines: bytes) -> None:
        """Add lines of one proc. Never raises: lines that cannot be written are still on the
        host."""
        try:
            with self._lock:
                self._file(_file_name(log, self._name)).write(lines)
        except OSError:
            pass

    def close(self) -> None:
        with self._lock:
            for file in self._files.values():
                file.close()
            self._files.clear()

    def _file(self, name: str) -> BinaryIO:
        if name not in self._files:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._files[name] = os.fdopen(open_to_append(self._folder / name), "ab", 0)
        return self._files[name]


def _file_name(log: Log, run_name: str) -> str:
    # The host keeps the lines in MESH/RANK.log; a later mesh of the same name is MESH-2.
    path = Path(log.path)
    mesh, rank = path.parent.name, path.name.removesuffix(".log")
    if not rank.isdigit():
        mesh, _, rank = log.label.rpartition(" ")
    base = re.sub(r"-\d+$", "", mesh)
    if run_name in (mesh, base):
        return f"rank{rank}.log"
    return f"{_UNUSUAL.sub('_', mesh) or 'procs'}-rank{rank}.log"


class Line(NamedTuple):
    """A line of output; ``who`` printed it: ``rank0``, or ``eval-rank0`` in another mesh."""

    who: str
    text: str


class PrintedLines:
    """The output of one run, of the given ``ranks``, or of all if the list is empty.

    The first call of ``take`` reads at most the ``last_bytes`` of all files together.
    """

    def __init__(
        self, folder: Path, ranks: Collection[int] = (), *, last_bytes: int | None = None
    ) -> None:
        self._folder = folder
        self._ranks = frozenset(ranks)
        self._last_bytes = last_bytes
        self._offsets: dict[Path, int] = {}

    def names(self) -> list[str]:
        """Return the procs that have printed anything, in the order of their ranks."""
        return [path.stem for path in self._files()]

    def take(self, *, is_over: bool = False) -> list[Line]:
        """Return the lines since the last call.

        A line without an end is left for later, unless it ``is_over`` and no end will come.
        """
        files = self._files()
        limit = None if self._last_bytes is None else self._last_bytes // max(1, len(files))
        return [line for path in files for line in self._new_in(path, is_over, limit)]

    def _files(self) -> list[Path]:
        paths = []
        for path in self._folder.glob("*.log"):
            rank = _RANK.search(path.stem)
            if rank and (not self._ranks or int(rank[1]) in self._ranks):
                paths.append(((path.stem[: rank.start()], int(rank[1])), path))
        return [path for _, path in sorted(paths)]

    def _new_in(self, path: Path, is_over: bool, limit: int | None) -> list[Line]:
        offset = self._offsets.get(path, 0)
        try:
            with open_kept(path, self._folder.parent) as file:
                size = os.fstat(file.fileno()).st_size
                is_cut = limit is not None and path not in self._offsets and size > limit
                if is_cut:
                    offset = size - (limit or 0)
                file.seek(offset)
                data = file.read()
        except OSError:
            return []  # It was removed, or is a link that leads out of the run's folder.
        if is_cut:
            begin = data.find(b"\n") + 1  # not within a line
            offset, data = offset + begin, data[begin:]
        end = len(data) if is_over else data.rfind(b"\n") + 1
        self._offsets[path] = offset + end
        text = data[:end].decode(errors="replace")
        # Not splitlines, which breaks lines at other characters too.
        lines = text.removesuffix("\n").split("\n") if text else []
        return [Line(path.stem, line) for line in lines]
