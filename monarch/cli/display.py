"""What a run shows: a live line in a terminal, plain lines everywhere else."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

__all__ = ["RunDisplay", "run_display"]

_LINE_EVERY = 20


class RunDisplay(Protocol):
    """What a recipe reports to."""

    def message(self, text: str) -> None: ...

    def metrics(self, step: int, num_steps: int, values: Mapping[str, float]) -> None: ...


class LiveDisplay:
    """A progress bar with the latest numbers; messages scroll by above it."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=None, numbers="")
        self._latest: dict[str, float] = {}

    def message(self, text: str) -> None:
        self._progress.console.print(text, highlight=False, markup=False)

    def metrics(self, step: int, num_steps: int, values: Mapping[str, float]) -> None:
        generation = self._latest.get("generation")
        self._latest.update(values)
        now = self._latest.get("generation")
        if now != generation and generation is not None:
            self.message(f"generation {now:.0f} from step {step}")
        shown = [
            name for name in ("loss", "accuracy", "samples_per_second") if name in self._latest
        ]
        self._progress.update(
            self._task,
            completed=step,
            total=num_steps,
            description=f"step {step}/{num_steps}",
            numbers="  ".join(f"{_short(name)} {self._latest[name]:.3g}" for name in shown),
        )


class PlainDisplay:
    """A line for every message, for every 20th step, and for every change of generation."""

    def __init__(self) -> None:
        self._generation: float | None = None

    def message(self, text: str) -> None:
        print(text, flush=True)

    def metrics(self, step: int, num_steps: int, values: Mapping[str, float]) -> None:
        generation = values.get("generation", self._generation)
        if generation != self._generation and self._generation is not None:
            self.message(f"generation {generation:.0f} from step {step}")
        self._generation = generation
        if step % _LINE_EVERY == 0 or step == num_steps:
            numbers = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
            self.message(f"step {step}/{num_steps}  {numbers}")


def _short(name: str) -> str:
    return {"accuracy": "acc", "samples_per_second": "samples/s"}.get(name, name)


@contextmanager
def run_display() -> Iterator[RunDisplay]:
    """The display that suits where we print to."""
    if not sys.stdout.isatty():
        yield PlainDisplay()
        return
    console = Console()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=16),
        TextColumn("{task.fields[numbers]}"),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=console) as progress:
        yield LiveDisplay(progress)
