from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch.runs.record.plot import log_ticks, smoothed, svg_chart, text_chart, text_plot, ticks

numbers = st.floats(min_value=-1e12, max_value=1e12, allow_nan=False)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 10, [0, 2, 4, 6, 8, 10]), (0.13, 0.91, [0, 0.2, 0.4, 0.6, 0.8, 1.0])],
)
def test_ticks_are_round(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high, 5) == pytest.approx(expected)


@given(numbers, numbers, st.integers(1, 10))
def test_ticks_enclose_what_they_are_for(one: float, other: float, about: int) -> None:
    low, high = min(one, other), max(one, other)
    found = ticks(low, high, about)
    assert len(found) >= 2
    assert found == sorted(found)
    slack = 1e-6 * max(1.0, abs(low), abs(high))
    assert found[0] <= low + slack
    assert found[-1] >= high - slack


def test_a_chart_is_legal_and_draws_what_is_a_number() -> None:
    nan, inf = float("nan"), float("inf")
    lines = {"a < b": [(1, 2.0), (2, nan), (3, inf), (4, 1.0)], "single": [(2, 1.5)]}
    chart = svg_chart(lines)
    tree = ElementTree.fromstring(chart)
    (line,) = tree.findall(".//polyline")
    assert len(line.attrib["points"].split()) == 2
    assert len(tree.findall(".//circle")) == 1
    titles = [title.text for title in tree.iter("title")]
    assert titles == ["a < b", "single"]


@pytest.mark.parametrize("values", [(0.0, 5e-324), (0.0, 1e-15), (1.0, 1 + 2e-16), (-1e279, 1e279)])
def test_values_of_any_size_are_drawn(values: tuple[float, float]) -> None:
    # A loss that has come to nothing must not cost a run its report.
    found = ticks(*values, 5)
    assert found[0] <= values[0] < values[1] <= found[-1]
    assert len(set(found)) == len(found)
    ElementTree.fromstring(svg_chart({"loss": list(enumerate(values))}))
    svg_chart({"loss": [(1, -1e308), (2, 1e308)]})


def test_long_lines_are_thinned_and_keep_their_ends() -> None:
    tree = ElementTree.fromstring(svg_chart({"x": [(step, step) for step in range(100_000)]}))
    (line,) = tree.findall(".//polyline")
    points = line.attrib["points"].split()
    assert len(points) <= 1600
    assert points[-1].startswith("746")


def test_a_chart_of_nothing_says_so() -> None:
    assert "nothing was reported" in svg_chart({"loss": []})
    assert text_chart([], 10) == ""


def test_a_row_of_blocks_goes_from_low_to_high() -> None:
    assert text_chart([(step, step) for step in range(8)], 80) == "▁▂▃▄▅▆▇█"
    assert text_chart([(1, 2.0), (2, 2.0)], 80) == "▁▁"
    assert len(text_chart([(step, step) for step in range(1000)], 40)) == 40


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (1e-4, 1.0, [1e-4, 1e-3, 1e-2, 1e-1, 1.0]),
        (0.3, 4.0, [0.2, 0.5, 1.0, 2.0, 5.0]),
        (1e-9, 1e6, [1e-9, 1e-6, 1e-3, 1.0, 1e3, 1e6]),
        (1.0, 1.0, [0.5, 2.0]),
        (3.0, 3.0, [2.0, 5.0]),
        (7.0, 7.0, [5.0, 10.0]),
    ],
)
def test_ticks_of_a_logarithmic_scale(low: float, high: float, expected: list[float]) -> None:
    assert log_ticks(low, high, 5) == pytest.approx(expected)


def test_on_a_logarithmic_scale_decades_are_alike_and_zero_is_left_out() -> None:
    line = [(1.0, 100.0), (2.0, 0.0), (3.0, -1.0), (4.0, 10.0), (5.0, 1.0)]
    drawn = svg_chart({"a": line}, y_name="loss", is_log=True)
    (points,) = re.findall(r'points="([^"]*)"', drawn)
    first, second, third = (float(point.split(",")[1]) for point in points.split())
    assert second - first == pytest.approx(third - second, abs=0.2)
    assert text_chart(line, 10, is_log=True) == "█▅▁"
    assert "nothing was reported" in svg_chart({"a": [(1.0, 0.0)]}, is_log=True)


def test_a_smooth_line_has_means() -> None:
    line = [(1, 4.0), (2, 2.0), (3, float("nan")), (4, 6.0)]
    assert smoothed(line, 1) == [(1, 4.0), (2, 2.0), (4, 6.0)]
    assert smoothed(line, 2) == [(1, 4.0), (2, 3.0), (4, 4.0)]


def test_a_plot_in_a_terminal_has_rows_a_scale_and_the_first_and_last_step() -> None:
    rows = text_plot([(step, 1.0 / step) for step in range(1, 101)], 60)
    assert len(rows) == 8
    assert max(map(len, rows)) <= 60
    assert rows[0].startswith("      1 ┤█")
    assert rows[5].startswith("0.0")
    assert len(rows[0]) < len(rows[5]), "it falls"
    assert rows[7].split() == ["step", "1", "100"]
    flat = text_plot([(1, 2.0), (2, 2.0)], 40)
    assert flat[0].startswith("2 ┤")
    assert text_plot([], 40) == []
