"""What a run writes down while it goes on, and what it is told."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from monarch.runs.live_config import LiveConfig

__all__ = ["EVENTS", "METRICS", "Display", "Record"]

METRICS = "metrics.jsonl"
EVENTS = "events.jsonl"

C = TypeVar("C")


class Display(Protocol):
    """Shows a run to a person. Called on the client, between two steps."""

    def message(self, text: str) -> None:
        """Something happened that is worth a line."""

    def metrics(self, step: int, num_steps: int, values: Mapping[str, float]) -> None:
        """The numbers of a step. Steps count from 1; one step may report more than once."""


class Record:
    """A run's folder, as a recipe sees it: every recipe gets one, beside its config.

    ``folder`` holds ``metrics.jsonl``, ``events.jsonl`` and ``checkpoints/``. Metrics and events
    are data first; ``display`` shows them. ``procs_per_host`` is for recipes that spawn their own
    procs. May be used from any thread.
    """

    def __init__(self, folder: Path | str, display: Display, *, procs_per_host: int = 1) -> None:
        self.folder = Path(folder)
        self.procs_per_host = procs_per_host
        self.display = display
        self.config_file: LiveConfig[Any] | None = None
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.checkpoint_dir.mkdir(parents=True, exist_ok=True)

    @property
    def checkpoint_dir(self) -> Path:
        """Where the recipe keeps its checkpoints."""
        return self.folder / "checkpoints"

    @property
    def is_stopping(self) -> bool:
        """Whether the recipe should save a checkpoint and return; look between two steps."""
        return self._stop.is_set()

    def stop(self) -> None:
        """Ask the recipe to save and return."""
        self._stop.set()

    def message(self, text: str) -> None:
        """Something happened that is worth a line."""
        self.display.message(text)

    def metrics(self, step: int, num_steps: int, values: Mapping[str, float]) -> None:
        """The numbers of a step. Steps count from 1; one step may report more than once."""
        self._append(METRICS, {"step": step, "time": time.time(), **values})
        self.display.metrics(step, num_steps, values)

    def event(self, kind: str, text: str, **data: Any) -> None:
        """Something that a later reader of the run wants to know: a death, a heal, new code.

        ``kind`` is one word (``died``, ``respawned``, ``healed``, ``saved``, ``resumed``,
        ``generation``, ``config``, ``chaos``); ``data`` is what JSON can hold.
        """
        self.note(kind, text, **data)
        self.display.message(text)

    def note(self, kind: str, text: str, **data: Any) -> None:
        """An event that is written down and not shown."""
        self._append(EVENTS, {"time": time.time(), "kind": kind, "text": text, **data})

    def live(self, config: C) -> C:
        """``config``, with what was changed in its file since and may change while it runs.

        Call it between two steps. What was changed, and what needs a restart, becomes an event.
        """
        if self.config_file is None:
            return config
        change = self.config_file.poll()
        if change is not None:
            self.event("config", change.text, **change.data())
        now: C = self.config_file.config
        return now

    def _append(self, name: str, row: Mapping[str, Any]) -> None:
        # One write a line, so that a reader never sees half of one, and a kill leaves whole lines.
        with self._lock, open(self.folder / name, "a", encoding="utf-8") as file:
            file.write(json.dumps(row, default=str) + "\n")
