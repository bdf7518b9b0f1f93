"""The figures of a run, from the rows that it reported: one for each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from monarch.mesh import html
from monarch.runs.record.plot import Series

_FIRST = ("loss", "samples_per_second", "tokens_per_second")
_NOT_PLOTTED = ("step", "num_steps", "time", "generation")


def curve(steps: Sequence[Mapping[str, Any]], name: str) -> Series:
    """Return one quantity over the steps."""
    return [(row["step"], row[name]) for row in steps if is_number(row.get(name))]


def names_measured(steps: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of the reported quantities besides the step, the most important first."""
    names = dict.fromkeys(
        name
        for row in steps
        for name, value in row.items()
        if name not in _NOT_PLOTTED and is_number(value)
    )
    return [name for name in _FIRST if name in names] + [n for n in names if n not in _FIRST]


def last_measured(steps: Sequence[Mapping[str, Any]], name: str) -> Any:
    """Return the value of ``name`` at the last step that has one; ``None`` if no step does."""
    return next((row[name] for row in reversed(steps) if name in row), None)


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def int_or_none(value: Any) -> int | None:
    """Return the value if it is an integer, else ``None``: rows may have anything."""
    return value if isinstance(value, int) and is_number(value) else None


def html_of(name: str, recipe: str, status: str, steps: Sequence[Mapping[str, Any]]) -> str:
    """Return the HTML with which a notebook shows a run, without links or scripts.

    ``steps`` are those of `RunFolder.metrics`.
    """
    last = steps[-1] if steps else {}
    step = f"{last.get('step', 0)}"
    if "num_steps" in last:
        step += f" of {last['num_steps']}"
    rows = [("recipe", recipe or "-"), ("status", status), ("step", step)]
    rows += [(key, f"{last_measured(steps, key):.4g}") for key in names_measured(steps)]
    return html.table(name, (), rows)
