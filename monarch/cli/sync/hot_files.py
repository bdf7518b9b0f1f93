"""Finds hot files: files that change all the time, so that a watch pushes without end, although no
person edits them.

If a job writes its logs or results into a watched folder, every line is pushed to every host, for
ever. The watch reports which files these are, and how to leave them out.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from functools import reduce
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from monarch.cli.allocation.found_code import LOGS, WEIGHTS
from monarch_sync.workspace import Folder, Workspace

_NUM_PUSHES = 10
_WITHIN_SECONDS = 60.0
_MAX_CHANGED = 20  # in one push; more come of something else
_MAX_FILES = 2000  # looked at for code
_CODE = (
    ".py", ".pyi", ".pyx", ".ipynb", ".toml", ".yaml", ".yml", ".sh", ".md", ".rst",
    ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".rs",
)  # fmt: skip


class LeaveOut(NamedTuple):
    """A ``pattern`` for the ignore file ``file`` that leaves files out.

    ``is_sure`` is false if a person may want such files to be pushed, for example weights.
    """

    pattern: str
    file: Path
    is_sure: bool = True


class HotFiles:
    """Finds files that pushes change all the time, and reports each once."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._pushes: deque[tuple[float, dict[LeaveOut, None]]] = deque(maxlen=_NUM_PUSHES)
        self._outputs: set[str] = set()  # that were pushed, and have the names of outputs
        self._reported: set[LeaveOut] = set()

    def pushed(self, changed: Iterable[str], now: float) -> LeaveOut | None:
        """Record a push of these files; return the pattern of files to leave out from now on.

        ``None`` if no file is pushed too often. Files whose names mark them as a training's output
        are left out at their second push. ``now``: seconds, by any clock.
        """
        files = [path for path in changed if not is_code(path)]
        if not 0 < len(files) <= _MAX_CHANGED:
            return None
        outputs = {path: is_log for path in files if (is_log := _is_log(path)) is not None}
        for path in sorted(self._outputs & outputs.keys()):
            ways = [way for way in self._ways(path) if _is_whole(way.pattern)]
            if ways and ways[0] not in self._reported:
                self._reported.update(ways)
                return ways[0]._replace(is_sure=outputs[path])
        self._outputs |= outputs.keys()
        ways = [way for path in files for way in self._ways(path)]
        self._pushes.append((now, dict.fromkeys(ways)))
        since = self._pushes[0][0]
        if len(self._pushes) < _NUM_PUSHES or now - since > _WITHIN_SECONDS:
            return None
        common = reduce(
            lambda patterns, more: patterns & more, (set(ways) for _, ways in self._pushes)
        )
        hot = next((way for way in dict.fromkeys(ways) if way in common), None)
        if hot is None or hot in self._reported:
            return None
        self._reported |= common
        return hot

    def _ways(self, remote: str) -> Iterator[LeaveOut]:
        """Yield the patterns that leave a file out, best first: folders, if they have no code."""
        for folder in self._workspace.folders:
            relative = folder.relative_of(remote)
            if relative is None:
                continue
            file = folder.local / ".monarchignore"
            path = PurePosixPath(relative)
            for above in path.parents:
                if above.name and not _holds_code(folder, str(above)):
                    yield LeaveOut(f"/{above}/", file)
            yield LeaveOut(f"/{path}", file)
            if path.suffix:
                yield LeaveOut(f"/{path.with_name(f'*{path.suffix}')}", file)
            return


def _holds_code(folder: Folder, relative: str) -> bool:
    num_seen = 0
    for _, _, names in os.walk(folder.local / relative):
        if any(map(is_code, names)):
            return True
        num_seen += len(names)
        if num_seen > _MAX_FILES:
            break
    return False


def _is_log(path: str) -> bool | None:
    """Whether a file is a log that a training writes; ``None`` if it is neither surely a log nor
    surely not.
    """
    folders = PurePosixPath(path).parts[:-1]
    if not set(LOGS).isdisjoint(folders) or ".tfevents." in path:
        return True
    return False if path.endswith(WEIGHTS) else None


def _is_whole(pattern: str) -> bool:
    """Whether no folder above the pattern's last part is a library's log folder.

    A log folder is left out as a whole, not in parts.
    """
    parts = PurePosixPath(pattern).parts
    return not any(part in LOGS for part in parts[:-1])


def is_code(path: str) -> bool:
    """Whether the suffix of ``path`` is one of files that a person edits by hand."""
    return path.endswith(_CODE)
