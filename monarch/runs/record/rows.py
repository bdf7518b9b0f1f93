"""Row files: JSON objects, one a line, which a run appends while it runs."""

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
    """A file of rows. Each row is one write, so that a kill leaves whole rows. Any thread may use
    it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._is_torn: bool | None = None

    def add(self, row: Mapping[str, Any]) -> None:
        """Append a row. Raises ``OSError``, for example if the disk is full.

        A part of the row may have been written then; later rows begin on a line of their own.
        """
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
    """Reads the rows of a growing file, each once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = self._inode = 0

    def take(self) -> tuple[list[dict[str, Any]], bool]:
        """Return the rows since the last call, and whether the file was replaced by a new one.

        A row without an end is left for later.
        """
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
    """Whether the file ends within a row, since the program that wrote it was killed."""
    size = os.fstat(file).st_size
    return size > 0 and os.pread(file, 1, size - 1) != b"\n"
