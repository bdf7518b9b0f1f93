"""What a run shows: a live table in a terminal, plain lines everywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.table import Table

from monarch.runs import Display

__all__ = ["LiveDisplay", "PlainDisplay", "cells_of", "run_display"]

_LINE_EVERY = 20
_BAR_WIDTH = 12
_SHORT = {
    "accuracy": "acc", "held_out_accuracy": "held-out", "samples_per_second": "samples/s",
    "tokens_per_second": "tok/s", "learning_rate": "lr", "grad_norm": "grad",
    "validation_loss": "val loss", "rank_skew_seconds": "skew s",
}  # fmt: skip
_WANTED = (*_SHORT, "loss", "participants")
_HIDDEN = ("generation",)


class LiveDisplay:
    """A table of the latest numbers at the bottom; what happens scrolls by above it.

    Fits 80 columns, and has no colours where NO_COLOR is set.
    """

    def __init__(self, live: Live) -> None:
        self._live = live
        self._latest: dict[str, float] = {}
        self._began: tuple[int, float] | None = None

    def message(self, text: str) -> None:
        self._live.console.print(text, highlight=False, markup=False)

    def metrics(self, step: int, num_steps: int, values: Mapping[str, float]) -> None:
        now = time.monotonic()
        if self._began is None or step < self._began[0]:
            self._began = step, now
        self._latest.update(values)
        done = round(_BAR_WIDTH * step / max(1, num_steps))
        bar = f"{'━' * done}{'╌' * (_BAR_WIDTH - done)} {step}/{num_steps}"
        left = _time_left(self._began, step, num_steps, now)
        cells = [("step", bar), ("left", left), *cells_of(self._latest)]
        table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
        row: list[str] = []
        room = self._live.console.width - 2
        for name, value in cells:
            room -= max(len(name), len(value)) + 3
            if room < 0:
                break  # The most wanted come first.
            table.add_column(name, justify="right" if row else "left", no_wrap=True)
            row.append(value)
        table.add_row(*row)
        self._live.update(table)


class PlainDisplay:
    """A line for every message, and for every 20th step."""

    def message(self, text: str) -> None:
        # In one piece: another thread may have something to tell in this moment, too.
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    def metrics(self, step: int, num_steps: int, values: Mapping[str, float]) -> None:
        if step % _LINE_EVERY == 0 or step == num_steps:
            numbers = "  ".join(f"{name} {value}" for name, value in cells_of(values))
            self.message(f"step {step}/{num_steps}  {numbers}")


def cells_of(values: Mapping[str, float]) -> list[tuple[str, str]]:
    """Name and number of what is worth a look, the loss first, in few characters each."""
    names = [name for name in values if name not in _HIDDEN]
    names.sort(key=lambda name: (name != "loss", name not in _WANTED))
    return [(_SHORT.get(name, name), _short(values[name])) for name in names]


def _short(value: float) -> str:
    if abs(value) >= 1000:
        return f"{value:.0f}"
    return f"{value:.1e}" if 0 < abs(value) < 0.001 else f"{value:.3g}"


def _time_left(began: tuple[int, float], step: int, num_steps: int, now: float) -> str:
    first, when = began
    if step <= first:
        return "-"
    seconds = round((now - when) / (step - first) * (num_steps - step))
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


@contextmanager
def run_display() -> Iterator[Display]:
    """The display that suits where we print to."""
    if not sys.stdout.isatty():
        yield PlainDisplay()
        return
    with Live(console=Console(), refresh_per_second=8) as live:
        yield LiveDisplay(live)
