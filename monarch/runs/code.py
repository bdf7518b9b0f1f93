"""The code that a run runs: its digest, and what was changed in it while it ran."""

from __future__ import annotations

import difflib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from monarch_sync import Manifest, Scanner, Watcher, Workspace, WorkspaceMissing
from monarch_sync.entry import Entry
from monarch_sync.words import printable

__all__ = ["CodeChange", "RunCode"]

_MAX_BYTES = 256 * 1024
_MAX_BYTES_IN_ALL = 64 << 20
_MAX_DIFF_LINES = 400


@dataclass(frozen=True)
class CodeChange:
    """What differs from the code before. ``saved_at`` is when the last of it was saved."""

    files: list[str]
    diff: str
    digest: str
    saved_at: float


class RunCode:
    """The texts of a workspace, as they were when last looked at; to be closed.

    It watches, so a look costs what has changed since the last one, in a tree of any size. Of much
    text only the first 64 MiB are remembered; of the rest a change is told without a diff.
    """

    def __init__(self, workspace: Workspace, max_bytes: int = _MAX_BYTES_IN_ALL) -> None:
        self._workspace = workspace
        self._watcher = Watcher(workspace)
        self._scanner = Scanner(workspace)
        self._manifest = Manifest()
        self._room = max_bytes
        self._texts: dict[str, str] = {}
        self.digest = ""
        self.look()

    def another(self) -> RunCode:
        """The same for another run beside this one: each is told of every change."""
        return RunCode(self._workspace)

    def close(self) -> None:
        """Watch no more."""
        self._watcher.close()

    def look(self) -> CodeChange | None:
        """What has changed since the last look; ``None`` if nothing has."""
        try:
            touched = self._watcher.changes()
            found = self._scanner.scan() if touched is None else self._scanner.rescan(touched)
        except WorkspaceMissing:
            return None
        before, now = self._manifest, found.over(self._manifest).manifest
        self._manifest, self.digest = now, now.digest.hex()
        files, lines, saved_at = [], list[str](), 0.0
        for change in now.changes(before):
            if _content(change.before) == _content(change.now):
                continue
            files.append(change.path)
            text, when = self._read(change.path) if _content(change.now) else ("", time.time())
            saved_at = max(saved_at, when)
            known = self._texts.get(change.path) if _content(change.before) else ""
            lines += _diff(change.path, known, text)
            self._remember(change.path, text if _content(change.now) else None)
        if not files:
            return None
        if len(lines) > _MAX_DIFF_LINES:
            left = len(lines) - _MAX_DIFF_LINES
            lines = [*lines[:_MAX_DIFF_LINES], f"... and {left} more lines"]
        return CodeChange(files, "\n".join(lines), self.digest, saved_at)

    def _remember(self, path: str, text: str | None) -> None:
        self._room += len(self._texts.pop(path, ""))
        if text is not None and len(text) <= self._room:
            self._texts[path] = text
            self._room -= len(text)

    def _read(self, path: str) -> tuple[str | None, float]:
        """A file's text, if it is one that is worth a diff, and when it was saved."""
        for local in self._workspace.locate(path):
            try:
                status = os.stat(local)
                if status.st_size <= _MAX_BYTES:
                    return Path(local).read_text(encoding="utf-8"), status.st_mtime
                return None, status.st_mtime
            except UnicodeDecodeError:
                return None, status.st_mtime
            except OSError:
                continue
        return None, 0.0


def _content(entry: Entry | None) -> bytes:
    """Empty where there is no file."""
    return entry.digest if entry is not None else b""


def _diff(path: str, before: str | None, now: str | None) -> Iterator[str]:
    if before is None or now is None:
        yield f"{printable(path)} has changed"
        return
    name = printable(path)
    yield from difflib.unified_diff(
        before.splitlines(), now.splitlines(), f"a/{name}", f"b/{name}", lineterm=""
    )
