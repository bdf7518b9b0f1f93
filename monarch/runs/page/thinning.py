"""Thins curves to few points for drawing, and keeps their highest and lowest values."""

from __future__ import annotations

import bisect
import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

MOST_POINTS = 1000
_PACE_STEPS = 100
_BREAKS = ("begun", "begun_again", "died", "hung", "held", "mended", "respawned", "resumed")

Points = list[tuple[int, float]]


def points_of(steps: Sequence[Mapping[str, Any]], name: str) -> Points:
    """Return one quantity over the steps, without values that are no finite numbers."""
    return [
        (row["step"], float(value))
        for row in steps
        if isinstance(value := row.get(name), int | float) and math.isfinite(value)
    ]


def thinned(points: Points) -> Points:
    """Return about ``MOST_POINTS`` points at most: the lowest and highest of each stretch, the
    first and last."""
    if len(points) <= MOST_POINTS:
        return points
    size = math.ceil(len(points) / (MOST_POINTS // 2))
    chosen = {points[0], points[-1]}
    for start in range(0, len(points), size):
        stretch = points[start : start + size]
        chosen.add(min(stretch, key=lambda point: point[1]))
        chosen.add(max(stretch, key=lambda point: point[1]))
    return sorted(chosen)


def step_seconds(steps: Sequence[Mapping[str, Any]], events: Sequence[Mapping[str, Any]]) -> Points:
    """Return how many seconds each step took, computed from the times of the reports. Steps in
    which the run held or restarted are left out.
    """
    breaks = sorted(event["time"] for event in events if event["kind"] in _BREAKS)
    points: Points = []
    for previous, row in itertools.pairwise(steps):
        since, until = previous.get("time", 0.0), row.get("time", 0.0)
        next_break = bisect.bisect_right(breaks, since)
        is_broken = next_break < len(breaks) and breaks[next_break] < until
        if not is_broken and until > since > 0:
            points.append((row["step"], (until - since) / (row["step"] - previous["step"])))
    return points


def seconds_left(pace: Points, step: int, num_steps: int) -> float | None:
    """Return the seconds that the remaining steps will take, judged by the last steps; ``None`` if
    unknown.
    """
    recent = [seconds for _, seconds in pace[-_PACE_STEPS:]]
    if not recent or num_steps <= step:
        return None
    return statistics.median(recent) * (num_steps - step)
