"""``monarch run``: the folder it keeps, and how a run goes on that was left."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from monarch.cli.run.run import ways_taken
from monarch.config_file import ConfigError
from monarch.errors import JobError
from monarch.runs.record.folder import new_run
from tests.cli.command_folder import CommandFolder
from tests.cli.runs_folder import RunsFolder, add_row
from tests.support import Program, wait_for

from .conftest import RECIPE


@pytest.fixture
def folder(tmp_path: Path) -> RunsFolder:
    return RunsFolder(tmp_path)


def test_a_run_leaves_a_folder_that_says_all_about_it(folder: RunsFolder) -> None:
    folder.write("counting.toml", "amount = 3\n")
    said = folder.monarch(
        "run", "counting.py", "--config", "counting.toml", "num_steps=5",
        MONARCH_CONFIG_SIZE="16",
    )  # fmt: skip
    (run,) = folder.runs
    assert re.fullmatch(r"counting-\d{8}-\d{6}", run.name)
    assert (folder.path / "runs/latest").resolve() == run
    assert sorted(path.name for path in run.iterdir()) == [
        "checkpoints", "command", "config.toml", "env.json", "events.jsonl", "logs",
        "metrics.jsonl", "origin.json", "report.html", "telemetry",
    ]  # fmt: skip
    assert "counting.py on this machine alone: 1 host x 2 procs" in said
    # What the ranks print takes a way of its own, and may come late.
    own = [line for line in said.splitlines() if not re.match(r"\[?counter \d", line)]
    assert own[-3:] == [
        "counted to 5", "finished after step 5", f"all about it is in runs/{run.name}"
    ]  # fmt: skip
    assert shlex.split((run / "command").read_text()) == [
        "monarch", "run", "counting.py", "--config", "counting.toml", "num_steps=5",
    ]  # fmt: skip
    assert json.loads((run / "origin.json").read_text()) == {
        "num_steps": "num_steps=5", "amount": "counting.toml:1",
        "size": "MONARCH_CONFIG_SIZE=16", "fail_at": "default", "wait_for": "default",
    }  # fmt: skip
    assert "amount = 3.0  # counting.toml:1" in (run / "config.toml").read_text()
    assert json.loads((run / "env.json").read_text())["code_generation"] == 0
    assert [row["total"] for row in folder.rows("metrics.jsonl")] == [6.0] * 5
    assert folder.kinds() == ["begun", "first_step", "ended"]
    ended = folder.rows("events.jsonl")[-1]
    assert (ended["status"], ended["outcome"]) == ("finished", {"step": 5})
    for rank in range(2):
        assert (run / f"logs/rank{rank}.log").read_text() == "adding 3.0\n" * 5
    report = (run / "report.html").read_text()
    assert "finished" in report
    assert "uPlot=function" in report
    assert not re.search(r"(src|href)=.?(https?:|/)", report), "it needs nothing else"
    assert (folder.path / "runs/.gitignore").read_text() == "*\n"


def test_show_origin_and_plan_start_nothing(
    folder: RunsFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = folder.here(monkeypatch, "run", "counting.py", "--show-origin", "num_steps=5")
    assert said.splitlines()[:2] == ["num_steps = 5  # num_steps=5", "amount = 1.0  # default"]
    plan = folder.here(monkeypatch, "run", "counting.py", "--plan", "--procs", "4").splitlines()
    assert [re.split("  +", line) for line in plan] == [
        ["recipe", "counting.py, Counts, and can be stopped and resumed."],
        ["where", "this machine alone: 1 host x 4 procs"],
        ["mesh", "hosts: 1, procs: 4"],
        ["ranks", "4"],
        ["parameters", "8"],
    ]
    assert not (folder.path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "error", "expected"),
    [
        (["counting.py", "size=3"], ConfigError, "override 'size=3': 'size' cannot be shared"),
        (["counting.py", "amout=3"], ConfigError, "did you mean 'amount'?"),
        (["counting.py", "--config", "no.toml"], ConfigError, "no.toml: cannot read the config"),
        (["counting:Nothing"], JobError, "counting has no 'Nothing'"),
        (["counting:Config"], JobError, "a class needs `__init__(self, config: YourConfig)`"),
        (["counting.py", "--attach"], JobError, "start one with `monarch apply`"),
        (["--resume"], JobError, "there are no runs in runs"),
        ([], click.UsageError, "Missing argument 'RECIPE'"),
        (["counting.py", "--resume", "x", "--new"], click.UsageError, "give one of them"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_told_before_anything_begins(
    arguments: list[str],
    error: type[Exception],
    expected: str,
    folder: RunsFolder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(error) as caught:
        folder.here(monkeypatch, "run", *arguments)
    assert expected in str(caught.value)
    assert not (folder.path / "runs").exists()


def test_a_class_is_a_recipe_too(folder: RunsFolder) -> None:
    folder.write(
        "classy.py",
        """
        from dataclasses import dataclass
        from monarch.actor import HostMesh
        from monarch.runs import Record

        @dataclass
        class Config:
            word: str = "hello"

        class Greeting:
            def __init__(self, config: Config) -> None:
                self.config = config

            async def run(self, hosts: HostMesh, record: Record) -> str:
                record.message(f"{self.config.word} to {record.procs_per_host} on {len(hosts)}")
                return "said"
        """,
    )
    said = folder.monarch("run", "classy:Greeting", "word=hi", "--procs", "3")
    assert "hi to 3 on 1" in said
    assert folder.runs[0].name.startswith("Greeting-")
    assert folder.rows("events.jsonl")[-1]["outcome"] == "said"


@pytest.mark.long
def test_a_client_that_was_killed_is_followed_by_the_same_command(
    folder: RunsFolder, command: Callable[..., Program]
) -> None:
    given = ["run", "counting.py", "wait_for=go"]
    first = command(*given)
    folder.wait_for_steps(2)
    other = command("run", "counting.py", "wait_for=go", "num_steps=3")
    wait_for(lambda: len(folder.runs) == 2, 60.0)
    first.send_signal(signal.SIGKILL)
    first.wait()
    (folder.path / "go").touch()
    assert other.wait(60) == 0
    said = folder.monarch(*given)
    assert len(folder.runs) == 2
    assert f"going on with runs/{folder.runs[0].name}, which was killed" in said
    assert folder.kinds(0) == ["begun", "first_step", "begun", "resumed", "first_step", "ended"]
    assert [row["step"] for row in folder.rows("metrics.jsonl", 0)] == [1, 2, 3, 4]
    # It has ended; once more is another run.
    folder.monarch(*given)
    assert len(folder.runs) == 3


def test_ctrl_c_lets_the_recipe_stop_and_resume_goes_on(
    folder: RunsFolder, command: Callable[..., Program]
) -> None:
    running = command("run", "counting.py", "wait_for=go")
    running.line("counting.py on")
    folder.wait_for_steps(2)
    running.send_signal(signal.SIGINT)
    assert running.wait() == 130, running.story()
    assert "counted to 2" in running.lines
    assert any(line.startswith("stopping: ") for line in running.lines)
    assert folder.rows("events.jsonl")[-1]["status"] == "stopped"
    (folder.path / "go").touch()
    # Another command, and yet the same run: it was named.
    said = folder.monarch("run", "--resume", "counting", "num_steps=3")
    assert "which was stopped" in said
    assert len(folder.runs) == 1
    assert folder.rows("events.jsonl")[-1]["outcome"] == {"step": 3}


@pytest.mark.long
def test_what_cannot_change_in_a_run_makes_a_new_one(folder: RunsFolder) -> None:
    config = folder.write("counting.toml", "fail_at = 3\n")
    given = ["run", "counting.py", "--config", "counting.toml"]
    folder.monarch(*given, status=1)
    assert folder.rows("events.jsonl")[-1]["text"] == "failed: RuntimeError: the recipe is broken"
    assert folder.kinds()[-1] == "ended"
    config.write_text("fail_at = 0\nsize = 16\n")
    said = folder.monarch(*given)
    assert f"{folder.runs[0].name} was left unfinished, but size, fail_at changed since" in said
    assert len(folder.runs) == 2
    assert "resumed" not in folder.kinds()


@pytest.mark.long
def test_a_failed_run_goes_on_or_is_left_alone(folder: RunsFolder) -> None:
    given = ["run", "counting.py", "fail_at=3"]
    folder.monarch(*given, status=1)
    folder.monarch(*given, status=1)
    assert len(folder.runs) == 1
    assert "resumed" in folder.kinds()
    folder.monarch(*given, "--new", status=1)
    assert len(folder.runs) == 2


def test_what_a_rank_says_in_a_sentence_is_told_without_where(folder: RunsFolder) -> None:
    folder.write(
        "picky.py",
        """
        from dataclasses import dataclass
        from monarch.actor import Actor, ProcMesh, endpoint
        from monarch.config_file import ConfigError
        from monarch.runs import Record

        @dataclass
        class Config:
            device: str = "abacus"

        class Picky(Actor):
            @endpoint
            def begin(self, device: str) -> None:
                raise ConfigError(f"asks for an {device}, and there is none", key="device")

        def run(config: Config, procs: ProcMesh, record: Record) -> None:
            procs.spawn("picky", Picky).begin.call(config.device).get()
        """,
    )
    said = folder.monarch("run", "picky.py", status=1)
    assert "monarch: 'device' asks for an abacus, and there is none\n" in said
    assert "Traceback" not in said


def test_editing_the_file_of_a_run_changes_what_may_change(
    folder: RunsFolder, command: Callable[..., Program]
) -> None:
    config = folder.write("counting.toml", 'wait_for = "go"\n')
    running = command("run", "counting.py", "--config", "counting.toml")
    running.line("counting.py on")
    folder.wait_for_steps(2)
    config.write_text('wait_for = "go"\namount = 5\nsize = 16\n')
    (folder.path / "go").touch()
    assert running.wait(60) == 0, running.story()
    told = next(line for line in running.lines if line.startswith("counting.toml was changed"))
    assert told == (
        "counting.toml was changed: now amount = 5.0 (was 1.0); size = 16 (was 8) needs a "
        "restart: after Ctrl-C the same command begins a new run, at step 0; with --resume it goes "
        "on with what this one has learned, where that still fits"
    )
    assert [row["total"] for row in folder.rows("metrics.jsonl")] == [2.0, 2.0, 10.0, 10.0]
    assert "amount = 5.0" in (folder.runs[0] / "config.toml").read_text()


def test_a_file_that_cannot_be_used_changes_nothing(
    folder: RunsFolder, command: Callable[..., Program]
) -> None:
    config = folder.write("counting.toml", 'wait_for = "go"\n')
    running = command("run", "counting.py", "--config", "counting.toml")
    running.line("counting.py on")
    folder.wait_for_steps(2)
    config.write_text('wait_for = "go"\namount = "much"\n')
    (folder.path / "go").touch()
    assert running.wait(60) == 0, running.story()
    told = next(row for row in folder.rows("events.jsonl") if row["kind"] == "config")
    assert "counting.toml:2: 'amount' expects a number" in told["error"]
    assert [row["total"] for row in folder.rows("metrics.jsonl")] == [2.0] * 4


@pytest.mark.long
def test_new_code_is_an_event_with_its_diff(
    folder: RunsFolder, command: Callable[..., Program]
) -> None:
    folder.write("monarch.toml", "[job]\nhosts = { trainers = 1 }\n")
    folder.monarch("apply")
    assert "✓ gen 1" in folder.monarch("sync")
    try:
        running = command("run", "counting.py", "wait_for=runs/go")
        running.line("counting.py on allocation 'trainers'")
        folder.wait_for_steps(2)
        code = folder.path / "counting.py"
        code.write_text(code.read_text().replace("return amount,", "return 10 * amount,"))
        assert "✓ gen 2" in folder.monarch("sync")
        folder.write("later.py", "")  # saved, and of no generation
        (folder.path / "runs/go").touch()
        assert running.wait(60) == 0, running.story()
    finally:
        folder.monarch("kill")
    assert [row["total"] for row in folder.rows("metrics.jsonl")] == [2.0, 2.0, 20.0, 20.0]
    event = next(row for row in folder.rows("events.jsonl") if row["kind"] == "generation")
    assert (event["generation"], event["step"], event["files"]) == (2, 3, ["counting.py"])
    assert "-        return amount, context().generation\n" in event["diff"]
    assert "+        return 10 * amount, context().generation" in event["diff"]
    assert event["save_to_step_seconds"] > 0
    begun = folder.rows("events.jsonl")[0]
    assert begun["digest"] not in ("", event["digest"])
    report = (folder.runs[0] / "report.html").read_text()
    assert "edit, from the save to the first step on the new code" in report
    assert "10 * amount" in report
    assert not os.path.exists(folder.path / ".monarch/job_state.json")


@pytest.mark.long
def test_a_project_without_folders_is_run_with_nothing_brought(folder: RunsFolder) -> None:
    folder.write("monarch.toml", "[workspace]\ndirs = []\n")
    said = folder.monarch("run", "counting.py", "num_steps=1")
    assert "gen " not in said
    assert len(folder.rows("metrics.jsonl")) == 1


@pytest.mark.long
def test_a_project_in_a_folder_whose_name_is_no_utf8(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"caf\xe9")
    path.mkdir()
    folder = CommandFolder(path)
    folder.write("monarch.toml", "[job]\nhosts = { trainers = 1 }\n")
    folder.write("amounts.py", "AMOUNT = 3\n")
    folder.write("adding.py", RECIPE)
    said = "amounts [3] on 2 procs"
    assert said in folder.monarch("run", "adding.py")  # processes of this machine
    folder.monarch("apply")
    try:
        assert said in folder.monarch("run", "adding.py")  # of an allocation
    finally:
        folder.monarch("kill")


def test_what_procs_preload_is_imported_beside_the_recipe(folder: RunsFolder) -> None:
    folder.write("heavy.py", "open('imported', 'w').close()\n")
    recipe = (folder.path / "counting.py").read_text()
    waits = (
        "PRELOAD = ('heavy',)\n"
        "deadline = time.monotonic() + 60\n"
        "while not Path('imported').exists():\n"
        "    assert time.monotonic() < deadline, 'nobody imports it meanwhile'\n"
        "    time.sleep(0.01)\n"
    )
    folder.write("counting.py", recipe.replace("class Counter", f"{waits}\n\nclass Counter", 1))
    assert "finished after step 4" in folder.monarch("run", "counting.py", "--local")


@pytest.mark.long
def test_a_fast_dev_run_takes_all_ways_in_a_few_steps(
    folder: RunsFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting = folder.path / "counting.py"
    with pytest.raises(JobError, match=r"counting.py does not say.*give it FAST_DEV_RUN = "):
        folder.here(monkeypatch, "run", "counting.py", "--fast-dev-run")
    with pytest.raises(click.UsageError, match="begins a run of its own: name a RECIPE"):
        folder.here(monkeypatch, "run", "--resume", "--fast-dev-run")
    counting.write_text(
        counting.read_text()
        .replace("@dataclass", 'FAST_DEV_RUN = ("num_steps=2", "size=16")\n\n\n@dataclass', 1)
        .replace("saved.write_text(str(step))", "saved.write_text(str(step)); " + _WAYS)
    )
    said = folder.monarch("run", "counting.py", "--fast-dev-run", "num_steps=3")
    assert "fast dev run: 3 steps, an evaluation and a checkpoint went well: all paths ran" in said
    assert (
        folder.runs[0] / "command"
    ).read_text() == "monarch run counting.py size=16 num_steps=3\n"


_WAYS = (
    "record.event('saved', 'saved', step=step); "
    "record.metrics(step, config.num_steps, {'held_out_loss': 1.0})"
)


def test_a_short_run_says_which_ways_it_did_not_take(tmp_path: Path) -> None:
    run = new_run("ddp", tmp_path)
    add_row(run, "metrics.jsonl", step=1, num_steps=1, loss=1.0)
    add_row(run, "events.jsonl", kind="saved", text="saved")
    assert ways_taken(run) == (
        "fast dev run: 1 step and a checkpoint went well; without an evaluation"
    )
