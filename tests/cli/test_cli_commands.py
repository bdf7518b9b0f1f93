"""The ``monarch`` command, as a person uses it: in a folder, as a process of its own."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from monarch.cli.commands import cli, json_behind
from monarch.job.places import has_state
from tests.support import Program, is_running, wait_for

from .conftest import PROJECT, Folder

# The allocation


def test_apply_status_kill(folder: Folder) -> None:
    said = folder.monarch("apply")
    assert "trainers0" in said
    assert "trainers1" in said
    assert "monarch kill" in said
    assert "(pid" not in said, "the command itself is no client worth telling of"
    job = folder.job
    assert job.is_running()

    again = folder.monarch("apply")
    assert again.startswith("already up\n")
    assert folder.job.hosts == job.hosts

    table = folder.monarch("status").splitlines()
    assert table[0].split() == ["host", "pid", "generation", "procs"]
    for line, host in zip(table[1:3], job.hosts, strict=True):
        assert line.split()[1:] == [str(host.pid), "-", "-"]
    assert table[3:] == ["2 hosts, free"]

    assert folder.monarch("kill") == "ended\n"
    assert not any(is_running(host.pid) for host in job.hosts)
    assert not Path(job._directory).exists()
    assert not has_state(folder.path / ".monarch/job_state.json")


@pytest.mark.parametrize("arguments", [["status"], ["sync"], ["sync", "--watch"]], ids=" ".join)
def test_without_an_allocation_a_command_says_how_to_get_one(
    arguments: list[str], folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = folder.told(monkeypatch, *arguments, status=1)
    assert said == "monarch: no allocation is up for this folder: start one with `monarch apply`\n"


@pytest.mark.parametrize(
    ("arguments", "moved"),
    [
        (["--json", "sync"], ["sync", "--json"]),
        (["--json", "sync", "--file", "x", "diff"], ["sync", "--json", "--file", "x", "diff"]),
        (["-q", "--json", "runs", "-v", "show"], None),
        (["--quiet", "--json", "hang", "a"], ["--quiet", "hang", "--json", "a"]),
        (["exec", "--", "ls", "--json"], ["exec", "--", "ls", "--json"]),
        (["sync", "diff", "--json"], ["sync", "diff", "--json"]),
        (["--json", "no"], ["no"]),
        (["--json"], None),
    ],
    ids=str,
)
def test_json_before_a_command_is_as_behind_it(
    arguments: list[str], moved: list[str] | None
) -> None:
    if moved is None:
        with pytest.raises(click.UsageError, match="--json"):
            json_behind(cli, arguments)
    else:
        assert json_behind(cli, arguments) == moved


@pytest.mark.skipif(
    sys.version_info[:3] == (3, 13, 0), reason="there Python 3.13.0 with -c cannot import asyncio"
)
@pytest.mark.parametrize("arguments", [["sync"], ["status"], ["run", "ddp"]], ids=" ".join)
def test_in_a_folder_that_was_deleted_it_says_what_to_do(
    arguments: list[str], tmp_path: Path, program: Callable[..., Program]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    running = program(
        f"import os, sys; os.chdir({str(gone)!r}); os.rmdir({str(gone)!r})\n"
        f"sys.argv = {['monarch', *arguments]!r}\n"
        "from monarch.cli.main import main; main()"
    )
    assert running.wait(60) == 1, running.story()
    said = "\n".join(running.errors)
    assert said.startswith("monarch: the folder that this terminal is in was deleted"), said
    assert "Traceback" not in said


def test_kill_with_nothing_up_is_no_error(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    assert folder.here(monkeypatch, "kill") == (
        "no allocation is up for this folder: there is nothing to end\n"
    )


@pytest.mark.long
def test_kill_ends_what_is_left(folder: Folder) -> None:
    folder.monarch("apply")
    first, second = folder.job.hosts
    os.kill(first.pid, signal.SIGTERM)
    wait_for(lambda: not is_running(first.pid), what="the host to end")
    status = folder.monarch("status")
    assert "nobody listens there" in status
    assert "trainers0" in status
    assert "ipc:" not in status
    assert str(second.pid) in status
    assert is_running(second.pid)
    assert folder.monarch("kill") == "ended\n"
    assert not is_running(second.pid)


@pytest.mark.long
def test_a_changed_monarch_toml_makes_another_allocation(folder: Folder) -> None:
    folder.monarch("apply")
    before = folder.job.hosts
    folder.write("monarch.toml", PROJECT.replace("trainers = 2", "trainers = 1"))
    assert "already up" not in folder.monarch("apply")
    assert len(folder.job.hosts) == 1
    assert not any(is_running(host.pid) for host in before)


def test_a_host_that_cannot_start_says_why(folder: Folder) -> None:
    folder.write("monarch.toml", PROJECT + '[job.env]\nWORKSPACE_DIR = "/dev/null/here"\n')
    said = folder.monarch("apply", status=1)
    assert "the allocation did not come up" in said
    assert "'/dev/null/here" in said
    assert not has_state(folder.path / ".monarch/job_state.json")


@pytest.mark.long_but(1)
@pytest.mark.parametrize(
    ("address", "secret", "why"),
    [
        ("nowhere", "", "not an address of a host agent: 'nowhere'"),
        ("ipc:///no/such/folder/host", "", "cannot listen at ipc:///no/such/folder/host: No such"),
        ("tcp://0.0.0.0:1", "short", "MONARCH_JOB_SECRET must be 64 hexadecimal digits"),
    ],
)
def test_an_agent_that_cannot_start_says_why(
    folder: Folder, address: str, secret: str, why: str
) -> None:
    said = folder.monarch("host", "--address", address, status=1, MONARCH_JOB_SECRET=secret)
    assert said.startswith(f"Error: {why}")
    assert len(said.splitlines()) == 1


def test_a_job_of_a_module(folder: Folder) -> None:
    folder.write(
        "jobs.py",
        """
        from monarch.job import ProcessJob
        small = ProcessJob({"workers": 1})
        other = 3
        """,
    )
    assert "workers0" in folder.monarch("apply", "jobs.small")
    assert "jobs.other is a int, not a job" in folder.monarch("apply", "jobs.other", status=1)
    assert "jobs.nothing is not a job" in folder.monarch("apply", "jobs.nothing", status=1)
    assert "nowhere.job is not a job" in folder.monarch("apply", "nowhere.job", status=1)


# Errors


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[job]\nhost = { trainers = 2 }\n", ["monarch.toml:2", "host", "hosts"]),
        ("[jobs]\n", ["monarch.toml:1", "jobs", "job"]),
        ('[job]\nkind = "proces"\n', ["monarch.toml:2", "proces", "process"]),
        ("[job]\nhosts = 3\n", ["monarch.toml:2", "hosts"]),
        ("[job\n", ["monarch.toml"]),
        ("[job]\nhosts = { trainers = 0 }\n", ["trainers", "at least one host"]),
    ],
)
def test_a_mistake_in_monarch_toml_is_located(
    text: str, expected: list[str], folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write("monarch.toml", text)
    said = folder.told(monkeypatch, "apply", status=2)
    for part in expected:
        assert part in said


def test_a_missing_project_file_is_named(folder: Folder) -> None:
    assert folder.monarch("apply", "--file", "other.toml", status=1) == (
        "monarch: there is no other.toml\n"
    )


@pytest.mark.parametrize(
    ("arguments", "status", "expected"),
    [
        (["dpd"], 2, ["no recipe 'dpd'. Did you mean 'ddp'?"]),
        (["titan-tiny"], 1, ["monarch recipe prepare titan-tiny", "monarch run titan"]),
        (["addin.py"], 2, ["there is no file addin.py. Did you mean 'adding.py'?"]),
        (["amounts.py"], 1, ["amounts.py is no recipe", "run(config"]),
        (["adding.py", "num_step=4"], 2, ["num_step", "num_steps"]),
        (["adding.py", "num_steps=many"], 2, ["num_steps", "many"]),
        (["adding.py", "num_steps"], 2, ["num_steps"]),
        (["adding.py", "--config", "none.toml"], 2, ["none.toml"]),
        (["adding.py", "--procs", "0"], 2, ["--procs"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_in_a_run_is_named(
    arguments: list[str],
    status: int,
    expected: list[str],
    folder: Folder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = folder.told(monkeypatch, "run", *arguments, status=status)
    for part in expected:
        assert part in said


def test_an_unknown_command_is_refused(folder: Folder) -> None:
    assert "No such command 'aply'" in folder.monarch("aply", status=2)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["apply"],
        ["status"],
        ["kill"],
        ["sync"],
        ["run"],
        ["sweep"],
        ["runs"],
        ["recipe"],
        ["host"],
    ],
    ids=" ".join,
)
def test_help_fits_a_terminal(
    arguments: list[str], folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    said = folder.here(monkeypatch, *arguments, "--help")
    assert said.startswith("Usage: ")
    assert max(map(len, said.splitlines())) <= 80


# Run


@pytest.mark.long
def test_a_recipe_on_this_machine_alone(folder: Folder) -> None:
    said = folder.monarch("run", "adding.py", "num_steps=2")
    assert "adding.py on this machine alone: 1 host x 2 procs" in said
    assert "amounts [1] on 2 procs" in said
    assert "step 2/2  total 2" in said
    assert "\ndone\n" in said
    # Its procs run the files that are here: nothing was copied, and nobody need be told.
    assert said.startswith("adding.py on this machine alone"), said
    assert "nobody" not in said
    told = "monarch.toml asks for 2 hosts, and none is up: this run does not follow your saves"
    assert told in said
    assert told not in folder.monarch("run", "adding.py", "num_steps=2", "--local")


@pytest.mark.long
def test_a_recipe_on_the_allocation(folder: Folder) -> None:
    folder.monarch("apply")
    folder.write("adding.toml", "num_steps = 5\n")
    said = folder.monarch("run", "adding.py", "--config", "adding.toml", "--procs", "2")
    assert "on allocation 'trainers'" in said
    assert "✓ gen 1  4 files → 2 hosts" in said
    assert "amounts [1] on 4 procs" in said
    assert "step 5/5  total 5" in said
    # Its procs went with it; the hosts stay.
    status = folder.monarch("status")
    assert re.search(r"trainers0 +\d+ +1 +-\n", status)
    assert status.endswith("2 hosts, free\n")


@pytest.mark.long
def test_a_run_follows_the_watcher(folder: Folder, command: Callable[..., Program]) -> None:
    folder.monarch("apply")
    stop = folder.path / "runs/stop"
    stop.parent.mkdir()
    watcher = command("sync", "--watch")
    watcher.line("watching ")
    running = command("run", "adding.py", f"stop_file={stop}")
    running.line("amounts [1] on 2 procs")
    host = rf"adding-\d+-\d+ \(monarch run adding\.py \S+, pid {running.pid}, user \S+\)"
    status = folder.monarch("status")
    assert re.search(r"trainers1 +\d+ +1 +adding 1\n", status)
    watch = rf"watched by monarch sync --watch \(pid {watcher.pid}, user \S+\)"
    assert re.search(rf"\n2 hosts, used by {host}\n{watch}\n$", status)

    # A second run is refused, and told by whom.
    refused = folder.monarch("run", "adding.py", status=1)
    assert f"`kill {running.pid}`" in refused
    assert "amounts" not in refused

    folder.write("amounts.py", "AMOUNT = 5\n")
    assert re.match(r"2  1 file → 2 hosts  [\d.]+ m?s  reloaded amounts.py", watcher.line("✓ gen"))
    assert running.line("amounts") == "[5] on 2 procs"

    folder.write("amounts.py", "AMOUNT = (5\n")
    watcher.line("✗ refused")
    assert watcher.line("  ") == "amounts.py:1"
    assert watcher.line("   ") == "AMOUNT = (5"
    assert watcher.line("   ") == "^"
    refused = folder.monarch("sync", status=1)
    assert "amounts.py:1\n      AMOUNT = (5\n               ^\n" in refused
    assert "still on gen 2" in refused

    folder.write("amounts.py", "AMOUNT = 6\n")
    watcher.line("✓ gen 3  1 file → 2 hosts")
    assert running.line("amounts") == "[6] on 2 procs"

    watcher.send_signal(signal.SIGINT)
    assert watcher.wait() == 0, watcher.story()
    assert watcher.errors == []
    assert watcher.lines[-1].startswith("stopped watching")
    stop.touch()
    assert running.wait() == 0, running.story()
    assert "done" in running.lines
    assert folder.job.is_running()


def test_a_save_right_after_the_start_of_the_watch_is_seen(
    folder: Folder, command: Callable[..., Program]
) -> None:
    folder.monarch("apply")
    watcher = command("sync", "--watch")
    watcher.line("✓ gen 1")
    folder.write("amounts.py", "AMOUNT = 5\n")
    watcher.line("✓ gen 2  1 file")
    watcher.send_signal(signal.SIGINT)
    assert watcher.wait() == 0, watcher.story()


def test_an_interrupted_run_stops_its_procs(
    folder: Folder, command: Callable[..., Program]
) -> None:
    folder.monarch("apply")
    running = command("run", "adding.py", "stop_file=never")
    running.line("amounts [1] on 2 procs")
    running.send_signal(signal.SIGINT)
    assert running.wait() == 130, running.story()
    assert [line for line in running.errors if line] == [], "it was told as stopped"
    status = folder.monarch("status")
    assert re.search(r"trainers0 +\d+ +1 +-\n", status)
    assert status.endswith("2 hosts, free\n")


@pytest.mark.long
def test_kill_during_a_run_ends_the_run(folder: Folder, command: Callable[..., Program]) -> None:
    folder.monarch("apply")
    running = command("run", "adding.py", "stop_file=never")
    running.line("amounts [1] on 2 procs")
    folder.monarch("kill")
    assert running.wait() == 1, running.story()
    assert "Traceback" not in running.story()
    assert "interrupted" not in running.story(), "nobody pressed Ctrl-C"
    assert "the allocation was ended by monarch kill" in running.story(), running.story()
