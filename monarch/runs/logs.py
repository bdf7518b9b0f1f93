"""What the procs of a run print, in its folder: ``logs/rank0.log`` and so on."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import BinaryIO

from monarch.wire.message import Log

__all__ = ["RunLogs"]

_UNUSUAL = re.compile(r"[^\w.-]+")


class RunLogs:
    """Keeps the lines that reach the client, a file a rank.

    Procs of another mesh than ``name`` have its name in front: ``logs/eval-rank0.log``. Procs that
    took the place of dead ones go on in the same file.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._files: dict[str, BinaryIO] = {}
        self._lock = threading.Lock()

    def take(self, log: Log, lines: bytes) -> None:
        """Add lines of one proc. Never raises: what cannot be kept is still on the host."""
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
            self._files[name] = open(self._folder / name, "ab", buffering=0)  # noqa: SIM115
        return self._files[name]


def _file_name(log: Log, run_name: str) -> str:
    # The host keeps the lines in MESH/RANK.log; a later mesh of one name is MESH-2.
    path = Path(log.path)
    mesh, rank = path.parent.name, path.name.removesuffix(".log")
    if not rank.isdigit():
        mesh, _, rank = log.label.rpartition(" ")
    base = re.sub(r"-\d+$", "", mesh)
    if run_name in (mesh, base):
        return f"rank{rank}.log"
    return f"{_UNUSUAL.sub('_', mesh) or 'procs'}-rank{rank}.log"
