"""Rows of calls as lines of CSV, which DuckDB reads several times as fast as objects.

There are a row or two for each call, and next to nothing else where there are many. A list in JSON
is a line of CSV already, but for its brackets, as long as nothing in it is escaped.
"""

from __future__ import annotations

from typing import Any

import msgspec

from monarch.core.event_ring import CALL, COLUMNS, SENT, SPAN

CALL_KINDS = (CALL, SENT, SPAN)


def call_columns(kind: str) -> tuple[str, ...]:
    """What stands in a line, in this order."""
    return ("p", "k", *COLUMNS[kind])


def split_rows(proc: str, rows: list[list[Any]]) -> tuple[dict[str, bytes], list[list[Any]]]:
    """Of the process ``proc``: lines by kind, and the rows that are not of calls, or that CSV would
    tell differently."""
    found: dict[str, list[list[Any]]] = {kind: [] for kind in CALL_KINDS}
    others: list[list[Any]] = []
    for row in rows:
        found.get(row[0], others).append(row)
    lines = {}
    for kind, calls in found.items():
        data = _lines(proc, kind, calls)
        if data is None:
            others += calls
        elif data:
            lines[kind] = data
    return lines, others


def _lines(proc: str, kind: str, rows: list[list[Any]]) -> bytes | None:
    width = len(COLUMNS[kind]) + 1
    if any(len(row) != width for row in rows):
        return None  # Of another version.
    try:
        begins = msgspec.json.encode(proc) + b","
        data = msgspec.json.Encoder().encode_lines(rows)
    except UnicodeEncodeError:
        return None
    if b"\\" in data or b"\\" in begins:
        return None
    # A bracket before the kind, and one before the end of a line, are never inside of a text.
    name = msgspec.json.encode(kind)
    return data.replace(b"[" + name, begins + name).replace(b"]\n", b"\n")
