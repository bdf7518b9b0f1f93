"""Line charts, as SVG for a report and as text for a terminal. Pure functions."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from html import escape

Series = Sequence[tuple[float, float]]

COLORS = ("#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#0891b2", "#be185d", "#65a30d")
_WIDTH, _HEIGHT = 760, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 74, 14, 20, 34
_MAX_POINTS = 1500
_FINEST = 1e-9  # Values that differ by a smaller share are drawn as equal.
_LEAST, _MOST = 1e-280, 1e280
_STYLE = (
    "<style>text{font:11px system-ui,sans-serif;fill:#6b7280}.title{font-weight:bold;fill:#1f2937}"
    ".grid{stroke:#e5e7eb}</style>"
)
_LEVELS = "▁▂▃▄▅▆▇█"
_NUM_ROWS = 6  # of a chart as text


def svg_chart(
    lines: Mapping[str, Series], *, y_name: str = "", title: str = "", is_log: bool = False
) -> str:
    """Return a chart over the steps with a line for each name.

    Values that are no finite numbers are left out, and, if ``is_log``, those not above zero.
    """
    thinned = {name: _thinned(_finite(line, is_log=is_log)) for name, line in lines.items()}
    points = [point for line in thinned.values() for point in line]
    if not points:
        return '<p class="none">nothing was reported</p>'
    x_ticks = ticks(min(x for x, _ in points), max(x for x, _ in points), 8)
    y_ticks = (log_ticks if is_log else ticks)(
        min(y for _, y in points), max(y for _, y in points), 5
    )
    x_low, x_high = min(points[0][0], *(x for x, _ in points)), max(x for x, _ in points)
    height: Callable[[float], float] = math.log10 if is_log else float
    y_low, y_high = height(y_ticks[0]), height(y_ticks[-1])

    def at_x(x: float) -> float:
        return _LEFT + (x - x_low) / ((x_high - x_low) or 1) * (_WIDTH - _LEFT - _RIGHT)

    def at_y(y: float) -> float:
        share = (height(y) - y_low) / (y_high - y_low)
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)

    # The chart has its own styles, so that it looks the same in a file by itself.
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
    parts.append(f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 4}" text-anchor="end">step</text>')
    if y_name:
        middle = (_TOP + _HEIGHT - _BOTTOM) / 2
        parts.append(
            f'<text transform="translate(12 {middle:.0f}) rotate(-90)" text-anchor="middle">'
            f"{escape(y_name)}{' (log)' if is_log else ''}</text>"
        )
    for index, (name, line) in enumerate(thinned.items()):
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
        if len(thinned) > 1:
            parts.append(
                f'<text x="{_LEFT + 8}" y="{_TOP + 12 + 14 * index}" style="fill:{color}">'
                f"{escape(name)}</text>"
            )
    return "".join([*parts, "</svg>"])


def text_chart(line: Series, width: int, *, is_log: bool = False) -> str:
    """Return a row of block characters, each for the mean of its part of the line."""
    points = _finite(line, is_log=is_log)
    if is_log:
        points = [(x, math.log10(y)) for x, y in points]
    if not points:
        return ""
    means = _means([y for _, y in points], max(1, min(width, len(points))))
    low, high = min(means), max(means)
    top = len(_LEVELS) - 1
    return "".join(_LEVELS[round((mean - low) / ((high - low) or 1) * top)] for mean in means)


def text_plot(line: Series, width: int, *, is_log: bool = False) -> list[str]:
    """Return the line as rows of block characters. Each column is the mean of a part of the line.

    The highest and lowest values are at the left, the first and last step below.
    """
    points = _finite(line, is_log=is_log)
    if not points:
        return []
    scale, unscale = (math.log10, lambda y: 10.0**y) if is_log else (float, float)
    room = max(8, width - max(len(f"{y:.4g}") for _, y in points) - 2)
    columns = min(room, len(points))
    means = _means([scale(y) for _, y in points], columns)
    low, high = min(means), max(means)
    full = len(_LEVELS)
    # At least one eighth, so that each column is seen.
    heights = [1 + round((y - low) / ((high - low) or 1) * (_NUM_ROWS * full - 1)) for y in means]
    labels = {0: f"{unscale(high):.4g}", _NUM_ROWS - 1: f"{unscale(low):.4g}"}
    indent = max(map(len, labels.values()))
    rows = []
    for row in range(_NUM_ROWS):
        base = (_NUM_ROWS - 1 - row) * full
        cells = "".join(
            _LEVELS[min(full, above) - 1] if (above := number - base) > 0 else " "
            for number in heights
        )
        axis = "┤" if row in labels else "│"
        rows.append(f"{labels.get(row, ''):>{indent}} {axis}{cells}".rstrip())
    first, last = f"{points[0][0]:.6g}", f"{points[-1][0]:.6g}"
    below = f"step {first}"
    rows.append(f"{'':>{indent}} └{'─' * columns}")
    rows.append(f"{'':>{indent}}  {below}{last:>{max(len(last) + 1, columns - len(below))}}")
    return rows


def ticks(low: float, high: float, about: int) -> list[float]:
    """Return at least two round numbers for an axis. The first is at most ``low``, the last at
    least ``high``. ``about`` is roughly how many there are.
    """
    largest = max(abs(low), abs(high))
    if high - low <= max(_FINEST * largest, _LEAST):
        # The values are nearly equal: room on both sides puts the line in the middle.
        room = largest / 2 if largest > _LEAST else 0.5
        low, high = low - room, high + room
    rough = (high - low) / about
    exponent = math.floor(math.log10(rough))
    base = 10.0**exponent
    step = next((base * factor for factor in (1, 2, 5) if base * factor >= rough), 10 * base)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [round(number * step, 12 - exponent) for number in range(first, last + 1)]


def log_ticks(low: float, high: float, about: int) -> list[float]:
    """Return two or more round numbers, from at most ``low``, above zero, to at least ``high``.

    They are powers of ten, with numbers between them if these are few.
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    if last - first <= 2:
        numbers = [10.0**power * factor for power in range(first, last + 1) for factor in (1, 2, 5)]
        below = max(n for n, value in enumerate(numbers) if value <= low)
        above = min((n for n, value in enumerate(numbers) if value >= high), default=len(numbers))
        chosen = numbers[below : above + 1]
        return chosen if len(chosen) > 1 else [chosen[0] / 2, chosen[0] * 2]
    every = max(1, round((last - first) / about))
    return [10.0**power for power in range(first, last + every, every)]


def smoothed(line: Series, num: int) -> Series:
    """Return the line with each value replaced by the mean of the last ``num`` values up to it."""
    means: list[tuple[float, float]] = []
    recent: deque[float] = deque(maxlen=num)
    for x, y in _finite(line):
        recent.append(y)
        means.append((x, math.fsum(recent) / len(recent)))
    return means


def _means(values: Sequence[float], num_parts: int) -> list[float]:
    """Return the means of equal parts of the values."""
    ends = [index * len(values) // num_parts for index in range(num_parts + 1)]
    return [math.fsum(values[a:b]) / (b - a) for a, b in itertools.pairwise(ends)]


def _finite(line: Series, *, is_log: bool = False) -> list[tuple[float, float]]:
    # Differences of larger numbers could be infinite.
    least = _LEAST if is_log else -_MOST
    return [(x, y) for x, y in line if math.isfinite(x) and least < y < _MOST]


def _thinned(line: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return every n-th point of the line and its last point. There are so few of them that they
    can be drawn.
    """
    if len(line) <= _MAX_POINTS:
        return line
    every = math.ceil(len(line) / _MAX_POINTS)
    return [*line[::every], line[-1]]
