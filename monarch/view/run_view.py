"""The data of views of runs: figures and logs from their folders, cached while a view is open."""

from __future__ import annotations

import os
import shlex
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Generic, TypeVar

from monarch.observe.kept_files import open_kept
from monarch.observe.query import QueryTables
from monarch.runs.page.run_data import run_data
from monarch.runs.page.run_error import Locate, nowhere
from monarch.runs.record.folder import RunFolder, steps_of
from monarch.runs.record.logs import Line, PrintedLines
from monarch.runs.record.measured import is_number
from monarch.runs.record.rows import EVENTS, METRICS, RowTail
from monarch.runs.record.summary import flat_config

_MOST_LINES = 400
_MOST_LOG_BYTES = 65_536
_MOST_TAIL_LINES = 4_000
_MOST_TAIL_BYTES = 400_000
_MOST_RUNS = 60
_MOST_KEPT = 4
_NO_FIGURES = ("step", "num_steps", "time", "generation")

T = TypeVar("T")


@dataclass(frozen=True)
class PageSource:
    """The sources of a page's data.

    ``look`` is ``None`` for runs that have ended. ``tables`` gathers the tables for some SQL.
    ``act`` gets an action, and the procs or the run to apply it to. ``locate`` finds the person's
    own files.
    """

    title: str
    look: Callable[[], Sequence[Mapping[str, Any]]] | None
    tables: Callable[[str], QueryTables]
    act: Callable[[str, Sequence[str]], str]
    runs: Callable[[], Sequence[RunFolder]]
    is_read_only: bool = False
    locate: Locate = nowhere


def run_summary(run: RunFolder) -> dict[str, Any]:
    """Return a run's name, status, last figures, and flat config."""
    steps, events = run.metrics(), run.events()
    last: dict[str, Any] = {}
    for row in steps[-200:]:  # Not each step reports all of them.
        last.update(row)
    began = next((event["time"] for event in events if event["kind"] == "begun"), None)
    until = max([0.0, *(row.get("time", 0.0) for row in [*steps[-1:], *events[-1:]])])
    return {
        "name": run.name,
        "recipe": run.recipe,
        "status": run.status,
        "step": last.get("step", 0),
        "num_steps": last.get("num_steps", 0),
        "began": began,
        "seconds": max(0.0, until - began) if began else None,
        "num_edits": sum(event["kind"] == "generation" for event in events),
        "config": {
            key: value if is_number(value) else _in_words(value)
            for key, value in flat_config(run.config_text).items()
        },
        "values": {
            name: value
            for name, value in last.items()
            if is_number(value) and name not in _NO_FIGURES
        },
    }


def _in_words(value: Any) -> str:
    is_of_words = isinstance(value, list) and all(isinstance(word, str) for word in value)
    return shlex.join(value) if is_of_words else str(value)


def log_lines(run: RunFolder) -> dict[str, list[str]]:
    """Return the last lines of each rank's log, by the name of its file."""
    lines_by_name: dict[str, list[str]] = {}
    for path in sorted((run.path / "logs").glob("*.log")):
        try:
            with open_kept(path, run.path) as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - _MOST_LOG_BYTES))
                text = file.read().decode(errors="replace")
        except OSError:
            continue  # It was removed, or leads to a file that is not the run's.
        lines_by_name[path.stem] = text.splitlines()[-_MOST_LINES:]
    return lines_by_name


class _Newest(Generic[T]):
    """A cache that keeps the entries that were used last, up to a number."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._entries: OrderedDict[Any, T] = OrderedDict()

    def get(self, key: Any, make: Callable[[], T]) -> T:
        if key not in self._entries:
            self._entries[key] = make()
        self._entries.move_to_end(key)
        while len(self._entries) > self._most:
            self._entries.popitem(last=False)
        return self._entries[key]


class RunViews:
    """Data of runs for pages that ask again and again: files are not read twice.

    It keeps the steps and the last lines of the few runs that were asked for last. Any thread may
    call it.
    """

    def __init__(self, locate: Locate) -> None:
        self._locate = locate
        self._steps: _Newest[_Steps] = _Newest(_MOST_KEPT)
        self._tails: _Newest[_LogTail] = _Newest(_MOST_KEPT)
        self._summaries: _Newest[dict[str, Any]] = _Newest(2 * _MOST_RUNS)
        self._lock = Lock()

    def data(self, run: RunFolder, known_events: int) -> dict[str, Any]:
        """Return the data of a run, as `run_data` does.

        The list of events is omitted if the run has exactly ``known_events`` of them.
        """
        with self._lock:
            steps = self._steps.get(run.path, lambda: _Steps(run))
            return run_data(run, self._locate, steps=steps.all(), known_events=known_events)

    def log(self, run: RunFolder, ranks: frozenset[int], after: int) -> dict[str, Any]:
        """Return the lines of ``ranks`` after line number ``after``; no ranks are all ranks.

        ``lines`` has the lines, ``next`` the number to ask with next, ``names`` the names of the
        logs.
        """
        with self._lock:
            tail = self._tails.get((run.path, ranks), lambda: _LogTail(run, ranks))
            lines, number = tail.since(after)
            return {"lines": lines, "next": number, "names": tail.names()}

    def summaries(self, runs: Sequence[RunFolder]) -> list[dict[str, Any]]:
        """Return the summaries of the last runs, newest first.

        Files that have not changed since the last call are not read again.
        """
        with self._lock:
            return [self._summary(run) for run in reversed(runs[-_MOST_RUNS:])]

    def _summary(self, run: RunFolder) -> dict[str, Any]:
        key = run.path, _stamp(run.path / METRICS), _stamp(run.path / EVENTS)
        summary = self._summaries.get(key, lambda: run_summary(run))
        if summary["status"] in ("running", "held"):
            summary["status"] = run.status  # No file shows that it was killed.
        return summary


def _stamp(path: Path) -> tuple[int, int]:
    try:
        stat = path.stat()
    except OSError:
        return 0, 0
    return stat.st_mtime_ns, stat.st_size


class _Steps:
    def __init__(self, run: RunFolder) -> None:
        self._tail = RowTail(run.path / METRICS)
        self._steps: list[dict[str, Any]] = []

    def all(self) -> list[dict[str, Any]]:
        rows, is_new = self._tail.take()
        self._steps = steps_of(rows, [] if is_new else self._steps)
        return self._steps


class _LogTail:
    """The last lines of a run's logs, in the order in which they were seen."""

    def __init__(self, run: RunFolder, ranks: frozenset[int]) -> None:
        self._run = run
        self._printed = PrintedLines(run.path / "logs", ranks, last_bytes=_MOST_TAIL_BYTES)
        self._lines: deque[Line] = deque(maxlen=_MOST_TAIL_LINES)
        self._number = 0  # of all lines so far

    def names(self) -> list[str]:
        return self._printed.names()

    def since(self, number: int) -> tuple[list[Line], int]:
        is_over = self._run.running_pid is None
        for line in self._printed.take(is_over=is_over):
            self._lines.append(line._replace(text=line.text[: _MOST_LINES * 10]))
            self._number += 1
        # A number from before this server was started means nothing here.
        num_new = self._number - number if 0 <= number <= self._number else self._number
        num_new = min(num_new, len(self._lines))
        return list(self._lines)[len(self._lines) - num_new :], self._number
