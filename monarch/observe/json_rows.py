"""Files of JSON objects, one a line, as runs keep them."""

from __future__ import annotations

import json
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
