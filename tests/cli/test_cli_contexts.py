"""Several allocations in one folder; and what ends one that nobody uses."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch.job import ProcessJob, job_load, load_current_job, set_current_job
from monarch.job.contexts import all_contexts, state_of
from tests.cli.command_folder import CommandFolder
from tests.support import wait_for

STATE = ".monarch/job_state.json"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CommandFolder]:
    made = CommandFolder(tmp_path)
    made.write("monarch.toml", "[job]\nhosts = { trainers = 1 }\n")
    made.write("big.toml", "[job]\nhosts = { many = 2 }\n")
    made.write(
        "jobs.py", "from monarch.job import ProcessJob\nbig = ProcessJob({'many': 2})\nnone = 3\n"
    )
    yield made
    with monkeypatch.context() as there:
        there.chdir(tmp_path)
        states = [state_of(name) for name in all_contexts()]
    for state in states:
        if state.exists():
            job_load(state).kill()


def names(said: str) -> list[str]:
    return [line[2:].split("  ")[0] for line in said.splitlines() if line[:2] in ("* ", "  ")]


@pytest.mark.long
def test_two_allocations_are_up_at_once(
    folder: CommandFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.monarch("apply")
    folder.monarch("context", "create", "big", "--spec", "big.toml")
    said = folder.monarch("status", status=1)
    assert "no allocation is up" in said
    assert "many1" in folder.monarch("apply")
    assert names(folder.monarch("context", "ls")) == ["big", "default"]
    folder.monarch("context", "use", "default")
    assert "trainers0" in folder.monarch("status")
    said = folder.monarch("context", "rm", "big", status=1)
    assert "is up, so it stays" in " ".join(said.split())
    folder.monarch("context", "use", "big")
    assert "many0" in folder.monarch("status")
    said = folder.monarch("context", "rm", "big", "--yes")
    assert "commands go to 'default'" in said
    assert "trainers0" in folder.monarch("status")
    folder.monarch("kill")
    monkeypatch.chdir(folder.path)
    assert all_contexts() == ["default"]
    # What leads to the state stays when the state has gone.
    assert "trainers0" in folder.monarch("apply")
    assert "trainers0" in folder.monarch("exec", "sh", "-c", "echo $MONARCH_HOST")


def test_wrong_names(folder: CommandFolder) -> None:
    assert "there is no context 'nope'" in folder.monarch("context", "use", "nope", status=1)
    assert "is no name for a context" in folder.monarch("context", "create", "../x", status=1)
    assert "there is a context 'default'" in folder.monarch(
        "context", "create", "default", status=1
    )
    assert "the default context stays" in folder.monarch("context", "rm", "default", status=1)


def test_the_job_of_a_context(folder: CommandFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.path)
    monkeypatch.syspath_prepend(str(folder.path))
    with pytest.raises(Exception, match="no job was set"):
        load_current_job()
    with pytest.raises(Exception, match="is a int, not a job"):
        set_current_job("jobs.none")
    set_current_job("jobs.big")
    job = load_current_job()
    assert isinstance(job, ProcessJob)
    assert job.meshes == {"many": 2}


@pytest.mark.long
def test_an_allocation_that_nobody_uses_ends(folder: CommandFolder) -> None:
    folder.monarch("apply", "--file", "big.toml")
    job = job_load(folder.path / STATE)
    command = [sys.executable, "-m", "monarch.cli.main", "exec", "sh", "-c", "echo; sleep 1000"]
    with subprocess.Popen(
        command, cwd=folder.path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    ) as using:
        assert using.stdout is not None
        using.stdout.readline()
        # From here on it is in use, however long the command took to begin.
        said = folder.monarch("apply", "--file", "big.toml", "--idle-timeout", "6s")
        assert "it ends when nobody has used it for 6.0 s" in said
        until = time.monotonic() + 10.0
        wait_for(lambda: time.monotonic() > until)
        num_running = job.num_running()
        using.kill()
    assert num_running == 2  # One host was in use, so both stayed.
    wait_for(lambda: job.num_running() == 0, 60)
    assert "nobody has used this allocation for 6 s" in folder.monarch("status", status=1)


def test_the_limit_can_be_taken_away(folder: CommandFolder) -> None:
    folder.monarch("apply", "--idle-timeout", "1h")
    assert "it stays, however long" in folder.monarch("apply", "--idle-timeout", "0")
    assert "give it as 30m" in folder.monarch("apply", "--idle-timeout", "soon", status=2)
