"""What a notebook shows of a run: how it stands, and what it measured last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from monarch.mesh import html
from monarch.runs.measured import last_measured, names_measured


def html_of(name: str, recipe: str, status: str, steps: Sequence[Mapping[str, Any]]) -> str:
    """``steps`` are rows as `RunFolder.metrics` has them. No links, no script."""
    last = steps[-1] if steps else {}
    of = f" of {last['num_steps']}" if "num_steps" in last else ""
    rows = [("recipe", recipe or "-"), ("status", status), ("step", f"{last.get('step', 0)}{of}")]
    rows += [(key, f"{last_measured(steps, key):.4g}") for key in names_measured(steps)]
    return html.table(name, (), rows)
