"""Large files that a push would send to the hosts: asks a person once about each.

A checkpoint or a data set in the workspace is seldom meant to be sent, and over a slow line it
takes minutes. Without a person to ask, a message is printed, and the push goes on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import click

from monarch.cli.own_output import exact_pattern
from monarch.cli.terminal.confirm import is_somebody_there
from monarch.errors import JobError, MonarchError
from monarch.runtime.workspace.packages.surroundings import Surroundings
from monarch_sync import SyncReport, Workspace
from monarch_sync.tree.entry import Entry
from monarch_sync.tree.large_files import reviewed_by
from monarch_sync.words import byte_size, printable

KNOWN = Path(".monarch/large_files.json")
_IGNORE_FILE = ".monarchignore"
_MAX_SHOWN = 10


class _Ahead(MonarchError):
    """Interrupts a push that is about to send large files about which no person was asked."""

    def __init__(self, files: Sequence[Entry]) -> None:
        super().__init__(files)
        self.files = files


class NotSent(JobError):
    """A person refused to send a large file, so nothing was sent."""


class LargeFiles:
    """Asks about the large files of one workspace. Without a terminal, or if ``may_ask`` is false,
    ``tell`` gets a line instead. With ``is_agreed`` nothing is asked or reported.
    """

    def __init__(
        self,
        tell: Callable[[str, list[str]], object],
        *,
        is_agreed: bool = False,
        may_ask: bool = True,
        file: Path = KNOWN,
    ) -> None:
        self._tell = tell
        self._is_agreed = is_agreed
        self.asks = may_ask and is_somebody_there()
        self._file = file

    def pushing(self, workspace: Workspace, push: Callable[[], SyncReport]) -> SyncReport:
        """Call ``push`` and return its report.

        If large files are to be sent, and a person can be asked about them, the push is
        interrupted; after a yes it is made again. Raises ``NotSent`` after a no.
        """

        def review(files: Sequence[Entry]) -> None:
            remembered = self._remembered()
            new = [entry for entry in files if entry.path not in remembered]
            if not new or self._is_agreed:
                return
            if self.asks:
                raise _Ahead(new)
            paths = [entry.path for entry in new]
            self._tell(f"{_listed(new)}\n{_advice(workspace, new)}", paths)
            self._remember(new)

        while True:
            try:
                with reviewed_by(review):
                    return push()
            except _Ahead as ahead:
                self._ask(workspace, ahead.files)

    def _ask(self, workspace: Workspace, files: Sequence[Entry]) -> None:
        click.echo(_listed(files))
        answer = click.prompt(
            "Send? (y)es, (n)o and stop here, (i)gnore and go on without",
            type=click.Choice(["y", "n", "i"]),
            show_choices=False,
        )
        if answer == "n":
            raise NotSent(f"nothing was sent. {_advice(workspace, files)}")
        if answer == "y":
            self._remember(files)
            return
        for file, patterns in _ways_out(workspace, files).items():
            with open(file, "a+", encoding="utf-8") as ignore:
                ignore.seek(0)
                has_end = ignore.read()[-1:] in ("", "\n")
                ignore.write("".join(f"{line}\n" for line in ([] if has_end else [""]) + patterns))
            click.echo(f"wrote into {printable(str(file))}: {' '.join(map(printable, patterns))}")

    def _remembered(self) -> set[str]:
        try:
            return set(json.loads(self._file.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return set()

    def _remember(self, files: Iterable[Entry]) -> None:
        """Record files of this folder, so that nobody is asked about them again."""
        paths = sorted({*self._remembered(), *(entry.path for entry in files)})
        with suppress(OSError):  # If it cannot be written, they are asked about once more.
            self._file.write_text(json.dumps(paths, indent=2) + "\n", encoding="utf-8")


def _listed(files: Sequence[Entry]) -> str:
    shown = [
        f"  {byte_size(entry.size):>8}  {printable(entry.path)}" for entry in files[:_MAX_SHOWN]
    ]
    if more := len(files) - len(shown):
        shown.append(f"  and {more:,} more")
    heading = "a large file goes" if len(files) == 1 else f"{len(files)} large files go"
    return "\n".join([f"{heading} to every host:", *shown])


def _advice(workspace: Workspace, files: Sequence[Entry]) -> str:
    pronoun = "it" if len(files) == 1 else "them"
    parts = []
    for file, patterns in _ways_out(workspace, files).items():
        lines = [f"    {printable(pattern)}" for pattern in patterns[:_MAX_SHOWN]]
        if len(patterns) > _MAX_SHOWN:
            lines.append("    ...")
        adds = "\n".join(lines)
        parts.append(f"To keep {pronoun} here, add\n{adds}\nto {printable(str(file))}")
    return "\n".join(parts)


def _ways_out(workspace: Workspace, files: Sequence[Entry]) -> dict[Path, list[str]]:
    """Return the patterns that leave these files out of the workspace, by ignore file."""
    patterns_by_file: dict[Path, list[str]] = {}
    all_folders = Surroundings(workspace).whole()  # It may be a package's that comes along.
    for entry in files:
        for folder in all_folders.folders:
            inside = folder.relative_of(entry.path)
            if inside is not None and (folder.local / inside).exists():
                patterns = patterns_by_file.setdefault(folder.local / _IGNORE_FILE, [])
                patterns.append(exact_pattern(inside))
                break
    return patterns_by_file
