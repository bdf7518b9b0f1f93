"""A run folder that came from a stranger: what is read of it, and by whom."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from monarch.cli.run.run import recipe_of
from monarch.cli.runs.runs import comparison
from monarch.errors import JobError
from monarch.observe.json_rows import json_rows
from monarch.observe.kept_files import read_kept
from monarch.observe.query import TELEMETRY, kept_rows
from monarch.runs.page.report import write_report
from monarch.runs.page.run_data import run_data
from monarch.runs.record.folder import RunFolder, new_run, read_json
from monarch.runs.record.logs import PrintedLines, RunLogs
from monarch.runs.record.rows import RowFile
from monarch.view.run_view import log_lines, run_summary
from monarch.wire.message import Log

SECRET = "root:secret"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "shadow"
    path.write_text(f'{{"{SECRET}": "{SECRET}"}}\n')
    return path


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    path = tmp_path / "runs" / "ddp-20260101-000000"
    (path / "logs").mkdir(parents=True)
    (path / "command").write_text("monarch run ddp\n")
    return RunFolder(path)


def test_a_log_that_is_a_link_is_not_shown(run: RunFolder, secret: Path) -> None:
    (run.path / "logs" / "rank0.log").write_text("mine\n")
    (run.path / "logs" / "rank1.log").symlink_to(secret)
    (run.path / "logs" / "rank2.log").symlink_to("rank0.log")
    lines = PrintedLines(run.path / "logs").take(is_over=True)
    assert [(line.who, line.text) for line in lines] == [("rank0", "mine"), ("rank2", "mine")]
    assert log_lines(run) == {"rank0": ["mine"], "rank2": ["mine"]}


def test_a_folder_of_logs_that_is_a_link_is_not_shown(run: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "rank0.log").write_text(SECRET)
    (run.path / "logs").rmdir()
    (run.path / "logs").symlink_to(tmp_path / "elsewhere")
    assert PrintedLines(run.path / "logs").take(is_over=True) == []
    assert log_lines(run) == {}


@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "events.jsonl", "env.json", "origin.json", "command", "config.toml"]
)
def test_a_file_that_is_a_link_says_nothing(run: RunFolder, secret: Path, name: str) -> None:
    (run.path / name).unlink(missing_ok=True)
    (run.path / name).symlink_to(secret)
    told = [
        run.metrics(), run.events(), run.environment(), run.origins(), run.command, run.recipe,
        run.config_text, run_summary(run), run_data(run), comparison([run]),
    ]  # fmt: skip
    assert SECRET not in repr(told)
    write_report(run)
    assert SECRET not in (run.path / "report.html").read_text()


def test_a_config_that_is_a_link_is_refused_with_words(run: RunFolder, secret: Path) -> None:
    (run.path / "config.toml").symlink_to(secret)
    with pytest.raises(JobError, match="leads out of the run's folder"):
        _ = run.config_path


def test_telemetry_that_is_a_link_is_left_out(run: RunFolder, secret: Path) -> None:
    (run.path / TELEMETRY).mkdir()
    (run.path / TELEMETRY / "x.jsonl.zst").symlink_to(secret)
    assert kept_rows([run.path]) == []


@pytest.mark.timeout(20)
def test_a_pipe_is_not_waited_for(run: RunFolder) -> None:
    os.mkfifo(run.path / "metrics.jsonl")
    os.mkfifo(run.path / "logs" / "rank0.log")
    assert run.metrics() == []
    assert log_lines(run) == {}
    with pytest.raises(OSError, match="no file"):
        read_kept(run.path / "metrics.jsonl")


def test_a_run_that_goes_on_writes_through_no_link(run: RunFolder, secret: Path) -> None:
    before = secret.read_text()
    (run.path / "metrics.jsonl").symlink_to(secret)
    (run.path / "logs" / "rank0.log").symlink_to(secret)
    with pytest.raises(OSError, match="leads out"):
        RowFile(run.path / "metrics.jsonl").add({"step": 1})
    logs = RunLogs(run.path / "logs", "ddp")
    logs.take(Log(uid="a", label="ddp 0", stream=1, host="h", path="/x/ddp/0.log"), b"line\n")
    logs.close()
    assert secret.read_text() == before


def test_numbers_of_any_size_can_be_read(run: RunFolder) -> None:
    huge = "9" * 400
    (run.path / "metrics.jsonl").write_text(
        f'{{"step": 1, "loss": 1.5, "big": {huge}, "time": {huge}, "num_steps": {huge}}}\n'
        f'{{"step": 2, "big": -{huge}, "longest": {"9" * 5000}}}\n'
        f'{{"step": {huge}}}\n{"[" * 100_000}\n'
    )
    (run.path / "events.jsonl").write_text(
        f'{{"time": {huge}, "kind": "begun", "pid": {huge}, "started": {huge}, "text": "x"}}\n'
    )
    (run.path / "env.json").write_text("[" * 100_000)
    assert [row["step"] for row in run.metrics()] == [1, 2]
    assert comparison([run, run])
    assert run.status == "killed"
    assert json.dumps([run_summary(run), run_data(run)])
    write_report(run)
    assert read_json(run.path / "env.json") == {}
    assert run._repr_html_()
    assert all(abs(row.get("time", 0)) < 1e11 for row in json_rows(run.path / "metrics.jsonl"))


@pytest.mark.parametrize("words", ["run ddp --config x", "monarch run --config x", "'", ""])
def test_a_command_that_is_none_is_named_as_what_is_wrong(run: RunFolder, words: str) -> None:
    (run.path / "command").write_text(words)
    with pytest.raises(JobError, match="does not say which recipe"):
        recipe_of(run)


def test_run_folders_are_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.umask(0o022)
    try:
        assert stat.S_IMODE(new_run("ddp", tmp_path / "runs").path.stat().st_mode) == 0o700
        monkeypatch.setenv("MONARCH_RUNS_MODE", "750")
        assert stat.S_IMODE(new_run("ddp", tmp_path / "runs").path.stat().st_mode) == 0o750
        monkeypatch.setenv("MONARCH_RUNS_MODE", "077")
        with pytest.raises(JobError, match="no mode"):
            new_run("ddp", tmp_path / "runs")
    finally:
        os.umask(before)
