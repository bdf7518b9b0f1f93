"""JSON as runs keep it, one object a line, and as pages and programs read it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any


def json_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a file. A line that a full disk or a crash cut short is left out."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    rows = []
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def json_text(data: Any, indent: int | None = None) -> str:
    """JSON that any reader takes: a number that JSON does not know is text, as ``nan``, and so is
    whatever else has no form there."""
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
