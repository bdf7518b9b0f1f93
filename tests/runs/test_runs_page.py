"""What the page shows of a run: pure parts of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from monarch.config import configured
from monarch.runs.page.generations import generation_tree
from monarch.runs.page.run_error import editor_link
from monarch.runs.page.thinning import seconds_left, step_seconds, thinned
from monarch.runs.record.rows import RowTail


def test_code_that_failed_or_was_left_is_a_branch_and_what_leads_to_now_the_trunk() -> None:
    def moved(number: int, digest: str) -> dict[str, object]:
        return {"kind": "generation", "generation": number, "digest": digest}

    tree = generation_tree(
        [
            {"kind": "begun", "generation": 1, "digest": "a"},
            moved(2, "b"),
            {"kind": "held", "generation": 3, "error": "NameError", "file": "x.py", "line": 2},
            moved(4, "c"),
            moved(5, "b"),
            moved(6, "d"),
        ]
    )
    told = [(one.generation, one.depth, one.state, one.like) for one in tree]
    assert told == [
        (1, 0, "good", 0), (2, 0, "good", 0), (3, 1, "failed", 0), (4, 1, "good", 0),
        (5, 1, "good", 2), (6, 0, "good", 0),
    ]  # fmt: skip
    assert tree[2].error == "x.py:2: NameError"
    assert [one.generation for one in tree if one.is_now] == [6]


def test_a_spike_is_kept_where_points_are_left_out() -> None:
    points = [(step, 9.0 if step == 7777 else 1.0) for step in range(20_000)]
    kept = thinned(points)
    assert len(kept) <= 1002
    assert (7777, 9.0) in kept
    assert (kept[0], kept[-1]) == (points[0], points[-1])


def test_a_hold_is_no_step_time_and_the_rest_goes_by_the_last_ones() -> None:
    times = [0.5, 1.0, 1.5, 60.0, 60.5]
    steps = [{"step": step, "time": 100 + time} for step, time in enumerate(times, 1)]
    pace = step_seconds(steps, [{"kind": "held", "time": 102.0}])
    assert pace == [(2, 0.5), (3, 0.5), (5, 0.5)]
    assert seconds_left(pace, 5, 25) == 10.0


@pytest.mark.parametrize(
    ("form", "link"),
    [
        ("vscode://file/{path}:{line}", "vscode://file//home/a%20b/x.py:3"),
        ("", ""),
        ("javascript:alert('{path}')", ""),
    ],
)
def test_the_editor_of_a_link_can_be_chosen_and_a_script_is_none(form: str, link: str) -> None:
    with configured(editor_url=form):
        assert editor_link(Path("/home/a b/x.py"), 3) == link


def test_rows_of_a_file_that_grows_are_read_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    tail = RowTail(path)
    assert tail.take() == ([], False)
    path.write_text('{"step": 1}\n{"st')
    assert tail.take() == ([{"step": 1}], True)
    path.write_text('{"step": 1}\n{"step": 2}\n')
    assert tail.take() == ([{"step": 2}], False)
