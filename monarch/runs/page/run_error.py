"""The error on which a run holds, or with which it ended: its place, source, and editor link."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from monarch.config import settings
from monarch.observe.kept_files import read_kept
from monarch.runs.record.error_lines import error_in
from monarch.runs.record.folder import TRACEBACK, RunFolder
from monarch.runs.record.measured import int_or_none
from monarch.runs.record.places import in_short

_FRAME = re.compile(r'^ *File "(.+)", line (\d+)')
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://")
_IN_REPLICA = "/workspace/"  # of a host's copy
_AROUND = 4
_MOST_TEXT = 20_000

# Finds a file that an error names on this machine: returns its path and the person's folder that
# has it; ``None`` if no such folder has it.
Locate = Callable[[str], tuple[Path, Path] | None]


def nowhere(file: str) -> None:
    """Return ``None``, so that no source lines are shown: a report may be sent to somebody else."""


def hold_of(event: Mapping[str, Any], locate: Locate) -> dict[str, Any]:
    """Return the page's data for a ``held`` event."""
    generation, good = event.get("generation", 0), event.get("good", 0)
    error = _error(
        str(event.get("error") or ""),
        str(event.get("file") or ""),
        event.get("line"),
        traceback=str(event.get("traceback") or ""),
        locate=locate,
    )
    return {
        **error,
        "ranks": [rank for rank in _list(event.get("ranks")) if int_or_none(rank) is not None],
        "doing": str(event.get("doing") or ""),
        "generation": generation,
        "good": good,
        "can_roll_back": (int_or_none(good) or 0) < (int_or_none(generation) or 0),
        "choices": [str(key) for key in _list(event.get("choices"))],
        "since": event.get("time", 0.0),
        "advice": "\n".join(
            line for line in str(event.get("text") or "").splitlines()[1:] if " on rank" not in line
        ),
    }


def end_of(run: RunFolder, event: Mapping[str, Any], locate: Locate) -> dict[str, Any] | None:
    """Return the page's data for the error that ended a run; ``None`` if it was not a Python
    error.
    """
    try:
        text = read_kept(run.path / TRACEBACK).decode("utf-8", "replace")[-_MOST_TEXT:]
    except OSError:
        text = ""
    lines = error_in(text) if text else None
    if lines is None:
        reason = str(event.get("text") or "").partition(": ")[2]
        return {"error": reason} if reason else None
    return _error(lines.error, lines.file, lines.line, traceback=text, locate=locate)


def _error(error: str, file: str, line: Any, *, traceback: str, locate: Locate) -> dict[str, Any]:
    number = int_or_none(line) or 0
    source = _raised(traceback, file, number)
    located = locate(file) if file else None
    return {
        "error": error,
        "file": in_short(file.rpartition(_IN_REPLICA)[2]),
        "line": number,
        "traceback": traceback[:_MOST_TEXT],
        "source": _around(located, number, source) or source,
        "link": editor_link(located[0], number) if located is not None else "",
    }


def _raised(traceback: str, file: str, line: int) -> list[tuple[int, str]]:
    """Return the number and the text of the line that raised, from the traceback; [] if not found.

    The file itself may have changed since.
    """
    source: list[tuple[int, str]] = []
    for text, next_line in itertools.pairwise(traceback.splitlines()):
        frame = _FRAME.match(text)
        is_place = frame and int(frame[2]) == line and frame[1].endswith(file)
        if is_place and _FRAME.match(next_line) is None:
            source = [(line, next_line.strip())]
    return source


def _around(
    located: tuple[Path, Path] | None, line: int, source: Sequence[tuple[int, str]]
) -> list[tuple[int, str]]:
    """Return the lines around the line that raised, with their numbers.

    Returns [] if the file is not known or not readable, or has another text in that line now.
    """
    if located is None or not source:
        return []
    try:
        lines = read_kept(*located).decode("utf-8").splitlines()
    except (OSError, ValueError):
        return []
    if not 0 < line <= len(lines) or lines[line - 1].strip() != source[0][1]:
        return []
    first = max(1, line - _AROUND)
    return list(enumerate(lines[first - 1 : line + _AROUND], first))


def editor_link(path: Path, line: int) -> str:
    """Return a link that opens the file in the person's editor; "" if the setting allows none."""
    form = settings().editor_url
    if not _SCHEME.match(form):
        return ""  # It is turned off by "", and a link without a scheme could run a script.
    return form.replace("{path}", quote(str(path))).replace("{line}", str(max(1, line)))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
