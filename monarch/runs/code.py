"""The code that a run runs: its digest, and what was changed in it while it ran."""

from __future__ import annotations

import difflib
import os
import time
from dataclasses import dataclass
from pathlib import Path

from monarch_sync import Manifest, Scanner, Workspace, WorkspaceMissing
from monarch_sync.words import printable

__all__ = ["CodeChange", "RunCode"]

_MAX_BYTES = 256 * 1024
_MAX_DIFF_LINES = 400


@dataclass(frozen=True)
class CodeChange:
    """What differs from the code before. ``saved_at`` is when the last of it was saved."""

    files: list[str]
    diff: str
    digest: str
    saved_at: float


class RunCode:
    """The texts of a workspace, as they were when last looked at."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._scanner = Scanner(workspace)
        self._manifest = Manifest()
        self._digests: dict[str, str] = {}
        self._texts: dict[str, str] = {}
        self.digest = ""
        self.look()

    def look(self) -> CodeChange | None:
        """What has changed since the last look; ``None`` if nothing has."""
        try:
            manifest = self._scanner.scan().over(self._manifest).manifest
        except WorkspaceMissing:
            return None
        self._manifest = manifest
        now = {entry.path: entry.digest.hex() for entry in manifest if entry.is_file}
        before, self._digests = self._digests, now
        changed = sorted(
            path for path in before.keys() | now.keys() if before.get(path) != now.get(path)
        )
        self.digest = manifest.digest.hex()
        lines: list[str] = []
        saved_at = 0.0
        for path in changed:
            text, when = self._read(path) if path in now else ("", time.time())
            saved_at = max(saved_at, when)
            lines += difflib.unified_diff(
                self._texts.get(path, "").splitlines(), text.splitlines(),
                f"a/{printable(path)}", f"b/{printable(path)}", lineterm="",
            )  # fmt: skip
            self._texts[path] = text
        if not changed:
            return None
        if len(lines) > _MAX_DIFF_LINES:
            left = len(lines) - _MAX_DIFF_LINES
            lines = [*lines[:_MAX_DIFF_LINES], f"... and {left} more lines"]
        return CodeChange(changed, "\n".join(lines), self.digest, saved_at)

    def _read(self, path: str) -> tuple[str, float]:
        for local in self._workspace.locate(path):
            try:
                status = os.stat(local)
                if status.st_size <= _MAX_BYTES:
                    return Path(local).read_text(encoding="utf-8"), status.st_mtime
                return "", status.st_mtime
            except (OSError, UnicodeDecodeError):
                continue
        return "", 0.0
