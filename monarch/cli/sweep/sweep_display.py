"""The display of a sweep: lines for events of its runs; on a terminal, each run's progress
below."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from monarch.cli.run.display import bar_of, cells_of
from monarch.cli.terminal.volume import is_quiet
from monarch.runs import Display
from monarch_sync.words import plain

_NUM_CELLS = 3  # numbers of each run that is going on


class SweepDisplay:
    """The display of ``num_runs`` runs, each with a display of its own that carries its label."""

    def __init__(self, num_runs: int, console: Console) -> None:
        self.num_runs = num_runs
        self._console = console
        self._progress: dict[str, tuple[str, str]] = {}
        self._num_over = 0
        self._lock = threading.Lock()
        self._telling = threading.Lock()

    def of(self, label: str) -> Display:
        return _OfRun(self, label)

    def begun(self, label: str) -> None:
        with self._lock:
            self._progress[label] = "", ""

    def step(self, label: str, step: int, num_steps: int, values: Mapping[str, float]) -> None:
        numbers = "  ".join(f"{name} {value}" for name, value in cells_of(values)[:_NUM_CELLS])
        with self._lock:
            self._progress[label] = bar_of(step, num_steps), numbers

    def ended(self, label: str, status: str) -> None:
        """Note that a run has ended, in any way."""
        # Not the other lock: printing redraws the display, which takes that one.
        with self._telling:
            with self._lock:
                self._progress.pop(label, None)
                self._num_over += 1
                over = self._num_over
            self.tell(f"[{label}] {status}: {over} of {self.num_runs}")

    def tell(self, text: str, style: str = "") -> None:
        if not is_quiet() or style:
            # Lines are cut only on a terminal.
            soft = not self._console.is_terminal
            self._console.print(
                plain(text), style=style, highlight=False, markup=False, soft_wrap=soft
            )

    def renderable(self) -> RenderableType:
        """Return the progress of the current runs, and how many have ended."""
        table = Table.grid(padding=(0, 2))
        with self._lock:
            for label, (bar, numbers) in self._progress.items():
                table.add_row(Text(label), bar, Text(numbers, overflow="ellipsis", no_wrap=True))
            over = f"{self._num_over} of {self.num_runs} runs are over"
        return Group("", table, Text(over, style="dim"))


class _OfRun(Display):
    """Shows one run among several: its messages, and its end."""

    def __init__(self, display: SweepDisplay, label: str) -> None:
        self._display = display
        self._label = label

    def message(self, text: str) -> None:
        self._display.tell(f"[{self._label}] {text}")

    def alarm(self, text: str) -> None:
        self._display.tell(f"[{self._label}] {text}", "red")

    def phase(self, text: str) -> None:
        """Show nothing: there is no room for the phases of several runs."""

    def saved(self, step: int) -> None:
        """Show nothing: there is no room for the checkpoints of several runs."""

    def metrics(self, step: int, num_steps: int, values: Mapping[str, float]) -> None:
        self._display.step(self._label, step, num_steps, values)
        if step == num_steps:
            numbers = "  ".join(f"{name} {value}" for name, value in cells_of(values))
            self.message(f"step {step}/{num_steps}  {numbers}")


@contextmanager
def sweep_display(num_runs: int) -> Iterator[SweepDisplay]:
    """Yield the display that suits this command's output."""
    console = Console()
    display = SweepDisplay(num_runs, console)
    if is_quiet() or not sys.stdout.isatty() or console.is_dumb_terminal:
        yield display
        return
    live = Live(
        console=console, refresh_per_second=8, get_renderable=display.renderable, transient=True
    )
    with live:
        yield display
