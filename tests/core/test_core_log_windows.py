"""When aggregated lines are shown, and how they look."""

from __future__ import annotations

from monarch.core.log_aggregation import Aggregate, LineSource, Summary
from monarch.core.log_text import Style, aggregate_text, drop_text, line_text, rank_list
from monarch.core.log_windows import LogWindows

PLAIN, COLOURED = Style(False), Style(True)


def add(windows: LogWindows, rank: int, now: float, *lines: str, stream: int = 1) -> None:
    windows.add(f"p{rank}", "host", stream, LineSource("trainer", rank), lines, now)


def counts(windows: list[object]) -> list[int]:
    return [one.num_lines for w in windows for one in w.summary.aggregates]  # type: ignore[attr-defined]


def test_a_window_opens_with_a_line_and_closes_when_its_time_is_up() -> None:
    windows = LogWindows()
    windows.assign(["p0", "p1"], "mesh", 3.0, now=0.0)
    assert windows.next_deadline is None
    add(windows, 0, 10.0, "hello", "hello")
    add(windows, 1, 11.0, "hello")
    assert windows.next_deadline == 13.0
    assert windows.due(12.9) == []
    (closed,) = windows.due(13.0)
    assert (closed.stream, closed.opened_at, counts([closed])) == (1, 10.0, [3])
    assert windows.next_deadline is None


def test_streams_and_groups_have_windows_of_their_own() -> None:
    windows = LogWindows()
    windows.assign(["p0"], "one", 3.0, now=0.0)
    windows.assign(["p1"], "other", 5.0, now=0.0)
    add(windows, 0, 0.0, "hello")
    add(windows, 0, 0.0, "hello", stream=2)
    add(windows, 1, 0.0, "hello")
    assert counts(list(windows.due(3.0))) == [1, 1]
    assert counts(list(windows.due(5.0))) == [1]


def test_a_shorter_window_holds_for_what_has_been_gathered() -> None:
    windows = LogWindows()
    windows.assign(["p0"], "mesh", 100.0, now=0.0)
    add(windows, 0, 0.0, "first")
    windows.assign(["p0"], "mesh", 2.0, now=10.0)
    add(windows, 0, 11.0, "second")
    assert windows.next_deadline == 12.0
    assert counts(list(windows.due(12.0))) == [1]
    assert counts(list(windows.due(13.0))) == [1]


def test_a_longer_window_keeps_nobody_waiting() -> None:
    windows = LogWindows()
    windows.assign(["p0"], "mesh", 2.0, now=0.0)
    add(windows, 0, 0.0, "first")
    windows.assign(["p0"], "mesh", 100.0, now=1.0)
    assert windows.next_deadline == 2.0


def test_the_end_of_aggregation_shows_what_has_been_gathered() -> None:
    windows = LogWindows()
    windows.assign(["p0"], "mesh", 100.0, now=0.0)
    add(windows, 0, 0.0, "first")
    windows.assign(["p0"], "mesh", 0.0, now=1.0)
    assert not windows.is_aggregated("p0", "host")
    assert counts(list(windows.due(1.0))) == [1]


def test_a_host_decides_for_procs_that_nobody_named() -> None:
    windows = LogWindows()
    windows.assign(["host"], "all", 1.0, now=0.0)
    assert windows.is_aggregated("later", "host")
    assert not windows.is_aggregated("later", "another host")


def test_flush_closes_everything() -> None:
    windows = LogWindows()
    windows.assign(["p0"], "mesh", 100.0, now=0.0)
    add(windows, 0, 0.0, "a line")
    assert counts(list(windows.flush())) == [1]
    assert windows.flush() == []


def test_lines_have_their_label_in_front() -> None:
    assert line_text("a 0", "one\n\ntwo\n", PLAIN) == "[a 0] one\n[a 0] \n[a 0] two\n"
    assert line_text("a 0", "one\n", COLOURED) == "\x1b[36m[a 0]\x1b[0m one\n"


def test_what_was_dropped_is_told_with_where_it_is() -> None:
    assert drop_text("a 0", 12345, "/x/0.log", PLAIN) == (
        "[a 0] ... 12,345 lines dropped here, faster than they could be shown; "
        "they are in /x/0.log\n"
    )


def test_an_aggregate_looks_like_upstreams() -> None:
    sources = tuple(LineSource("trainer", rank) for rank in range(8))
    summary = Summary([Aggregate(8, "loss <<1, 2>>", sources)], 3, [(sources[1], "last")])
    assert aggregate_text(summary, "then", "now", PLAIN).splitlines() == [
        ">>> Aggregated Logs (then) >>>",
        "[8 similar log lines] [trainer 0-7] loss <<1, 2>>",
        "[3 other log lines] ... too many to compare; they are in the log files",
        "[trainer 1] last",
        "<<< Aggregated Logs (now) <<<",
    ]
    coloured = aggregate_text(summary, "then", "now", COLOURED)
    assert "\x1b[33m[8 similar log lines]\x1b[0m " in coloured


def test_ranks_are_told_in_few_words() -> None:
    def of(*ranks: int) -> str:
        return rank_list(LineSource("a", rank) for rank in ranks)

    assert of(3) == "a 3"
    assert of(2, 0, 1, 5, 7, 8) == "a 0-2,5,7-8"
    assert of(*range(0, 40, 2)) == "a 0,2,4,6,8,..."
    assert rank_list([LineSource("a", 0), LineSource("b", 1)]) == "a 0; b 1"
