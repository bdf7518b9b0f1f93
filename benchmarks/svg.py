"""Line plots as SVG, with both axes logarithmic: enough for latency against size."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

__all__ = ["COLOURS", "Panel", "plot"]

COLOURS = ["#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#444"]

_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP = 300, 220, 52, 40, 70


class Panel(NamedTuple):
    """One pair of axes; ``lines`` are (x, y) points by name, all positive."""

    title: str
    x_label: str
    lines: Mapping[str, Sequence[tuple[float, float]]]


def plot(panels: Sequence[Panel], note: str = "") -> str:
    """Return an SVG with the panels side by side, one legend below them, and a note."""
    names = list(dict.fromkeys(name for panel in panels for name in panel.lines))
    colours = {name: COLOURS[at % len(COLOURS)] for at, name in enumerate(names)}
    parts = [_panel(panel, at * (_WIDTH + _GAP), colours) for at, panel in enumerate(panels)]
    below = _TOP + _HEIGHT + 58
    for at, name in enumerate(names):
        x, y = _LEFT + (at % 2) * 330, below + at // 2 * 16
        parts.append(
            f'<line x1="{x}" x2="{x + 22}" y1="{y - 4}" y2="{y - 4}" stroke="{colours[name]}" '
            f'stroke-width="2"/><text x="{x + 28}" y="{y}">{escape(name)}</text>'
        )
    last = below + (len(names) + 1) // 2 * 16 + 6
    parts.append(f'<text x="{_LEFT}" y="{last}" fill="#777">{escape(note)}</text>')
    width = len(panels) * (_WIDTH + _GAP) + 10
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{max(width, 680)}" height="{last + 12}" '
        'font-family="sans-serif" font-size="11">'
        f'<rect width="100%" height="100%" fill="white"/>{"".join(parts)}</svg>\n'
    )


def _panel(panel: Panel, left: float, colours: Mapping[str, str]) -> str:
    points = [point for line in panel.lines.values() for point in line]
    xs = [math.log10(x) for x, _ in points]
    ys = [math.log10(y) for _, y in points]
    x_low, x_high = min(xs), max(xs)
    y_low, y_high = math.floor(min(ys)), math.ceil(max(ys))

    def at_x(value: float) -> float:
        return left + _LEFT + (value - x_low) / ((x_high - x_low) or 1) * _WIDTH

    def at_y(value: float) -> float:
        return _TOP + _HEIGHT - (value - y_low) / ((y_high - y_low) or 1) * _HEIGHT

    parts = [
        f'<text x="{at_x(x_low):.0f}" y="{_TOP - 14}" font-weight="bold">{escape(panel.title)}'
        f'</text><text x="{left + _LEFT + _WIDTH / 2:.0f}" y="{_TOP + _HEIGHT + 34}" '
        f'text-anchor="middle">{escape(panel.x_label)}</text>'
    ]
    for tick in range(y_low, y_high + 1):
        y = at_y(tick)
        parts.append(
            f'<line x1="{at_x(x_low):.1f}" x2="{at_x(x_high):.1f}" y1="{y:.1f}" y2="{y:.1f}" '
            f'stroke="#ddd"/><text x="{at_x(x_low) - 6:.1f}" y="{y + 4:.1f}" text-anchor="end">'
            f"{10.0**tick:g} ms</text>"
        )
    for x_value in sorted({x for x, _ in points}):
        parts.append(
            f'<text x="{at_x(math.log10(x_value)):.1f}" y="{_TOP + _HEIGHT + 16}" '
            f'text-anchor="middle">{x_value:,g}</text>'
        )
    for name, line in panel.lines.items():
        placed = [(at_x(math.log10(x)), at_y(math.log10(y))) for x, y in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colours[name]}" stroke-width="2"/>'
        )
        parts += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colours[name]}"/>' for x, y in placed
        ]
    return "".join(parts)
