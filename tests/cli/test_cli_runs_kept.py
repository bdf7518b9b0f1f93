"""``monarch runs ls``, ``rm`` and ``logs``: the runs that are kept, and what they take and say."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from monarch.cli.terminal.tables import in_columns
from monarch.errors import JobError
from monarch.runs.record.folder import RunFolder, new_run
from monarch.runtime.ends.process_start import process_start
from tests.cli.runs_folder import RunsFolder, add_row, two_runs


@pytest.fixture
def folder(tmp_path: Path) -> RunsFolder:
    return two_runs(tmp_path)


def test_ls_tells_what_each_takes_and_quiet_only_the_names(
    folder: RunsFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder.runs[0] / "weights.pt").write_bytes(bytes(2_000_000))
    header, first, second = folder.here(monkeypatch, "runs", "ls").splitlines()
    assert header.endswith("  size")
    assert first.endswith("  2.0 MB")
    assert second.endswith(" B")
    names = [path.name for path in folder.runs]
    assert folder.here(monkeypatch, "runs", "ls", "-q").splitlines() == names
    assert folder.here(monkeypatch, "-q", "runs", "ls").splitlines() == names
    with pytest.raises(click.UsageError, match="choose one of --quiet and --verbose"):
        folder.here(monkeypatch, "-q", "runs", "ls", "-v")


def test_what_is_too_wide_goes_on_below() -> None:
    rows = [("", "first", "second", "third"), ("loss", "1", "22222222", "3")]
    assert list(in_columns(rows, 21)) == [
        "      first  second", "loss  1      22222222", "", "      third", "loss  3",
    ]  # fmt: skip
    assert next(in_columns(rows, 3)) == "      first"
    assert list(in_columns(rows)) == ["      first  second    third", "loss  1      22222222  3"]


# Taking them away


def test_rm_takes_runs_away_and_the_last_one_left_is_the_latest(
    folder: RunsFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = folder.runs
    asked: list[str] = []

    def confirm(text: str, abort: bool) -> bool:
        asked.append(text)
        return abort

    monkeypatch.setattr("monarch.cli.terminal.confirm.is_somebody_there", lambda: True)
    monkeypatch.setattr(click, "confirm", confirm)
    said = folder.here(monkeypatch, "runs", "rm", second.name).splitlines()
    assert said[0].startswith(f"  {second.name}  failed, ")
    assert asked[0].startswith("take away 1 run, ")
    assert folder.runs == [first]
    assert (folder.path / "runs/latest").resolve() == first
    assert folder.here(monkeypatch, "runs", "rm", "-q", "--yes", f"runs/{first.name}") == ""
    assert folder.runs == []
    assert not (folder.path / "runs/latest").is_symlink()


def test_rm_touches_nothing_without_a_yes(
    folder: RunsFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = folder.runs
    names = [path.name for path in both]
    with pytest.raises(JobError, match="nobody can be asked here, so say --yes"):
        folder.here(monkeypatch, "runs", "rm", names[0])
    with pytest.raises(JobError, match=f"count may be {names[0]} or {names[1]}: say which"):
        folder.here(monkeypatch, "runs", "rm", "--yes", "count")
    with pytest.raises(JobError, match="there is no run 'other'"):
        folder.here(monkeypatch, "runs", "rm", "--yes", names[0], "other")
    elsewhere = new_run("one", folder.path / "elsewhere")
    elsewhere.write_text("command", "monarch run one\n")
    with pytest.raises(JobError, match=r"elsewhere/.* is no run of this folder"):
        folder.here(monkeypatch, "runs", "rm", "--yes", str(elsewhere.path))
    monkeypatch.setattr("monarch.cli.terminal.confirm.is_somebody_there", lambda: True)
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    with pytest.raises(click.Abort):
        folder.here(monkeypatch, "runs", "rm", names[0])
    assert folder.runs == both


def test_rm_takes_no_run_that_goes_on(folder: RunsFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = folder.runs
    pid = os.getpid()
    add_row(
        RunFolder(second), "events.jsonl", time=200.0, kind="begun", text="",
        pid=pid, started=process_start(pid),
    )  # fmt: skip
    with pytest.raises(JobError, match=f"{second.name} is going on, so nothing was taken away"):
        folder.here(monkeypatch, "runs", "rm", "--yes", first.name, second.name)
    assert folder.runs == [first, second]


# What ranks printed


def printed(folder: RunsFolder, **lines: str) -> None:
    logs = folder.runs[-1] / "logs"
    logs.mkdir(exist_ok=True)
    for who, text in lines.items():
        with open(logs / f"{who.replace('_', '-')}.log", "a") as file:
            file.write(text)


def test_logs_shows_what_ranks_printed(folder: RunsFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(JobError, match="nothing was printed in runs/counting"):
        folder.here(monkeypatch, "runs", "logs")
    printed(
        folder, rank10="ten\n", rank2="one\ntwo\x0cstill two\nthree", eval_rank2="seen\n\n"
    )  # fmt: skip
    assert folder.here(monkeypatch, "runs", "logs") == (
        "rank2 | one\nrank2 | two\x0cstill two\nrank2 | three\nrank10 | ten\n"
        "eval-rank2 | seen\neval-rank2 | \n"
    )
    assert folder.here(monkeypatch, "runs", "logs", "--rank", "10") == "ten\n"
    assert folder.here(monkeypatch, "runs", "logs", "--tail", "1", folder.runs[-1].name) == (
        "rank2 | three\nrank10 | ten\neval-rank2 | \n"
    )
    with pytest.raises(JobError, match="nothing was printed by rank 7 in"):
        folder.here(monkeypatch, "runs", "logs", "--rank", "7")


def going_on(monkeypatch: pytest.MonkeyPatch, *steps: Callable[[], bool]) -> None:
    """The run goes on as long as these say so, each when it is looked at once more."""
    left = iter(steps)
    pid = property(lambda run: os.getpid() if next(left)() else None)
    monkeypatch.setattr(RunFolder, "running_pid", pid)


def test_logs_follow_until_the_run_ends(
    folder: RunsFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def goes_on() -> bool:
        printed(folder, rank0="o\n")
        return True

    def is_over() -> bool:
        printed(folder, rank0="th", rank1="other\n")
        return False

    printed(folder, rank0="one\ntw")
    going_on(monkeypatch, lambda: True, goes_on, is_over)
    said = folder.here(monkeypatch, "runs", "logs", "-f")
    assert said == "rank0 | one\nrank0 | two\nrank0 | th\nrank1 | other\n"


def test_ctrl_c_ends_what_follows_without_a_word(
    folder: RunsFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pressed() -> bool:
        raise KeyboardInterrupt

    printed(folder, rank0="one\n")
    going_on(monkeypatch, lambda: True, pressed)
    assert folder.told(monkeypatch, "runs", "logs", "-f", status=130) == "rank0 | one\n"
