"""Views of runs: their figures, events and logs, read from their folders."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from monarch.observe.kept_files import open_kept
from monarch.runs.folder import RunFolder

_MOST_POINTS = 600
_MOST_EVENTS = 200
_MOST_LINES = 400
_MOST_LOG_BYTES = 65_536


def run_summary(run: RunFolder) -> dict[str, Any]:
    """Name, status and last figures."""
    steps = run.metrics()
    last = steps[-1] if steps else {}
    return {
        "name": run.name,
        "status": run.status,
        "step": last.get("step", 0),
        "num_steps": last.get("num_steps", 0),
        "values": {
            name: value
            for name, value in last.items()
            if isinstance(value, int | float) and name not in ("step", "num_steps", "time")
        },
    }


def run_curves(run: RunFolder) -> dict[str, Any]:
    """Each metric over the steps, thinned to what a page can show, with its events."""
    steps = run.metrics()
    every = max(1, len(steps) // _MOST_POINTS)
    shown = [row for at, row in enumerate(steps) if at % every == 0 or at == len(steps) - 1]
    names = sorted(
        {
            name
            for row in shown
            for name, value in row.items()
            if isinstance(value, int | float) and name not in ("step", "num_steps", "time")
        }
    )
    return {
        "name": run.name,
        "steps": [row["step"] for row in shown],
        "times": [row.get("time") for row in shown],
        "curves": {name: [_number(row.get(name)) for row in shown] for name in names},
        "events": [
            {"time": event.get("time"), "kind": event.get("kind"), "text": event.get("text"),
             "step": event.get("step")}
            for event in run.events()[-_MOST_EVENTS:]
        ],
    }  # fmt: skip


def _number(value: Any) -> float | None:
    """The number as JSON and a curve can hold it: no NaN."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def log_lines(run: RunFolder, rank: int | None = None) -> dict[str, list[str]]:
    """The last lines of each rank's log, or of one rank's."""
    found: dict[str, list[str]] = {}
    for path in sorted((run.path / "logs").glob("*.log")):
        if rank is None or path.stem == f"rank{rank}":
            try:
                with open_kept(path, run.path) as file:
                    file.seek(0, 2)
                    size = file.tell()
                    file.seek(max(0, size - _MOST_LOG_BYTES))
                    text = file.read().decode(errors="replace")
            except OSError:
                continue  # It was taken away, or is none of the run's.
            found[path.stem] = text.splitlines()[-_MOST_LINES:]
    return found


def summaries(runs: Sequence[RunFolder], most: int = 30) -> list[dict[str, Any]]:
    """The summaries of the last runs, the newest first."""
    return [run_summary(run) for run in reversed(runs[-most:])]
