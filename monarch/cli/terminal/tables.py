"""Rows of text in columns, as wide as their terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence

import click

from monarch_sync.words import num_cells

_BETWEEN = "  "


def terminal_width() -> int | None:
    """Return the terminal's columns; ``None`` if the output is no terminal, so lines may be
    long."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def echo_columns(rows: Sequence[Sequence[str]]) -> None:
    """Print rows in columns, as wide as the terminal."""
    for line in in_columns(rows, terminal_width()):
        click.echo(line)


def in_columns(rows: Sequence[Sequence[str]], width: int | None = None) -> Iterator[str]:
    """Yield lines; columns beyond ``width`` follow below, with the first column repeated."""
    if not rows:
        return
    widths = [max(map(num_cells, column)) for column in zip(*rows, strict=True)]
    first, *hidden = range(len(widths))
    while True:
        shown, room = [first], (width or sys.maxsize) - widths[first]
        while hidden and (len(shown) == 1 or room >= widths[hidden[0]] + len(_BETWEEN)):
            room -= widths[hidden[0]] + len(_BETWEEN)
            shown.append(hidden.pop(0))
        for row in rows:
            cells = (row[at] + " " * (widths[at] - num_cells(row[at])) for at in shown)
            yield _BETWEEN.join(cells).rstrip()
        if not hidden:
            return
        yield ""
