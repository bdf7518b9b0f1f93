"""How the end of a run is told: why, the last checkpoint, the way on, and the folder."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from monarch.config_file import ConfigError
from monarch.runs.end_text import end_text
from monarch.runs.record.folder import RunFolder, find_unfinished
from monarch.runs.record.record import Record
from monarch.runs.recover.allocation import AllocationLost
from monarch.runtime.ends.process_start import process_start

COMMAND = ["monarch", "run", "ddp", "rate=1e-3"]


class Silent:
    def message(self, text: str) -> None: ...

    def metrics(self, step: int, num_steps: int, values: object) -> None: ...

    def phase(self, text: str) -> None: ...

    def saved(self, step: int) -> None: ...


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Record:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs/ddp-1"
    folder.mkdir(parents=True)
    (folder / "command").write_text(" ".join(COMMAND) + "\n")
    made = Record(folder, Silent())
    made.note("begun", "begun", pid=os.getpid(), started=process_start(os.getpid()))
    return made


def train(record: Record, step: int, *, saves: bool = True) -> None:
    record.metrics(step, 9, {"loss": 1.0})
    if saves:
        path = record.checkpoint_dir / f"step-{step}.pt"
        path.touch()
        record.event("saved", "saved", step=step, path=str(path))


def end(record: Record, status: str, **data: object) -> RunFolder:
    record.note("ended", status, status=status, **data)
    return RunFolder(Path("runs/ddp-1"))


def test_a_run_that_is_finished(record: Record) -> None:
    train(record, 9)
    assert end_text(end(record, "finished")).splitlines() == [
        "finished after step 9",
        "the last checkpoint is runs/ddp-1/checkpoints/step-9.pt, after step 9",
        "all about it is in runs/ddp-1",
    ]


def test_a_run_that_does_not_report_every_step_says_its_last_one(record: Record) -> None:
    train(record, 8, saves=False)
    (record.checkpoint_dir / "step-9.pt").touch()
    record.event("saved", "saved", step=9, path=str(record.checkpoint_dir / "step-9.pt"))
    assert end_text(end(record, "finished")).startswith("finished after step 9\n")


def test_a_run_that_was_stopped_says_the_newest_checkpoint_that_is_there(record: Record) -> None:
    train(record, 3)
    train(record, 4)
    (record.checkpoint_dir / "step-4.pt").unlink()
    train(record, 5, saves=False)
    assert end_text(end(record, "stopped")).splitlines() == [
        "stopped after step 5",
        "the last checkpoint is runs/ddp-1/checkpoints/step-3.pt, after step 3",
        "steps 4 to 5 are in no checkpoint, and will be made again",
        "to go on: monarch run ddp rate=1e-3",
        "all about it is in runs/ddp-1",
    ]


def test_a_checkpoint_on_the_disk_of_its_host_is_one(record: Record) -> None:
    record.metrics(3, 9, {"loss": 1.0})
    record.event("saved", "saved", step=3, path="/scratch/of/a/host/step-3.pt")
    run = end(record, "failed")
    assert end_text(run, "rank 1 died").splitlines() == [
        "rank 1 died",
        "the last checkpoint is /scratch/of/a/host/step-3.pt on the disk of its host, after step 3",
        "to go on: monarch run ddp rate=1e-3",
        "all about it is in runs/ddp-1",
    ]
    assert end_text(run, "rank 1 died", width=60).splitlines()[1:3] == [
        "the last checkpoint, after step 3, is on the disk of its host",
        "  /scratch/of/a/host/step-3.pt",
    ]
    assert find_unfinished(Path("runs"), "ddp", COMMAND) is not None


def test_a_run_whose_allocation_was_ended_wants_another_first(record: Record) -> None:
    train(record, 3)
    lost = AllocationLost("the allocation was ended by monarch kill (pid 7, user ann)")
    assert end_text(end(record, "failed", is_lost=True), lost).splitlines() == [
        "the allocation was ended by monarch kill (pid 7, user ann)",
        "the last checkpoint is runs/ddp-1/checkpoints/step-3.pt, after step 3",
        "to go on: monarch apply, then monarch run ddp rate=1e-3",
        "all about it is in runs/ddp-1",
    ]


def test_the_command_to_go_on_can_be_copied_from_a_narrow_terminal(record: Record) -> None:
    command = ["monarch", "run", "ddp", "--config", "configs/an experiment.toml", "rate=1e-3"]
    (record.folder / "command").write_text(shlex.join(command) + "\n")
    train(record, 3)
    lines = end_text(end(record, "stopped"), width=40).splitlines()
    first = lines.index("to go on:")
    rows = lines[first + 1 : -1]
    assert len(rows) == 3
    assert all(len(row) <= 40 for row in rows)
    assert shlex.split("\n".join(rows).replace("\\\n", "")) == command  # as a shell reads it


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_run_without_a_checkpoint_begins_again(record: Record, is_lost: bool) -> None:
    told = end_text(end(record, "failed", is_lost=is_lost), ConfigError("is wrong", key="rate"))
    assert told.splitlines() == [
        "'rate' is wrong",
        "there is no checkpoint yet",
        "to begin again: monarch run ddp rate=1e-3",
        "all about it is in runs/ddp-1",
    ]
    # In its folder, where nothing was wrong with it.
    found = find_unfinished(Path("runs"), "ddp", COMMAND)
    assert (found is not None) == is_lost


def test_a_run_that_begins_again_is_told_from_one_that_trains(record: Record) -> None:
    run = RunFolder(record.folder)
    train(record, 3)
    assert not run.is_restarting
    record.note("died", "rank 1 died")
    assert run.is_restarting
    train(record, 4)
    assert not run.is_restarting
    record.note("died", "rank 1 died")
    end(record, "failed")
    assert not run.is_restarting


def test_a_path_is_not_broken_in_a_narrow_terminal(record: Record) -> None:
    train(record, 3)
    lines = end_text(end(record, "stopped"), width=60).splitlines()
    assert lines[1:3] == [
        "the last checkpoint, after step 3, is",
        "  runs/ddp-1/checkpoints/step-3.pt",
    ]


def test_a_run_of_dev_goes_on_with_dev_which_brings_hosts_up(record: Record) -> None:
    train(record, 3)
    lost = AllocationLost("the allocation was ended by monarch kill (pid 7, user ann)")
    told = end_text(end(record, "failed", is_lost=True), lost, is_dev=True)
    assert "\nto go on: monarch dev ddp rate=1e-3\n" in told
