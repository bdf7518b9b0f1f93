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
    first, *rest = range(len(widths))
    while True:
        shown, room = [first], (width or sys.maxsize) - widths[first]
        while rest and (len(shown) == 1 or room >= widths[rest[0]] + len(_BETWEEN)):
            room -= widths[rest[0]] + len(_BETWEEN)
            shown.append(rest.pop(0))
        for row in rows:
            yield _BETWEEN.join(row[at].ljust(widths[at]) for at in shown).rstrip()
        if not rest:
            return
        yield ""
