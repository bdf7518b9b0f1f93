"""``monarch query`` and its kin: of what runs, and of a run's folder when nothing runs any more."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Folder
from tests.cli.runs_folder import RunsFolder
from tests.support import Program, wait_for

pytest.importorskip("duckdb")


@pytest.mark.long
def test_a_runs_telemetry_can_be_asked_when_nothing_runs_any_more(tmp_path: Path) -> None:
    folder = RunsFolder(tmp_path)
    folder.monarch("run", "counting.py", "num_steps=3")
    sql = (
        "SELECT method, count(*) AS n FROM calls WHERE actor = 'counter' AND method <> '' "
        "GROUP BY method"
    )
    found = json.loads(folder.monarch("query", sql, "--run", "latest", "--json"))
    assert found == [{"method": "add", "n": 6}]
    losses = folder.monarch("query", "SELECT step, loss FROM metrics", "--run", "latest", "--csv")
    assert losses.splitlines()[:2] == ["step,loss", "1,1.0"]
    listed = folder.monarch("query", "--run", "latest")
    assert "slowest" in listed
    assert "actor_status_events(id, timestamp_us" in listed
    refused = folder.monarch(
        "query", "SELECT * FROM read_text('/etc/passwd')", "--run", "latest", status=1
    )
    assert refused.startswith("monarch: refused: a query reads the tables of telemetry")
    assert "holds no report" in folder.monarch("hang", "--run", "latest", status=1)


def test_where_nothing_runs_it_says_so(tmp_path: Path) -> None:
    folder = RunsFolder(tmp_path)
    for command in ("query", "hang"):
        assert "no allocation is up for this folder" in folder.monarch(command, status=1)


@pytest.mark.long
def test_what_runs_can_be_asked_from_another_terminal(
    folder: Folder, command: Callable[..., Program]
) -> None:
    """On hosts, in the procs of a program that is not ours."""
    folder.monarch("apply")
    program = command("run", "adding.py", f"stop_file={folder.path / 'stop'}")
    sql = "SELECT DISTINCT method FROM calls WHERE actor = 'adder' AND method = 'add'"
    wait_for(lambda: "add" in folder.monarch("query", sql, "--csv").splitlines(), 60.0)
    hosts = json.loads(folder.monarch("query", "SELECT host FROM hosts", "--json"))
    assert {"trainers0", "trainers1"} <= {row["host"] for row in hosts}
    report = json.loads(folder.monarch("hang", "--json"))
    assert not report["is_hang"]
    (folder.path / "stop").touch()
    assert program.wait() == 0


@pytest.mark.long
def test_status_goes_on_until_it_is_interrupted(
    folder: Folder, command: Callable[..., Program]
) -> None:
    folder.monarch("apply")
    watching = command("status", "--watch")
    for _ in range(2):
        watching.line("trainers0")
    watching.send_signal(signal.SIGINT)
    assert watching.wait() == 0


@pytest.mark.long
def test_where_the_hosts_have_ended_that_is_said_and_nothing_is_said_to_be_set(
    folder: Folder,
) -> None:
    folder.monarch("apply")
    for host in folder.job.hosts:
        assert host.pid is not None
        os.kill(host.pid, signal.SIGKILL)
    gone = "the one that was has ended, or some of its hosts have"
    wait_for(lambda: not folder.job.is_running(), what="the hosts to end")
    for command in (
        ["stacks"], ["env", "get", "HOME"], ["env", "set", "A=1"], ["hang"], ["query", "slowest"],
    ):  # fmt: skip
        said = folder.monarch(*command, status=1)
        assert gone in said, command
        assert "Traceback" not in said
