from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import pytest

from monarch.config_file import LoadedConfig
from monarch.errors import JobError
from monarch.runs.folder import RunFolder, new_run
from monarch.runs.lines import LineDisplay
from monarch.runs.record import EVENTS, METRICS, Record
from monarch.runs.report import worth_telling
from monarch.runs.rows import RowFile, read_rows
from monarch.runs.session import RunSession


def test_rows_are_whole_behind_half_of_one(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"step": 1}\n{"ste')
    for step in (2, 3):
        RowFile(path).add({"step": step})
    assert [row["step"] for row in read_rows(path)] == [1, 2, 3]


def test_a_full_disk_is_told_once_and_ends_nothing(tmp_path: Path) -> None:
    shown = io.StringIO()
    record = Record(tmp_path, LineDisplay(shown))
    metrics = tmp_path / METRICS
    for _ in range(2):
        metrics.symlink_to("/dev/full")
        for step in (1, 2):
            record.metrics(step, 4, {"loss": 1.0})
        metrics.unlink()
        record.metrics(3, 4, {"loss": 0.5})
        assert [row["step"] for row in read_rows(metrics)] == [3]
        metrics.unlink()
    line = f"cannot write {metrics}: No space left on device; the run goes on without\n"
    assert shown.getvalue().count(line) == 2  # once each time


def test_checkpoints_are_written_down_and_only_the_last_is_told(tmp_path: Path) -> None:
    record = Record(tmp_path, LineDisplay(shown := io.StringIO()))
    record.event("begun", "begun")
    for step in (10, 20):
        record.event("saved", f"saved step-{step}", step=step)
    record.event("died", "rank 1 died")
    for step in (20, 30, 40):
        record.event("saved", f"saved step-{step}", step=step)
    record.event("unsaved", "the disk is full")
    events = read_rows(tmp_path / EVENTS)
    assert [event["step"] for event in events if event["kind"] == "saved"] == [10, 20, 20, 30, 40]
    told = [event["text"] for event in worth_telling(events)]
    assert told == ["begun", "saved step-20", "rank 1 died", "the disk is full", "saved step-40"]
    assert "saved step 40\n" in shown.getvalue()


@dataclass
class Config:
    size: int = 1


def a_session(folder: Path, shown: io.StringIO) -> RunSession:
    return RunSession(
        RunFolder(folder), LineDisplay(shown), LoadedConfig(Config(), {}), ["monarch"]
    )


def test_a_run_whose_folder_cannot_be_made_says_so(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(JobError, match=r"cannot write the run's folder in .*runs: File exists"):
        new_run("ddp", tmp_path / "runs")
    with pytest.raises(JobError, match=r"cannot write the run's folder in .*gone"):
        a_session(tmp_path / "runs/gone", io.StringIO())


def test_a_report_that_cannot_be_written_is_not_the_end_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = io.StringIO()
    session = a_session(tmp_path, shown)
    monkeypatch.setattr(RunSession, "_begin", lambda self: None)
    with session:
        (tmp_path / "report.html").mkdir()  # in the way
    assert "cannot write" in shown.getvalue()
    assert not list(tmp_path.glob(".report*"))


def test_a_folder_is_run_by_one_program_at_a_time(tmp_path: Path) -> None:
    shown = io.StringIO()
    with a_session(tmp_path, shown):
        with (
            pytest.raises(JobError, match=r"is being run by another program"),
            a_session(tmp_path, shown),
        ):
            pass
        assert len(read_rows(tmp_path / EVENTS)) == 1
    with a_session(tmp_path, shown):
        pass
