"""The table of held calls, drawn as upstream's console does."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence

from monarch.core.rank_sets import coordinates
from monarch.wire.hold import HoldNote

_HEADERS = ["Actor Name", "Rank", "Coords", "Hostname", "Function", "Line No."]
_LESS_NEEDED = ("Hostname", "Coords")  # The first of these gives way first.


def holds_table(holds: Sequence[HoldNote], width: int | None = None) -> str:
    """Return a table of held calls, with fewer columns if they do not fit into ``width``."""
    rows = [
        [
            hold.actor,
            str(hold.rank),
            str(coordinates(hold.rank, hold.labels, hold.sizes)),
            hold.host or socket.gethostname(),
            _function(hold),
            str(hold.line),
        ]
        for hold in holds
    ]
    headers, table = _HEADERS, grid(_HEADERS, rows)
    for name in _LESS_NEEDED:
        if width is None or table.index("\n") <= width:
            break
        index = headers.index(name)
        headers = headers[:index] + headers[index + 1 :]
        rows = [row[:index] + row[index + 1 :] for row in rows]
        table = grid(headers, rows)
    return table


_CELL = re.compile(r"/ipykernel_\d+/\d+\.py$")


def _function(hold: HoldNote) -> str:
    stem = hold.file.rpartition("/")[2].removesuffix(".py")
    if _CELL.search(hold.file):
        stem = "cell"  # The file's name is a number that nobody has seen.
    return f"{stem}.{hold.function.rpartition('.')[2]}"


def grid(headers: list[str], rows: list[list[str]]) -> str:
    """Return a table with lines of ``+--+``; numbers are aligned right."""
    widths = [max(len(row[i]) for row in [headers, *rows]) for i in range(len(headers))]
    numeric = [bool(rows) and all(row[i].isdigit() for row in rows) for i in range(len(headers))]

    def line(cells: list[str]) -> str:
        padded = [
            cell.rjust(width) if is_number else cell.ljust(width)
            for cell, width, is_number in zip(cells, widths, numeric, strict=True)
        ]
        return "| " + " | ".join(padded) + " |"

    rule = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    head = rule.replace("-", "=")
    parts = [rule, line(headers), head if rows else rule]
    for row in rows:
        parts += [line(row), rule]
    return "\n".join(parts) + "\n"
