"""Durations as texts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch.config.duration import format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds", "written"),
    [
        ("30s", 30, "30s"),
        ("300s", 300, "5m"),
        ("90s", 90, "1m 30s"),
        ("1h 30m", 5400, "1h 30m"),
        ("1h30m", 5400, "1h 30m"),
        ("2hours 3 minutes", 7380, "2h 3m"),
        ("500ms", 0.5, "500ms"),
        ("1500ms", 1.5, "1s 500ms"),
        ("7us", 7e-6, "7us"),
        ("3 days", 259200, "3days"),
        ("1w", 604800, "7days"),
        ("1year", 31557600, "1year"),
        ("0s", 0, "0s"),
    ],
)
def test_durations(text: str, seconds: float, written: str) -> None:
    assert parse_duration(text) == seconds
    assert format_duration(seconds) == written


@pytest.mark.parametrize("text", ["", "30", "s", "3x", "1h 30", "-1s", "1.5s", "1h, 2m"])
def test_what_is_none(text: str) -> None:
    with pytest.raises(ValueError):
        parse_duration(text)


@given(st.integers(0, 10**6), st.integers(0, 999))
def test_what_is_written_reads_back_as_the_same(seconds: int, millis: int) -> None:
    value = seconds + millis / 1000
    assert parse_duration(format_duration(value)) == pytest.approx(value, abs=1e-9)
