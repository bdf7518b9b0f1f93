"""The displays of a run: a live table in a terminal, plain lines everywhere else."""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import TaskID
from rich.table import Table

from monarch.cli.terminal.phases import spinner
from monarch.cli.terminal.volume import is_quiet, is_verbose
from monarch.runs import Display
from monarch.runs.recover.clock import is_held
from monarch_sync.words import plain

_LINE_EVERY = 20
_BAR_WIDTH = 12
_PACE_STEPS = 100
_PACE_TIMES = 5.0
_SHORT = {
    "accuracy": "acc", "held_out_accuracy": "held-out acc", "samples_per_second": "samples/s",
    "tokens_per_second": "tok/s", "learning_rate": "lr", "grad_norm": "grad",
    "validation_loss": "val loss", "rank_skew_seconds": "skew s",
}  # fmt: skip
_HELD_OUT = ("held_out_", "validation_")
# Metrics of every recipe: shown after the user's own, if there is room.
_OF_ALL = (
    "samples_per_second", "tokens_per_second", "participants", "learning_rate", "grad_norm",
    "rank_skew_seconds",
)  # fmt: skip
_HIDDEN = ("generation",)
_HELD = "a call is held, and time limits are paused: `monarch debug` opens it"


class Pace:
    """How long steps take, judged by the last steps. A step that took much longer than most,
    because it held, compiled or was debugged, is ignored.
    """

    def __init__(self) -> None:
        self._last: tuple[int, float] | None = None
        self._seconds: deque[float] = deque(maxlen=_PACE_STEPS)

    def made(self, step: int, time: float) -> None:
        """Note that a step was made, at this time of a clock that never stops."""
        if self._last is not None and step == self._last[0]:
            return  # It has more to report.
        if self._last is not None and step > self._last[0]:
            self._seconds.append((time - self._last[1]) / (step - self._last[0]))
        self._last = step, time

    def left(self, num_steps: int) -> str:
        """Return the time until step ``num_steps``, as ``1:23:45``; ``-`` if it is not known."""
        if self._last is None or not self._seconds or num_steps <= 0:
            return "-"
        most = _PACE_TIMES * statistics.median(self._seconds)
        usual = [seconds for seconds in self._seconds if seconds <= most]
        return _as_clock(statistics.fmean(usual) * max(0, num_steps - self._last[0]))


class LiveDisplay:
    """A table of the latest figures at the bottom; messages scroll by above it.

    It fits its terminal, and has no colours if NO_COLOR is set. ``renderable`` is for a
    ``rich.live.Live`` on the same console. ``is_held`` says whether a call waits in the debugger.
    """

    only_shows = True

    def __init__(self, console: Console, is_held: Callable[[], bool] = lambda: False) -> None:
        self._console = console
        self._is_held = is_held
        #: The last value of each metric.
        self._latest: dict[str, float] = {}
        #: The widest that each column was.
        self._widths: dict[str, int] = {}
        self._pace = Pace()
        #: Name and text of each column, in three groups from left to right.
        self._progress: list[tuple[str, str]] = []
        self._saved: list[tuple[str, str]] = []
        self._numbers: list[tuple[str, str]] = []
        self._spinner = spinner(console)
        #: The spinner's task; ``None`` if there is none.
        self._phase: TaskID | None = None
        #: Guards the columns and the phase: another thread draws them.
        self._lock = threading.Lock()

    def message(self, text: str) -> None:
        self._console.print(plain(text), highlight=False, markup=False)

    def alarm(self, text: str) -> None:
        self._console.print(plain(text), style="red", highlight=False, markup=False)

    def phase(self, text: str) -> None:
        with self._lock:
            self._end_phase()
            if text:
                self._phase = self._spinner.add_task(text, total=None)

    def saved(self, step: int) -> None:
        with self._lock:
            self._saved = [("saved", str(step))]

    def metrics(self, step: int, num_steps: int, values: Mapping[str, float]) -> None:
        now = time.monotonic()
        self._pace.made(step, now)
        self._latest.update(values)
        bar = bar_of(step, num_steps)
        time_left = self._pace.left(num_steps)
        with self._lock:
            self._progress = [("step", bar), ("left", time_left)]
            self._numbers = cells_of(self._latest)
            self._end_phase()

    def renderable(self) -> RenderableType:
        """Return what is at the bottom of the terminal.

        It is the table, and below it a spinner while a phase lasts, or the note that a call is
        held.
        """
        with self._lock:
            row = [*self._progress, *self._saved, *self._numbers] if self._progress else []
            is_waiting = self._phase is not None
        parts: list[RenderableType] = [self._table(row)] if row else []
        if self._is_held():
            return Group(*parts, _HELD)
        return Group(*parts, self._spinner) if is_waiting else Group(*parts)

    def _table(self, row: Sequence[tuple[str, str]]) -> Table:
        table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
        cells: list[str] = []
        room = self._console.width - 2
        for name, value in row:
            # A column never shrinks, or all columns after it would move with each number.
            width = max(len(name), len(value), self._widths.get(name, 0))
            self._widths[name] = width
            room -= width + 3
            if room < 0:
                break  # The most wanted come first.
            table.add_column(
                name, justify="right" if cells else "left", no_wrap=True, min_width=width
            )
            cells.append(value)
        table.add_row(*cells)
        return table

    def _end_phase(self) -> None:
        task, self._phase = self._phase, None
        if task is not None:
            self._spinner.remove_task(task)


