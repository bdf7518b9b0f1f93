"""Rows: a file of JSON objects, one a line, to which a run adds while it goes on."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from monarch.observe.kept_files import open_to_append

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


def _has_open_end(file: int) -> bool:
    """Whether an earlier program got no further than half a row."""
    size = os.fstat(file).st_size
    return size > 0 and os.pread(file, 1, size - 1) != b"\n"
