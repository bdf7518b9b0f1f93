"""A spinner, with a text and seconds, while a command has nothing else to show."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from monarch.cli.terminal.volume import is_quiet
from monarch.job.waiting import shown_elsewhere


@contextmanager
def phase(text: str) -> Iterator[Callable[[str], None]]:
    """Within, show a spinner with the text, on a terminal only; yield a function that changes the
    text.

    It is on standard error, since a command's output may be piped.
    """
    console = Console(stderr=True)
    if is_quiet() or not console.is_terminal or console.is_dumb_terminal or not sys.stdout.isatty():
        yield lambda words: None
        return
    with shown_elsewhere(), spinner(console) as progress:
        task = progress.add_task(text, total=None)
        yield lambda words: progress.update(task, description=words)


def spinner(console: Console) -> Progress:
    """Return a display with a line for each task: a spinner, the text, the time since it was
    added."""
    words = TextColumn("{task.description}", markup=False)
    return Progress(
        SpinnerColumn(), words, TimeElapsedColumn(), console=console, transient=True, expand=False
    )
