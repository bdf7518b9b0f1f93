"""The code of a run: its digest, and its changes during the run.

The hosts are asked, since they have the files of each generation. The author's own files may be
newer.
"""

from __future__ import annotations

import contextlib
import copy
import difflib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from monarch.errors import MonarchError
from monarch.runtime.workspace.pushing.host_history import HeldChanges
from monarch_sync import SyncReport, Workspace
from monarch_sync.content.stamps import digest_of
from monarch_sync.errors import SyncError
from monarch_sync.tree.entry import Entry
from monarch_sync.tree.manifest import EntryChange
from monarch_sync.words import counted, printable

_MOVED_SECONDS = 1.0
_MAX_BYTES = 256 * 1024
_MAX_DIFF_LINES = 400


class _Past(Protocol):
    """Returns the changes of earlier generations, and their files' contents, from the hosts."""

    def changes(self, since: int, generation: int) -> HeldChanges: ...

    def content(self, entry: Entry) -> bytes: ...


@dataclass(frozen=True)
class RunCodeChange:
    """The difference of a generation's code from that of the run's previous generation.

    ``saved_at`` is when the last file was saved here, in seconds since the epoch; 0 if unknown.
    """

    files: list[str]
    diff: str
    digest: str
    saved_at: float


@dataclass(eq=False)
class RunCode:
    """The generation of a workspace that a run uses.

    ``newest_loaded`` returns a generation: the newest one that has changed code which a process of
    the run had loaded.
    """

    past: _Past
    workspace: Workspace
    generation: int
    newest_loaded: Callable[[], int] | None = None
    #: Rolls the hosts back to a generation; ``None`` if the program cannot.
    roll_back: Callable[[int], SyncReport] | None = field(default=None, init=False)
    #: The paths of the hosts' copies of the workspace, as far as they are known.
    copies: frozenset[str] = field(default=frozenset(), init=False)
    digest: str = field(default="", init=False)

    def __post_init__(self) -> None:
        self.move_to(self.generation)

    def another(self) -> RunCode:
        """Return a copy, for another run beside this one; it begins with this run's generation."""
        return copy.copy(self)

    def is_loaded_since(self, generation: float) -> bool:
        """Whether a generation after ``generation`` has changed code that the run's processes had
        loaded.

        It is true also if that is not known.
        """
        return self.newest_loaded is None or self.newest_loaded() > generation

    def in_authors_words(self, text: str) -> str:
        """Return a text, such as a traceback, with paths of a host's copy replaced by the
        author's."""
        deepest_first = sorted(self.workspace.folders, key=lambda folder: -len(folder.remote))
        for path in self.copies:
            for folder in deepest_first:
                remote = f"{path}/{folder.remote}".rstrip("/")
                text = text.replace(f"{remote}/", f"{folder.local}/")
        return text

    def move_to(self, generation: int) -> RunCodeChange | None:
        """Take ``generation`` as the generation that the run uses, and return its change; ``None``
        if it changes nothing.

        If no host knows the change, the run's generation stays as it was, and the result is
        ``None`` too. The next change then includes this one.
        """
        try:
            held = self.past.changes(self.generation, generation)
        except (MonarchError, SyncError):
            return None
        self.generation, self.digest = generation, held.digest.hex()
        changes = [x for x in held.changes if _content(x.before) != _content(x.now)]
        if not changes:
            return None
        return RunCodeChange(
            [change.path for change in changes],
            "\n".join(self._diff(changes)),
            self.digest,
            self._saved_at(changes, time.time() - held.age_seconds),
        )

    def _diff(self, changes: list[EntryChange]) -> list[str]:
        lines: list[str] = []
        for number, change in enumerate(changes):
            if len(lines) > _MAX_DIFF_LINES:
                files = counted(len(changes) - number, "more file")
                return [*lines[:_MAX_DIFF_LINES], f"... and more, and {files}"]
            lines += _lines(change.path, self._text(change.before), self._text(change.now))
        if len(lines) > _MAX_DIFF_LINES:
            num_more = len(lines) - _MAX_DIFF_LINES
            return [*lines[:_MAX_DIFF_LINES], f"... and {num_more} more lines"]
        return lines

    def _text(self, entry: Entry | None) -> str | None:
        """Return the text of a file; ``None`` if it is too large for a diff, or no longer
        available."""
        if entry is None or not entry.is_file:
            return ""
        if entry.size > _MAX_BYTES:
            return None
        try:
            return self.past.content(entry).decode()
        except (MonarchError, SyncError, UnicodeDecodeError):
            return None

    def _saved_at(self, changes: list[EntryChange], pushed_at: float) -> float:
        """Return the time at which the last file of a push was saved, in seconds since the epoch. 0
        if the files have changed since the push, as after a rollback of the hosts.
        """
        newest, saved_at, digest = "", 0.0, b""
        for change in changes:
            if change.now is None or not change.now.is_file:
                continue
            for local in self.workspace.locate(change.path):
                with contextlib.suppress(OSError):
                    stat = os.stat(local)
                    modified_at = stat.st_mtime
                    if stat.st_ctime - modified_at > _MOVED_SECONDS:
                        return 0.0  # A file that is moved keeps the time of its last save.
                    if modified_at > saved_at:
                        newest, saved_at, digest = str(local), modified_at, change.now.digest
                    break
        is_known = newest and saved_at <= pushed_at and digest_of(newest) == digest
        return saved_at if is_known else 0.0


def _content(entry: Entry | None) -> bytes:
    """Return the digest of a file; empty if there is no file."""
    return entry.digest if entry is not None else b""


def _lines(path: str, old: str | None, new: str | None) -> Iterator[str]:
    name = printable(path)
    if old is None or new is None:
        yield f"{name} has changed"
        return
    yield from difflib.unified_diff(
        old.splitlines(), new.splitlines(), f"a/{name}", f"b/{name}", lineterm=""
    )
