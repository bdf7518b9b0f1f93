"""Similar lines become one, whoever printed them; counts add up, and work is bounded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from monarch.core import log_aggregation
from monarch.core.log_aggregation import Aggregate, Aggregator, LineSource, edit_distance

ONE = LineSource("trainer", 0)
TEXTS = st.text(alphabet="abc1 ", max_size=12)


def levenshtein(one: str, other: str) -> int:
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        last, row = row, [i]
        for j, b in enumerate(other, 1):
            row.append(min(last[j] + 1, row[-1] + 1, last[j - 1] + (a != b)))
    return row[-1]


def aggregates(*lines: str) -> list[Aggregate]:
    aggregator = Aggregator()
    for line in lines:
        aggregator.add(line, ONE)
    return aggregator.take().aggregates


@given(TEXTS, TEXTS)
def test_the_edit_distance_is_levenshteins(one: str, other: str) -> None:
    assert edit_distance(one, other) == levenshtein(one, other)


@given(st.text(alphabet="ab", min_size=60, max_size=140), st.integers(0, 60))
def test_the_edit_distance_of_long_texts_is_too(text: str, at: int) -> None:
    assert edit_distance(text, text[:at] + "c" + text[at:]) == 1
    assert edit_distance(text, text[:at] + text[at + 3 :]) == min(3, len(text) - at)
    assert edit_distance(text, text[::-1]) == levenshtein(text, text[::-1])


@given(st.lists(st.tuples(TEXTS, st.integers(0, 3))))
def test_every_line_is_counted_once(lines: list[tuple[str, int]]) -> None:
    aggregator = Aggregator()
    for text, rank in lines:
        aggregator.add(text, LineSource("trainer", rank))
    assert bool(aggregator) == bool(lines)
    summary = aggregator.take()
    assert sum(one.num_lines for one in summary.aggregates) == len(lines)
    assert summary.num_more == 0
    assert not aggregator
    ranks = {source.rank for one in summary.aggregates for source in one.sources}
    assert ranks == {rank for _, rank in lines}


@given(st.lists(TEXTS, min_size=1, max_size=20))
def test_lines_are_merged_if_and_only_if_they_are_similar(lines: list[str]) -> None:
    """Against the rule in its plainest form: the nearest first line, if it is near enough."""
    firsts: list[str] = []
    counts: list[int] = []
    for line in lines:
        shares = [levenshtein(first, line) / (max(len(first), len(line)) or 1) for first in firsts]
        near = [share for share in shares if share < 0.15]
        if near:
            counts[shares.index(min(near))] += 1
        else:
            firsts.append(line)
            counts.append(1)
    assert len(aggregates(*lines)) == len(firsts)
    assert sum(counts) == len(lines)


def test_words_that_differ_are_shown() -> None:
    (one,) = aggregates(*(f"epoch {n} of the training has ended" for n in (1, 2, 1, 3)))
    assert one == Aggregate(4, "epoch <<1, 2, 3>> of the training has ended", (ONE,))


def test_only_the_first_few_variants_are_shown() -> None:
    (one,) = aggregates(*(f"epoch {n} of the training has ended" for n in range(9)))
    assert one.text == "epoch <<0, 1, 2, 3, ...>> of the training has ended"


def test_different_lines_stay_apart_in_their_order() -> None:
    found = aggregates("loading data", "training", "loading data", "")
    assert [(one.num_lines, one.text) for one in found] == [
        (2, "loading data"),
        (1, "training"),
        (1, ""),
    ]


def test_the_most_similar_group_wins() -> None:
    found = aggregates("aaaaaaaaaaaaaaaaaaaa", "aaaaaaaaaaaaaaaabbbb", "aaaaaaaaaaaaaaaabbba")
    assert [one.num_lines for one in found] == [1, 2]


def test_a_flood_of_different_lines_is_counted_and_its_end_kept() -> None:
    aggregator = Aggregator()
    num_lines = 20_000
    for number in range(num_lines):
        aggregator.add(f"{number:032b} {number * 7919 % 104729:b}" * 2, ONE)
    summary = aggregator.take()
    assert len(summary.aggregates) <= log_aggregation._MAX_GROUPS
    counted = sum(one.num_lines for one in summary.aggregates)
    assert counted + summary.num_more + len(summary.last) == num_lines
    assert summary.last[-1][1].startswith(f"{num_lines - 1:032b}")


def test_lines_that_repeat_are_counted_without_end() -> None:
    aggregator = Aggregator()
    for _ in range(50_000):
        aggregator.add("the same", ONE)
    assert aggregator.take().aggregates == [Aggregate(50_000, "the same", (ONE,))]
