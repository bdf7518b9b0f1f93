"""Rows of text in columns, as wide as their terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence

_BETWEEN = "  "


def terminal_width() -> int | None:
    """Return the terminal's columns; ``None`` if the output is no terminal, so lines may be
    long."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def in_columns(rows: Sequence[Sequence[str]], width: int | None = None) -> Iterator[str]:
    """Yield lines; columns beyond ``width`` follow below, with the first column repeated."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    first, *hidden = range(len(widths))
    while True:
        shown, room = [first], (width or sys.maxsize) - widths[first]
        while hidden and (len(shown) == 1 or room >= widths[hidden[0]] + len(_BETWEEN)):
            room -= widths[hidden[0]] + len(_BETWEEN)
            shown.append(hidden.pop(0))
        for row in rows:
            yield _BETWEEN.join(row[index].ljust(widths[index]) for index in shown).rstrip()
        if not hidden:
            return
        yield ""
