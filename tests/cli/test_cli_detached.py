"""Runs that belong to the allocation: they go on without the terminal that began them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch.job import job_load
from monarch.runs.record.folder import RunFolder, runs_in
from tests.cli.conftest import RECIPE, Folder
from tests.cli.on_terminal import OnTerminal, on_terminal
from tests.support import wait_for

FAKES = Path(__file__).parents[1] / "job" / "fakes"


@pytest.fixture
def detached(folder: Folder) -> Iterator[RunFolder]:
    """A run that counts until it is stopped."""
    folder.monarch("apply")
    said = folder.monarch("run", "--detach", "adding.py", f"stop_file={folder.path}/stop")
    (run,) = runs_in(folder.path / "runs")
    assert f"runs/{run.name} goes on, on trainers0, when this terminal is closed" in said
    yield run
    (folder.path / "stop").touch()


def steps(run: RunFolder) -> int:
    rows = run.metrics()
    return int(rows[-1]["step"]) if rows else 0


def last_amount(run: RunFolder) -> int:
    before, last = run.metrics()[-2:]
    return int(last["total"] - before["total"])


def goes_on(run: RunFolder) -> None:
    before = steps(run)
    wait_for(lambda: steps(run) > before + 3)


@pytest.mark.long
def test_a_run_goes_on_and_ends_by_itself(folder: Folder, detached: RunFolder) -> None:
    goes_on(detached)
    assert "running" in folder.monarch("runs", "ls")
    assert f"used by {detached.name}" in folder.monarch("status")
    said = folder.monarch("run", "adding.py", status=1)
    assert "the allocation of this folder is in use by" in " ".join(said.split())
    (folder.path / "stop").touch()
    wait_for(lambda: detached.status == "finished", 60)
    assert "finished" in folder.monarch("runs", "attach", status=1)
    wait_for(lambda: "free" in folder.monarch("status"), 60)


def ask(terminal: OnTerminal, answer: str) -> None:
    asked = terminal.text.count("or Enter to go on")
    terminal.press("\x03")
    terminal.until("or Enter to go on", times=asked + 1)
    terminal.press(answer)


@pytest.mark.long
def test_attach_shows_it_and_ctrl_c_asks(folder: Folder, detached: RunFolder) -> None:
    with on_terminal(folder.path, "runs", "attach", detached.name) as terminal:
        terminal.until("amounts [1] on 2 procs")
        ask(terminal, "\r")
        goes_on(detached)
        ask(terminal, "d\r")
        terminal.until("goes on; `monarch runs attach")
        assert terminal.end() == 0
        assert terminal.settings == terminal.settings_before
    goes_on(detached)
    with on_terminal(folder.path, "runs", "attach") as terminal:
        terminal.until("amounts [1] on 2 procs")
        terminal.process.kill()
        terminal.process.wait()
    goes_on(detached)
    with on_terminal(folder.path, "runs", "attach") as terminal:
        terminal.until("amounts [1] on 2 procs")
        ask(terminal, "e\r")
        assert terminal.end() == 130
    assert detached.status == "stopped"


@pytest.mark.long
def test_two_watch_at_once_and_a_pipe_gets_plain_text(folder: Folder, detached: RunFolder) -> None:
    command = [sys.executable, "-m", "monarch.cli.main", "runs", "attach", detached.name]
    both = [
        subprocess.Popen(command, cwd=folder.path, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
        for _ in range(2)
    ]
    for one in both:
        assert one.stdout is not None
        wait_for(lambda one=one: b"amounts [1]" in one.stdout.readline())  # type: ignore[misc]
    (folder.path / "stop").touch()
    for one in both:
        rest, _ = one.communicate(timeout=60)
        assert one.returncode == 0
        assert b"\x1b[2K" not in rest


@pytest.mark.long
def test_kill_ends_it(folder: Folder, detached: RunFolder) -> None:
    goes_on(detached)
    folder.monarch("kill", "--yes")
    wait_for(lambda: detached.running_pid is None)


@pytest.mark.long
def test_what_is_wrong_is_said_and_nothing_stays(folder: Folder) -> None:
    words = folder.monarch("run", "--detach", "adding.py", status=1)
    assert "no allocation is up for this folder" in " ".join(words.split())
    assert "--detach goes without" in folder.monarch("run", "-d", "--local", "adding.py", status=2)
    folder.monarch("apply")
    assert "unknown key 'nope'" in folder.monarch("run", "-d", "adding.py", "nope=1", status=2)
    assert "there is no file gone.py" in folder.monarch("run", "-d", "gone.py", status=1)
    folder.write("raises.py", "import no_such_module_there\n\ndef run(procs): ...\n")
    done = subprocess.run(
        [sys.executable, "-m", "monarch.cli.main", "run", "--detach", "raises.py"],
        cwd=folder.path, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "No module named 'no_such_module_there'" in done.stdout
    assert not runs_in(folder.path / "runs")
    folder.monarch("run", "adding.py")
    said = folder.monarch("runs", "attach", status=1)
    assert "was not started with --detach" in " ".join(said.split())


@pytest.mark.long
@pytest.mark.skipif(
    shutil.which("unshare") is None
    or subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0,
    reason="needs the right to make a namespace, which makes this another machine",
)
def test_on_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is there, with the code that is pushed, and what it measures is looked at here."""
    home, project = tmp_path / "home", tmp_path / "a project"
    home.mkdir()
    project.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", f"{FAKES}:{os.environ['PATH']}")
    folder = Folder(project)
    folder.write("adding.py", RECIPE)
    folder.write("amounts.py", "AMOUNT = 1\n")
    folder.write(
        "monarch.toml",
        '[job]\nkind = "ssh"\nhosts = { trainers = ["gpu1", "gpu2"] }\n'
        f'[job.ssh]\npython = "{sys.executable}"\nport = 0\n[workspace]\ndirs = ["."]\n',
    )

    def elsewhere(*arguments: str, status: int = 0) -> str:
        done = subprocess.run(
            ["unshare", "--mount", sys.executable, "-m", "monarch.cli.main", *arguments],
            cwd=project, capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    folder.monarch("apply")
    try:
        outside = tmp_path / "outside.py"
        outside.write_text(RECIPE)
        assert "is not in the workspace" in " ".join(
            elsewhere("run", "--detach", "../outside.py", status=1).split()
        )
        assert "goes on, on gpu1" in elsewhere(
            "run", "--detach", "adding.py", f"stop_file={tmp_path}/stop"
        )
        (run,) = runs_in(project / "runs")
        wait_for(lambda: elsewhere("runs", "ls") and steps(run) > 3, 60)
        assert run.status == "running"
        folder.write("amounts.py", "AMOUNT = 5\n")
        assert "kept as" not in elsewhere("sync")
        wait_for(lambda: elsewhere("runs", "ls") and last_amount(run) == 5, 60, "the new code")
        (tmp_path / "stop").touch()
        wait_for(lambda: elsewhere("runs", "ls") and run.status == "finished", 60)
        totals = [row["total"] for row in run.metrics()]
        assert (totals[1] - totals[0], last_amount(run)) == (1, 5)
        assert "checkpoints: in" in elsewhere("runs", "show")
        (there,) = runs_in(next((home / ".monarch/runs").iterdir()))
        assert there.name == run.name
        assert there.metrics() == run.metrics()
    finally:
        job_load(project / ".monarch/job_state.json").kill()
