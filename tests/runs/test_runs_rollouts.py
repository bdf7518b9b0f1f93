"""Samples of reinforcement learning, read from a run's folder, which may be a stranger's."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from monarch.cli.runs import runs as runs_command
from monarch.runs.page.report import write_report
from monarch.runs.page.run_data import run_data
from monarch.runs.record.folder import RunFolder
from monarch.runs.record.rollouts import last_rollouts
from monarch.runs.record.rows import ROLLOUTS, RowFile

ROW: dict[str, Any] = {
    "step": 7, "prompt": "3 1 2", "completion": "[1 2 3]", "reward": 1.0, "solved": True,
    "version": 6, "generation": 2, "reward_generation": 3,
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "runs" / "rl-20260101-000000"
    path.mkdir(parents=True)
    (path / "command").write_text("monarch run rl\n")
    return RunFolder(path)


def shown(run: RunFolder) -> str:
    command = click.Command("show", callback=lambda: runs_command.show(run.name))
    result = CliRunner().invoke(command, catch_exceptions=False)
    return result.output


def test_what_a_recipe_recorded_is_shown_with_who_made_and_judged_it(run: RunFolder) -> None:
    rows = RowFile(run.path / ROLLOUTS)
    for step in range(1, 101):
        rows.add({**ROW, "step": step})
    found = last_rollouts(run.path, 3)
    assert [one.step for one in found] == [98, 99, 100]
    assert found[-1].made_by == "policy 6, made by 2, judged by 3"
    line = "3 1 2 -> [1 2 3]  reward 1, right (policy 6, made by 2, judged by 3)"
    assert f"  sample of step 100: {line}" in shown(run).splitlines()
    data = run_data(run)
    assert [one["step"] for one in data["rollouts"]] == list(range(61, 101))
    assert data["rollouts"][-1]["reward_generation"] == 3


def test_only_the_end_of_a_big_file_is_read_and_a_torn_row_is_left_out(run: RunFolder) -> None:
    path = run.path / ROLLOUTS
    whole = json.dumps(ROW) + "\n"
    with path.open("w") as file:
        file.write(whole * 20_000)
        file.write(json.dumps({**ROW, "step": 8}) + "\n" + whole[:40])
    found = last_rollouts(run.path, 10**9)
    assert 100 < len(found) < 5000
    assert {one.step for one in found[:-1]} == {7}
    assert found[-1].step == 8
    with path.open("w") as file:
        file.write(json.dumps({**ROW, "prompt": "x" * 10**6}))  # One row is more than is read.
    assert last_rollouts(run.path, 10) == []
    path.write_text(json.dumps({**ROW, "prompt": "x" * 100_000}) + "\n")
    assert len(last_rollouts(run.path, 10)[0].prompt) < 1000


BAD = '</script><script>alert("x")</script>\x1b[2J\ud800'


@pytest.mark.parametrize("value", [None, True, [1], {"a": 1}, BAD, float("nan"), 10**400, -1.5])
def test_rows_of_a_stranger_steer_neither_page_nor_terminal(run: RunFolder, value: Any) -> None:
    rows = [dict.fromkeys(ROW, value), *({**ROW, key: value} for key in ROW)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (run.path / ROLLOUTS).write_text(lines + '[1]\n"x"\n')
    assert len(last_rollouts(run.path, 100)) == len(rows)
    assert "\x1b" not in shown(run)
    page = (run.path / "report.html").read_text()
    assert 'alert("x")' not in page
    assert json.dumps(run_data(run), allow_nan=False)


def test_a_link_or_a_pipe_has_no_samples(run: RunFolder, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(json.dumps({**ROW, "prompt": "root:secret"}) + "\n")
    (run.path / ROLLOUTS).symlink_to(secret)
    assert last_rollouts(run.path, 10) == []
    write_report(run)
    assert "root:secret" not in (run.path / "report.html").read_text()
    (run.path / ROLLOUTS).unlink()
    os.mkfifo(run.path / ROLLOUTS)
    assert last_rollouts(run.path, 10) == []


def test_an_edited_reward_is_a_mark_on_the_curve(run: RunFolder) -> None:
    RowFile(run.path / "metrics.jsonl").add({"step": 4, "time": 10.0, "reward": 0.5})
    RowFile(run.path / "events.jsonl").add(
        {"time": 11.0, "kind": "reward", "text": "the reward has changed from step 5: drop",
         "step": 5, "generation": 3}
    )  # fmt: skip
    marks = run_data(run)["story"]["marks"]
    assert [(one["step"], one["kind"], one["generation"]) for one in marks] == [(5, "edit", 3)]
