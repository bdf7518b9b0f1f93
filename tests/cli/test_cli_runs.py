"""``monarch runs`` and ``monarch sweep``: what was run, and several at once."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

import pytest

from monarch.cli.run.run_target import RunTarget
from monarch.cli.runs.runs import take
from monarch.cli.sweep.search import best_of, choices_of, label_of, space_of
from monarch.cli.sweep.sweep import Slot, slots_of
from monarch.errors import JobError
from monarch.runs.record.folder import RunFolder, find_run, new_run, runs_in, steps_of
from monarch.runs.record.rows import EVENTS
from tests.cli.runs_folder import RunsFolder, add_row, two_runs
from tests.support import Program, small_files, wait_for


@pytest.fixture
def folder(tmp_path: Path) -> RunsFolder:
    return two_runs(tmp_path)


def test_ls_lists_all_and_the_last_at_the_end(
    folder: RunsFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [line.split() for line in folder.here(monkeypatch, "runs", "ls").splitlines()]
    assert [row[1:4] for row in rows] == [
        ["status", "step", "loss"], ["finished", "3/3", "1"], ["failed", "2/3", "2.5"],
    ]  # fmt: skip
    assert [row[0] for row in rows[1:]] == [path.name for path in folder.runs]


def test_show_tells_the_story_and_writes_the_report(
    folder: RunsFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = folder.here(monkeypatch, "runs", "show").splitlines()
    name = folder.runs[-1].name
    assert said[0] == f"{name}: failed"
    assert "  steps: 2 of 3" in said
    assert "  deaths and hangs: 1" in said
    assert any("rank 1 died <of> it" in line for line in said)
    assert said[-1] == f"runs/{name}/report.html"
    report = (folder.runs[-1] / "report.html").read_text()
    assert "rank 1 died \\u003cof\\u003e it" in report
    assert "<of>" not in report


def test_compare_shows_what_differs(folder: RunsFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [path.name for path in folder.runs]
    rows = [
        line.split() for line in folder.here(monkeypatch, "runs", "compare", *names).split("\n")
    ]
    assert rows[:5] == [
        names, ["rate", "0.1", "0.2"], ["status", "finished", "failed"], ["step", "3", "2"],
        ["loss", "1", "2.5"],
    ]  # fmt: skip


@pytest.mark.parametrize("text", [None, "size = ["])
def test_what_is_torn_is_shown_as_far_as_it_goes(
    folder: RunsFolder, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    config = folder.runs[1] / "config.toml"
    config.unlink() if text is None else config.write_text(text)
    first, second = (run.name for run in folder.runs)
    said = folder.here(monkeypatch, "runs", "compare", first, second)
    assert ["size", "8", "-"] in [line.split() for line in said.splitlines()]
    assert "2.5" in folder.here(monkeypatch, "runs", "show", second)
    with small_files(20):
        with pytest.raises(JobError, match=r"cannot write .*report.html: File too large"):
            folder.here(monkeypatch, "runs", "show", second)
        with pytest.raises(JobError, match=r"cannot write loss.svg: File too large"):
            folder.here(monkeypatch, "runs", "plot", "--svg", "loss.svg")


def test_a_key_that_is_measured_too_is_told_apart(
    folder: RunsFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for run in runs_in(folder.path / "runs"):
        add_row(run, "metrics.jsonl", step=3, rate=0.05)
    names = [path.name for path in folder.runs]
    said = folder.here(monkeypatch, "runs", "compare", *names)
    rows = {line[: line.index("  ")]: line.split()[-2:] for line in said.splitlines()[1:-1]}
    assert rows["rate (config)"] == ["0.1", "0.2"]
    assert rows["rate"] == ["0.05", "0.05"]


def test_plot_draws_in_the_terminal_and_into_a_file(
    folder: RunsFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [path.name for path in folder.runs]
    said = folder.here(monkeypatch, "runs", "plot", *names).splitlines()
    assert len(said) == 2 * 9, "a head, six rows, an axis and its ends, for each"
    assert said[:2] == [f"{names[0]}  loss from 1 to 3", "3 ┤█"]
    assert (said[6], said[8].split()) == ("1 ┤██▁", ["step", "1", "3"])
    assert said[9:11] == [f"{names[1]}  loss from 2.5 to 3", "  3 ┤█"]
    folder.here(monkeypatch, "runs", "plot", *names, "--svg", "loss.svg")
    lines = ElementTree.parse(folder.path / "loss.svg").findall(".//{*}polyline")
    assert [len(line.attrib["points"].split()) for line in lines] == [3, 2]
    with pytest.raises(JobError, match="no run has 'los'; they have: loss"):
        folder.here(monkeypatch, "runs", "plot", "--metric", "los")


def test_a_plot_in_a_file_of_its_own_says_what_it_is_of(
    folder: RunsFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.here(monkeypatch, "runs", "plot", "--svg", "loss.svg")
    drawn = (folder.path / "loss.svg").read_text()
    assert f"loss of {folder.runs[-1].name}</text>" in drawn
    assert "<style>" in drawn
    assert ">step</text>" in drawn
    assert ">loss</text>" in drawn
    folder.here(monkeypatch, "runs", "plot", "--log", "--smooth", "2", "--svg", "loss.svg")
    drawn = (folder.path / "loss.svg").read_text()
    assert ">loss (log)</text>" in drawn
    said = folder.here(monkeypatch, "runs", "plot", "--smooth", "2").splitlines()
    assert said[0].endswith("loss from 2.75 to 3")
    assert said[6] == "2.75 ┤█▁"


def test_the_best_of_a_sweep_is_named(folder: RunsFolder) -> None:
    found = [RunFolder(path) for path in folder.runs]
    assert best_of(found) == f"best loss (lowest): 1, of {folder.runs[0].name}"
    assert best_of(found[:1]) == ""
    add_row(found[1], "metrics.jsonl", step=3, num_steps=3, time=9.0, loss=float("nan"))
    assert best_of(found) == ""


def test_a_run_is_found_by_what_one_would_call_it(folder: RunsFolder) -> None:
    base = folder.path / "runs"
    first, second = (run.name for run in runs_in(base))
    assert find_run("latest", base).name == second
    assert find_run(first, base).name == first
    assert find_run("count", base).name == second
    assert find_run(str(base / first)).name == first
    with pytest.raises(JobError, match=f"there is no run 'other' in .*{second}"):
        find_run("other", base)


def test_how_a_run_stands_is_told_by_its_last_event_and_its_program(tmp_path: Path) -> None:
    from monarch.runtime.ends.process_start import process_start

    run = new_run("one", tmp_path)
    assert run.status == "empty"
    pid = os.getpid()
    add_row(run, "events.jsonl", time=1.0, kind="begun", text="", pid=pid, started=0)
    assert run.status == "killed", "another process has its pid by now"
    add_row(
        run, "events.jsonl", time=2.0, kind="begun", text="", pid=pid, started=process_start(pid)
    )
    assert run.status == "running"
    add_row(run, "events.jsonl", time=3.0, kind="saved", text="")
    assert run.status == "running"
    add_row(run, "events.jsonl", time=4.0, kind="ended", text="", status="stopped")
    assert run.status == "stopped"
    with open(run.path / "events.jsonl", "a") as file:
        file.write('{"kind": "begu')
    assert run.status == "stopped", "a line that was cut short says nothing"


def test_runs_that_begin_in_one_second_have_folders_of_their_own(tmp_path: Path) -> None:
    assert len({new_run("one", tmp_path).path for _ in range(5)}) == 5


def test_steps_that_were_done_again_count_once() -> None:
    rows = [
        {"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.0}, {"step": 3, "loss": 1.0},
        {"step": 3, "accuracy": 0.5}, {"step": 2, "loss": 2.1}, {"step": 2, "accuracy": 0.6},
    ]  # fmt: skip
    assert steps_of(rows) == [
        {"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.1, "accuracy": 0.6},
    ]  # fmt: skip


# Sweeps


@dataclass
class Data:
    seed: int = 1


@dataclass
class Config:
    rate: float = 1.0
    name: str = ""
    betas: tuple[float, float] = (0.9, 0.95)
    data: Data = field(default_factory=Data)


def test_values_are_combined_and_lists_are_left_alone() -> None:
    assert choices_of(space_of(Config, ["rate=1,2", "betas=0.1,0.2", "data.seed=3, 4"])) == [
        ("rate=1", "betas=0.1,0.2", "data.seed=3"),
        ("rate=1", "betas=0.1,0.2", "data.seed=4"),
        ("rate=2", "betas=0.1,0.2", "data.seed=3"),
        ("rate=2", "betas=0.1,0.2", "data.seed=4"),
    ]
    assert choices_of(space_of(Config, ['name="a,b"'])) == [('name="a,b"',)]
    assert label_of(("rate=1", "seed=3"), ("rate=1,2", "seed=3")) == "rate=1"
    assert label_of(("rate=1",), ("rate=1",)) == "rate=1"


def test_slices_are_hosts_or_else_procs_of_hosts() -> None:
    four_hosts = RunTarget(None, "hosts", 4, 2)
    assert slots_of(four_hosts, 2) == [Slot(0, 2, 2), Slot(2, 2, 2)]
    assert slots_of(four_hosts, 8) == [Slot(index // 2, 1, 1) for index in range(8)]
    assert slots_of(RunTarget(None, "hosts", 1, 4), 2) == [Slot(0, 1, 2), Slot(0, 1, 2)]
    with pytest.raises(JobError, match="3 slices need 3 procs on each host, and there are 2"):
        slots_of(RunTarget(None, "hosts", 1, 2), 3)


def test_a_sweep_makes_a_run_of_each_choice_and_compares_them(folder: RunsFolder) -> None:
    said = folder.monarch(
        "sweep", "counting.py", "amount=1,2", "num_steps=3", "--procs", "2", "--slices", "2"
    )
    assert "2 runs of counting.py, 2 at a time, on this machine alone: 1 host x 2 procs" in said
    assert "[amount=2] counted to 3" in said
    assert re.search(r"\] finished: 1 of 2\n(.*\n)*\[amount=.\] finished: 2 of 2\n", said)
    made = folder.runs[2:]
    assert len(made) == 2
    totals = {
        (path / "command").read_text(): [row["total"] for row in RunFolder(path).metrics()]
        for path in made
    }
    assert totals == {
        "monarch run counting.py amount=1 num_steps=3\n": [1.0] * 3,
        "monarch run counting.py amount=2 num_steps=3\n": [2.0] * 3,
    }
    assert ["status", "finished", "finished"] in [line.split() for line in said.splitlines()]
    assert all(RunFolder(path).status == "finished" for path in made)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_sweep_that_is_stopped_compares_what_has_begun(
    folder: RunsFolder, command: Callable[..., Program], number: signal.Signals
) -> None:
    there = set(folder.path.glob("runs/counting-*"))
    sweeping = command("sweep", "counting.py", "amount=1,2,3", "wait_for=go")
    sweeping.line("3 runs of")
    wait_for(lambda: len(folder.runs) == 3 and len(folder.rows("metrics.jsonl")) == 2, 60.0)
    sweeping.send_signal(number)
    assert sweeping.wait() == 130, sweeping.story()
    assert "Traceback" not in sweeping.story()
    assert ["status", "stopped"] in [line.split() for line in sweeping.lines]
    assert {*folder.path.glob("runs/counting-*")} - there == {folder.runs[2]}


def test_a_run_whose_ranks_have_come_apart_is_answered(
    folder: RunsFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunFolder(folder.runs[0])
    with pytest.raises(JobError, match="does not ask for that: it is finished"):
        take(str(run.path), checkpoint=False)
    monkeypatch.setattr(RunFolder, "status", "held")
    with pytest.raises(JobError, match="does not ask for that"):
        take(str(run.path), checkpoint=False)  # Held for code that fails.
    add_row(run, EVENTS, kind="held", text="apart", choices=["c", "t"])
    for checkpoint, key in (False, "t"), (True, "c"):
        take(str(run.path), checkpoint=checkpoint)
        assert run.take_answer() == key
    assert run.take_answer() == ""
