"""Durations as people write them: "30s", "1h 30m", "500ms"."""

from __future__ import annotations

import re

_NANOSECONDS = {
    ("years", "year", "yrs", "yr", "y"): 31_557_600_000_000_000,
    ("months", "month", "M"): 2_630_016_000_000_000,
    ("weeks", "week", "wks", "wk", "w"): 604_800_000_000_000,
    ("days", "day", "d"): 86_400_000_000_000,
    ("hours", "hour", "hrs", "hr", "h"): 3_600_000_000_000,
    ("minutes", "minute", "mins", "min", "m"): 60_000_000_000,
    ("seconds", "second", "secs", "sec", "s"): 1_000_000_000,
    ("millis", "msec", "ms"): 1_000_000,
    ("micros", "usec", "us"): 1_000,
    ("nanos", "nsec", "ns"): 1,
}
_UNITS = {name: size for names, size in _NANOSECONDS.items() for name in names}
_PART = re.compile(r"\s*(\d+)\s*([A-Za-z]+)")
_WRITTEN = ("year", "month", "day", "h", "m", "s", "ms", "us", "ns")


def parse_duration(text: str) -> float:
    """Return the duration in seconds. Raises ``ValueError`` if ``text`` is not a sequence of
    numbers with units.
    """
    position, total = 0, 0
    while match := _PART.match(text, position):
        number, unit = match.groups()
        if unit not in _UNITS:
            raise ValueError(f"unknown time unit {unit!r} in {text!r}")
        total += int(number) * _UNITS[unit]
        position = match.end()
    if position == 0 or text[position:].strip():
        raise ValueError(f"{text!r} is not a duration like '30s' or '1h 30m'")
    return total / 1e9


def format_duration(seconds: float) -> str:
    """Return a number of seconds as text, in the largest units that fit: "1h 30m"."""
    rest = round(seconds * 1e9)
    parts = []
    for unit in _WRITTEN:
        count, rest = divmod(rest, _UNITS[unit])
        if count:
            plural = "s" if count > 1 and unit in ("year", "month", "day") else ""
            parts.append(f"{count}{unit}{plural}")
    return " ".join(parts) or "0s"
