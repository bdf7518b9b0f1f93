"""``monarch runs logs``: what the ranks of a run print."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from monarch.cli.terminal import Terminal
from monarch.errors import JobError
from monarch.runs.folder import RunFolder, find_run
from monarch.runs.logs import Line, PrintedLines

_LOOK_SECONDS = 0.2
_COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "bright_cyan", "bright_yellow")


def logs(name: str, follow: bool, ranks: tuple[int, ...], tail: int | None) -> None:
    """Print what the ranks of a run printed; ``tail`` counts lines of each rank."""
    run = find_run(name)
    printed = PrintedLines(run.path / "logs", ranks)
    shown = _Shown(is_of_one=len(ranks) == 1)
    try:
        is_over = not (follow and _goes_on(run))
        shown.tell(_last(printed.take(is_over=is_over), tail))
        if is_over and not printed.names():
            of = f" by rank {', '.join(map(str, ranks))}" if ranks else ""
            raise JobError(f"nothing was printed{of} in {run.path}")
        while not is_over:
            time.sleep(_LOOK_SECONDS)
            is_over = not _goes_on(run)
            shown.tell(printed.take(is_over=is_over))
    except KeyboardInterrupt:
        sys.exit(130)  # That is how one stops to follow; there is nothing to tell of it.


def _goes_on(run: RunFolder) -> bool:
    return run.running_pid is not None


def _last(lines: Sequence[Line], num: int | None) -> list[Line]:
    """The last so many of each rank."""
    if num is None:
        return list(lines)
    kept: dict[str, list[Line]] = {}
    for line in lines:
        kept.setdefault(line.who, []).append(line)
    return [line for found in kept.values() for line in found[len(found) - min(num, len(found)) :]]


class _Shown:
    """Lines on their way out, each rank with a colour of its own where there are any."""

    def __init__(self, *, is_of_one: bool) -> None:
        self._is_of_one = is_of_one
        self._terminal = Terminal()
        self._colours: dict[str, str] = {}

    def tell(self, lines: Sequence[Line]) -> None:
        for who, text in lines:
            colour = self._colours.setdefault(who, _COLOURS[len(self._colours) % len(_COLOURS)])
            self._terminal.line("" if self._is_of_one else f"{who} | ", colour, end="")
            # What goes into a file or a pipe is what was printed.
            self._terminal.line(text, is_exact=self._terminal.width is None)