class PlainDisplay:
    """Prints a line for each message, and for every ``line_every``-th step.

    The line of a step also has the step of the last checkpoint.
    """

    only_shows = True

    def __init__(self, line_every: int = _LINE_EVERY) -> None:
        self._line_every = line_every
        self._saved = ""

    def phase(self, text: str) -> None:
        """Show nothing: a printed line could not be removed at the phase's end."""

    def saved(self, step: int) -> None:
        self._saved = f"  saved {step}"

    def message(self, text: str) -> None:
        # In one write: another thread may print at the same moment.
        sys.stdout.write(f"{plain(text)}\n")
        sys.stdout.flush()

    def alarm(self, text: str) -> None:
        self.message(text)

    def metrics(self, step: int, num_steps: int, values: Mapping[str, float]) -> None:
        if step % self._line_every == 0 or step == num_steps:
            numbers = "  ".join(f"{name} {value}" for name, value in cells_of(values))
            total = f"/{num_steps}" if num_steps > 0 else ""
            self.message(f"step {step}{total}  {numbers}{self._saved}".rstrip())


class QuietDisplay(Display):
    """Shows failures, and nothing else."""

    only_shows = True

    def message(self, text: str) -> None: ...

    def alarm(self, text: str) -> None:
        click.secho(plain(text), fg="red", err=True)

    def phase(self, text: str) -> None: ...

    def saved(self, step: int) -> None: ...

    def metrics(self, step: int, num_steps: int, values: Mapping[str, float]) -> None: ...


def cells_of(values: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return name and number of the main metrics, in few characters each: the loss first, then the
    user's own metrics and those of held-out samples.
    """
    names = [name for name in values if name not in _HIDDEN]
    names.sort(key=lambda name: (name != "loss", name in _OF_ALL, name.startswith(_HELD_OUT)))
    return [
        (_SHORT.get(name, name.replace("held_out_", "held-out ")), _short(values[name]))
        for name in names
    ]


def bar_of(step: int, num_steps: int) -> str:
    """Return the progress as a bar and numbers; without a bar if the number of steps is unknown."""
    if num_steps <= 0:
        return str(step)
    num_full = min(_BAR_WIDTH, round(_BAR_WIDTH * step / max(1, num_steps)))
    return (
        f"{'━' * num_full}{'╌' * (_BAR_WIDTH - num_full)} {step:>{len(str(num_steps))}}/{num_steps}"
    )


def _short(value: float) -> str:
    if abs(value) >= 1000:
        return f"{value:.0f}"
    return f"{value:.1e}" if 0 < abs(value) < 0.001 else f"{value:.3g}"


def _as_clock(seconds_left: float) -> str:
    minutes, seconds = divmod(round(seconds_left), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


@contextmanager
def run_display() -> Iterator[Display]:
    """Yield the display that suits this command's output."""
    console = Console()
    if is_quiet():
        yield QuietDisplay()
        return
    if is_verbose():
        yield PlainDisplay(line_every=1)
        return
    if not sys.stdout.isatty() or console.is_dumb_terminal:
        yield PlainDisplay()
        return
    display = LiveDisplay(console, is_held)
    with Live(console=console, refresh_per_second=8, get_renderable=display.renderable):
        try:
            yield display
        finally:
            display.phase("")
