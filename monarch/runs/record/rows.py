"""Rows: a file of JSON objects, one a line, to which a run adds while it goes on."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from monarch.observe.json_rows import rows_in
from monarch.observe.kept_files import open_kept, open_to_append

# Their files in a run's folder.
METRICS = "metrics.jsonl"
EVENTS = "events.jsonl"
ROLLOUTS = "rollouts.jsonl"  # samples of reinforcement learning

_ENCODER = json.JSONEncoder(default=str)  # as `json.dumps` would make for each row


class RowFile:
    """Each row is added in one write, so a kill leaves whole ones. May be used from any thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._is_torn: bool | None = None

    def add(self, row: Mapping[str, Any]) -> None:
        """Raises ``OSError`` where the disk is full, say; later rows are whole all the same."""
        line = _ENCODER.encode(row).encode() + b"\n"
        with self._lock, os.fdopen(open_to_append(self.path), "a+b", 0) as file:
            if self._is_torn is None:
                self._is_torn = _has_open_end(file.fileno())
            if self._is_torn:
                line = b"\n" + line
            self._is_torn = True
            if file.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
            self._is_torn = False


class RowTail:
    """The rows of a file that grows, each read once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = self._inode = 0

    def take(self) -> tuple[list[dict[str, Any]], bool]:
        """The rows since the last time, and whether the file begins anew with them. One that has no
        end yet is left for later."""
        try:
            with open_kept(self._path) as file:
                stat = os.fstat(file.fileno())
                is_new = stat.st_ino != self._inode or stat.st_size < self._offset
                file.seek(0 if is_new else self._offset)
                data = file.read()
        except OSError:
            return [], False
        end = data.rfind(b"\n") + 1
        self._offset, self._inode = (0 if is_new else self._offset) + end, stat.st_ino
        return rows_in(data[:end]), is_new


def _has_open_end(file: int) -> bool:
    """Whether the file ends within a row: the program that wrote it was ended there."""
    size = os.fstat(file).st_size
    return size > 0 and os.pread(file, 1, size - 1) != b"\n"
