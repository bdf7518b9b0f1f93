"""Reads JSON lines as runs write them, and writes JSON for pages and programs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from monarch.observe.kept_files import read_kept

_MOST_DIGITS = 20
_MOST_SECONDS = 1e11


def json_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file. A line that a full disk or a crash cut short is left out."""
    try:
        return rows_in(read_kept(path))
    except OSError:
        return []


def rows_in(data: bytes) -> list[dict[str, Any]]:
    """Return the rows in the content of a file of JSON lines, or in a part of it.

    Lines that are no JSON object are left out.
    """
    rows = []
    for line in data.decode("utf-8", "replace").splitlines():
        row = parsed_json(line)
        if isinstance(row, dict):
            if "time" in row and not _is_time(row["time"]):
                row["time"] = 0.0
            rows.append(row)
    return rows


def parsed_json(text: str | bytes) -> Any:
    """Parse JSON; return ``None`` for invalid text.

    An integer of more than 63 bits becomes a float, since the sum of a float and a very large
    integer is an error in Python.
    """
    try:
        return json.loads(text, parse_int=_as_number)
    except (ValueError, RecursionError):
        return None


def _as_number(digits: str) -> int | float:
    if len(digits) > _MOST_DIGITS:
        return float(digits)
    number = int(digits)
    return number if abs(number) < 1 << 63 else float(number)


def _is_time(value: Any) -> bool:
    """Whether the value is a time, in seconds since 1970, that a calendar date can have."""
    return isinstance(value, int | float) and abs(value) < _MOST_SECONDS


def json_text(data: Any, indent: int | None = None) -> str:
    """Return JSON that any reader accepts: ``nan`` and values that JSON lacks become text."""
    try:
        return json.dumps(data, default=str, indent=indent, allow_nan=False)
    except ValueError:
        return json.dumps(_without_nan(data), default=str, indent=indent)


def _without_nan(data: Any) -> Any:
    if isinstance(data, float) and not math.isfinite(data):
        return str(data)
    if isinstance(data, dict):
        return {str(key): _without_nan(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_without_nan(value) for value in data]
    return data
