from __future__ import annotations

import io
import json
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from monarch.config_file import ConfigError, LoadedConfig
from monarch.errors import JobError
from monarch.observe.json_rows import json_rows
from monarch.runs.record.folder import RunFolder, new_run
from monarch.runs.record.loggers import check_loggers
from monarch.runs.record.record import EVENTS, METRICS, LineDisplay, Record
from monarch.runs.record.rows import RowFile
from monarch.runs.record.summary import figures, worth_telling
from monarch.runs.session import RunLock, RunSession
from tests.support import open_files


def test_rows_are_whole_behind_half_of_one(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"step": 1}\n{"ste')
    for step in (2, 3):
        RowFile(path).add({"step": step})
    assert [row["step"] for row in json_rows(path)] == [1, 2, 3]


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
        assert [row["step"] for row in json_rows(metrics)] == [3]
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
    events = json_rows(tmp_path / EVENTS)
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


def test_a_push_that_replaces_ranks_says_what_that_costs(tmp_path: Path) -> None:
    record = Record(tmp_path, LineDisplay(io.StringIO()))
    record.metrics(7, 100, {})
    record.replacing(3, 1)
    record.event("saved", "saved step-7", step=7)
    record.replacing(4, 2)
    record.metrics(40, 100, {})
    record.replacing(5, 2)
    told = [one["text"] for one in json_rows(tmp_path / EVENTS) if one["kind"] == "replacing"]
    assert told == [
        "generation 3 needs a new process: nothing was saved yet, and what was learned is lost",
        "generation 4 needs 2 new processes: the last checkpoint is of step 7",
        "generation 5 needs 2 new processes: the last checkpoint is of step 7, and 33 steps"
        " since then are made again",
    ]


def test_what_keeps_its_code_by_design_is_told_once_and_old_code_each_time(tmp_path: Path) -> None:
    record = Record(tmp_path, LineDisplay(shown := io.StringIO()))
    loop = "`main` is still running code of generation 1, in which it ends"
    for generation in (2, 3):
        record.audited(generation, [], [loop])
    record.audited(4, ["1 live function runs the code of generation 1"], [loop])
    record.audited(5, ["1 live function runs the code of generation 1"], [loop])
    record.audited(6, [], [])
    record.audited(7, [], [loop])
    record.audited(8, [], ["something else"], is_told=False)
    lines = shown.getvalue().splitlines()
    assert [line.partition(":")[0][-1] for line in lines] == ["2", "4", "5", "7"]
    kinds = [json.loads(row)["kind"] for row in (tmp_path / EVENTS).read_text().splitlines()]
    assert kinds == ["audit"] * 6


def test_a_script_does_not_say_how_many_steps_it_makes() -> None:
    assert figures([{"step": 5, "num_steps": 0}], []) == {"steps": "5"}
    assert figures([{"step": 5, "num_steps": 9}], []) == {"steps": "5 of 9"}


def test_a_person_who_stops_a_run_reads_that_it_was_stopped(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), a_session(tmp_path / "run", io.StringIO()):
        raise KeyboardInterrupt
    rows = (tmp_path / "run" / EVENTS).read_text().splitlines()
    assert json.loads(rows[-1])["text"] == "stopped"


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


def test_ctrl_c_in_the_end_of_a_run_leaves_its_folder_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*about: object) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("monarch.runs.session.write_report", interrupt)
    session = a_session(tmp_path, io.StringIO())
    with pytest.raises(KeyboardInterrupt), session:
        pass
    RunLock(tmp_path).close()
    assert session.folder.path  # It is referred to until here: no finalizer has given it free.


def test_a_folder_is_run_by_one_program_at_a_time(tmp_path: Path) -> None:
    shown = io.StringIO()
    with a_session(tmp_path, shown):
        with (
            pytest.raises(JobError, match=r"is being run by another program"),
            a_session(tmp_path, shown),
        ):
            pass
        assert len(json_rows(tmp_path / EVENTS)) == 1
    with a_session(tmp_path, shown):
        pass


def test_what_is_reported_again_is_marked(tmp_path: Path) -> None:
    def rows() -> list[dict[str, Any]]:
        return json_rows(tmp_path / "metrics.jsonl")

    record = Record(tmp_path, LineDisplay(io.StringIO()))
    for step in (1, 2, 3):
        record.metrics(step, 9, {"loss": 1.0})
    record.metrics(2, 9, {"held_out_loss": 1.0})
    record.metrics(3, 9, {"loss": 2.0})
    assert [row.get("again", False) for row in rows()] == [False, False, False, False, True]
    resumed = Record(tmp_path, LineDisplay(io.StringIO()))
    resumed.metrics(3, 9, {"loss": 2.0})
    resumed.metrics(4, 9, {"loss": 2.0})
    once = [row["step"] for row in rows() if "loss" in row and not row.get("again")]
    assert once == [1, 2, 3, 4]


def test_metrics_go_to_tensorboard_where_it_is_wanted(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    library = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="tensorboard is not installed",
    )
    record = Record(tmp_path, LineDisplay(io.StringIO()))
    record.log_to(["tensorboard"])
    record.metrics(1, 2, {"loss": 3.0})
    record.metrics(2, 2, {"loss": 2.0})
    record.close()
    events = library.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(one.step, one.value) for one in events.Scalars("loss")] == [(1, 3.0), (2, 2.0)]


def test_a_logger_that_is_not_there_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="knows no 'tensorbord'; there are tensorboard, wandb"):
        check_loggers(["tensorbord"])
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=r"not installed: pip install 'monarch-loop\[loggers\]'"):
        Record(tmp_path, LineDisplay(io.StringIO())).log_to(["wandb"])


def test_a_lock_that_is_interrupted_as_it_is_taken_leaves_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really_open = os.open

    def open_interrupted(*arguments: Any) -> int:
        descriptor = really_open(*arguments)
        signal.raise_signal(signal.SIGINT)
        return descriptor

    monkeypatch.setattr(os, "open", open_interrupted)
    with pytest.raises(KeyboardInterrupt):
        RunLock(tmp_path)
    monkeypatch.undo()
    RunLock(tmp_path).close()  # What was left open would hold it still.
    assert str(tmp_path) not in open_files()
