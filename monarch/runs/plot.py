"""Line charts, as SVG for a report and as text for a terminal. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

__all__ = ["Mark", "Series", "svg_chart", "text_chart", "ticks"]

Series = Sequence[tuple[float, float]]

COLORS = ("#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#0891b2", "#be185d", "#65a30d")
_WIDTH, _HEIGHT = 760, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 14, 20, 34
_MAX_POINTS = 1500
_FINEST = 1e-9  # of a value: what lies closer together is one
_LEAST, _MOST = 1e-280, 1e280
_STYLE = (
    "<style>text{font:11px system-ui,sans-serif;fill:#6b7280}.title{font-weight:bold;fill:#1f2937}"
    ".grid{stroke:#e5e7eb}</style>"
)
_LEVELS = "▁▂▃▄▅▆▇█"


class Mark(NamedTuple):
    """Something that happened at ``x``: a vertical line that says ``text`` when pointed at."""

    x: float
    text: str
    color: str = "#9ca3af"


def svg_chart(
    lines: Mapping[str, Series],
    marks: Sequence[Mark] = (),
    x_name: str = "step",
    *,
    title: str = "",
) -> str:
    """One chart with a line for each name; values that are no finite numbers leave a gap out."""
    kept = {name: _thinned(_finite(line)) for name, line in lines.items()}
    points = [point for line in kept.values() for point in line]
    if not points:
        return '<p class="none">nothing was reported</p>'
    x_ticks = ticks(min(x for x, _ in points), max(x for x, _ in points), 8)
    y_ticks = ticks(min(y for _, y in points), max(y for _, y in points), 5)
    x_low, x_high = min(points[0][0], *(x for x, _ in points)), max(x for x, _ in points)
    y_low, y_high = y_ticks[0], y_ticks[-1]

    def at_x(x: float) -> float:
        return _LEFT + (x - x_low) / ((x_high - x_low) or 1) * (_WIDTH - _LEFT - _RIGHT)

    def at_y(y: float) -> float:
        return _HEIGHT - _BOTTOM - (y - y_low) / (y_high - y_low) * (_HEIGHT - _TOP - _BOTTOM)

    # Styles of its own, so that it looks the same in a file of its own.
    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{_STYLE}']
    if title:
        parts.append(f'<text class="title" x="{_LEFT}" y="11">{escape(title)}</text>')
    for y in y_ticks:
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at_y(y):.1f}" '
            f'y2="{at_y(y):.1f}"/><text x="{_LEFT - 6}" y="{at_y(y) + 4:.1f}" '
            f'text-anchor="end">{y:.4g}</text>'
        )
    for x in x_ticks:
        if x_low <= x <= x_high:
            parts.append(
                f'<text x="{at_x(x):.1f}" y="{_HEIGHT - _BOTTOM + 16}" '
                f'text-anchor="middle">{x:.6g}</text>'
            )
    parts.append(
        f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 4}" text-anchor="end">{escape(x_name)}</text>'
    )
    for mark in marks:
        if x_low <= mark.x <= x_high:
            parts.append(
                f'<line x1="{at_x(mark.x):.1f}" x2="{at_x(mark.x):.1f}" y1="{_TOP}" '
                f'y2="{_HEIGHT - _BOTTOM}" stroke="{mark.color}" stroke-width="2" '
                f'stroke-dasharray="4 3"><title>{escape(mark.text)}</title></line>'
            )
    for index, (name, line) in enumerate(kept.items()):
        color = COLORS[index % len(COLORS)]
        path = " ".join(f"{at_x(x):.1f},{at_y(y):.1f}" for x, y in line)
        shape = (
            f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.5"/>'
            if len(line) > 1
            else "".join(
                f'<circle cx="{at_x(x):.1f}" cy="{at_y(y):.1f}" r="3" fill="{color}"/>'
                for x, y in line
            )
        )
        parts.append(f"<g>{shape}<title>{escape(name)}</title></g>")
        if len(kept) > 1:
            parts.append(
                f'<text x="{_LEFT + 8}" y="{_TOP + 12 + 14 * index}" style="fill:{color}">'
                f"{escape(name)}</text>"
            )
    return "".join([*parts, "</svg>"])


def text_chart(line: Series, width: int) -> str:
    """One row of blocks, each the mean of its part of the line."""
    points = _finite(line)
    if not points:
        return ""
    width = max(1, min(width, len(points)))
    parts = [
        points[i * len(points) // width : (i + 1) * len(points) // width] for i in range(width)
    ]
    means = [sum(y for _, y in part) / len(part) for part in parts]
    low, high = min(means), max(means)
    top = len(_LEVELS) - 1
    return "".join(_LEVELS[round((mean - low) / ((high - low) or 1) * top)] for mean in means)


def ticks(low: float, high: float, about: int) -> list[float]:
    """Round numbers from at most ``low`` to at least ``high``, two or more."""
    largest = max(abs(low), abs(high))
    if high - low <= max(_FINEST * largest, _LEAST):
        # Too little to tell apart: room on both sides, so that the line lies in the middle.
        room = largest / 2 if largest > _LEAST else 0.5
        low, high = low - room, high + room
    rough = (high - low) / about
    exponent = math.floor(math.log10(rough))
    base = 10.0**exponent
    step = next((base * factor for factor in (1, 2, 5) if base * factor >= rough), 10 * base)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [round(number * step, 12 - exponent) for number in range(first, last + 1)]


def _finite(line: Series) -> list[tuple[float, float]]:
    # Differences of larger ones would be no numbers.
    return [(x, y) for x, y in line if math.isfinite(x) and abs(y) < _MOST]


def _thinned(line: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Few enough points to draw; every n-th, and the last."""
    if len(line) <= _MAX_POINTS:
        return line
    every = math.ceil(len(line) / _MAX_POINTS)
    return [*line[::every], line[-1]]
