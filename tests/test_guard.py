"""The tests change nothing but what is theirs: the guard that sees to it bites."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.guard import write_guard
from tests.support import GUARD_FOLDER

# Each changes `outside`, which holds a file and a folder, by a path that looks harmless.
ACTS = {
    "open": "open('link/file', 'w')",
    "append": "open('link/file', 'ab')",
    "open for both": "os.open('link/file', os.O_RDWR)",
    "make": "os.open('link/new', os.O_CREAT | os.O_EXCL)",
    "link at the end": "open('to_file', 'w')",
    "truncate": "os.truncate('link/file', 0)",
    "mkdir": "os.mkdir('link/new')",
    "mkdir at": "os.mkdir('new', dir_fd=os.open('link', os.O_RDONLY))",
    "rename out of": "os.rename('link/file', 'mine')",
    "rename into": "os.rename('own', 'link/file')",
    "remove": "os.remove('link/file')",
    "rmdir": "os.rmdir('link/folder')",
    "rmtree": "shutil.rmtree('link/folder')",
    "chmod": "os.chmod('to_file', 0o600)",
    "chmod of the folder": "os.chmod('link', 0o700)",
    "chmod by number": "os.chmod(os.open('to_file', os.O_RDONLY), 0o600)",
    "chown": "os.chown('link/file', 1, 1)",
    "utime": "os.utime('link/file', (1, 1))",
    "hard link": "os.link('link/file', 'mine')",
    "symlink": "os.symlink('x', 'link/new')",
    "parent": "open('folder/../../outside/file', 'w')",
    "in a fork": "os._exit(0) if os.fork() else open('link/file', 'w')",
    "in a program": "subprocess.run([sys.executable, '-c', \"open('link/file', 'w')\"])",
}  # fmt: skip


@pytest.fixture
def places(tmp_path: Path) -> Path:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    (inside / "folder").mkdir(parents=True)
    (inside / "own").touch()
    (outside / "folder").mkdir(parents=True)
    (outside / "file").write_text("whole")
    (outside / "file").chmod(0o640)
    (inside / "link").symlink_to(outside)
    (inside / "to_file").symlink_to("../outside/file")
    (tmp_path / "report").touch()
    return tmp_path


def run(places: Path, script: str) -> list[str]:
    """Returns the refused acts of a script that owns `inside` alone."""
    environ = {
        **os.environ,
        "PYTHONPATH": str(GUARD_FOLDER),
        write_guard.ROOTS: str(places / "inside"),
        write_guard.REPORT: str(places / "report"),
    }
    script = "import os, shutil, subprocess, sys\n" + textwrap.dedent(script)
    command = [sys.executable, "-c", script]
    subprocess.run(command, cwd=places / "inside", env=environ, capture_output=True, timeout=60)
    return (places / "report").read_text().splitlines()


def state(folder: Path) -> list[tuple[str, int, float]]:
    return [
        (path.name, path.lstat().st_mode, path.lstat().st_mtime)
        for path in sorted((folder, *folder.rglob("*")))
    ]


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
def test_an_act_outside_is_refused_and_told(places: Path, act: str) -> None:
    before = state(places / "outside")
    refused = run(places, act)
    assert len(refused) == 1
    assert str(places / "outside") in refused[0]
    assert state(places / "outside") == before
    assert (places / "outside/file").read_text() == "whole"


def test_what_is_inside_may_be_changed(places: Path) -> None:
    script = """
    open('own', 'w').write('x'); os.truncate('own', 0); os.mkdir('new'); os.chmod('own', 0o600)
    os.rename('own', 'new/own'); os.link('new/own', 'again'); os.remove('again'); os.utime('new')
    os.symlink('/etc', 'new/link'); os.remove('new/link'); open('link/file').read()
    shutil.rmtree('new'); open(os.devnull, 'w').write('x'); open('/dev/shm/monarch-guard', 'x')
    """
    assert [line.split(" by ")[0] for line in run(places, script)] == [
        "open '/dev/shm/monarch-guard'"  # The last of them, so that it is seen that all were tried.
    ]


def test_a_test_that_would_do_it_fails(refusals: Callable[[], list[str]]) -> None:
    place = Path("/monarch-write-guard")
    with pytest.raises(write_guard.OutsideOfTests):
        os.mkdir(place)
    assert not place.exists()
    (told,) = refusals()
    assert "os.mkdir '/monarch-write-guard'" in told
    assert __file__ in told


def test_signals_are_the_usual_ones() -> None:
    """Whatever started the tests, `&` in a script or nohup."""
    ignoring = "trap '' INT HUP QUIT USR1; umask 077; exec \"$@\""
    script = (
        "import os, signal, tests.conftest;"
        "print(signal.getsignal(signal.SIGINT) is signal.default_int_handler,"
        "signal.getsignal(signal.SIGHUP) is signal.SIG_DFL, oct(os.umask(0)))"
    )
    command = ["sh", "-c", ignoring, "sh", sys.executable, "-c", script]
    environ = {**os.environ, "PYTHONPATH": f"{GUARD_FOLDER}:{Path(__file__).parents[1]}"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environ)
    assert done.stdout.split() == ["True", "True", "0o22"], done.stderr


def test_none_is_left_ignored_here() -> None:
    left = {n for n in signal.valid_signals() if signal.getsignal(n) is signal.SIG_IGN}
    assert left <= {signal.SIGPIPE, signal.SIGXFSZ}


@pytest.fixture
def guard_of_leaks(request: pytest.FixtureRequest) -> Any:
    """The module that looks for what tests leave behind."""
    plugins = request.config.pluginmanager.get_plugins()
    return next(plugin for plugin in plugins if hasattr(plugin, "_num_files_of_drivers"))


def test_what_the_driver_of_a_gpu_opens_is_no_leak(
    guard_of_leaks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its first use in a process it opens its devices, and sockets of its own."""
    open_now = {"9010": "pipe:[1]"}
    monkeypatch.setattr(guard_of_leaks, "_targets", lambda: dict(open_now))
    before, standing = guard_of_leaks._descriptors(), guard_of_leaks._standing()
    open_now |= {"9011": "/dev/nvidiactl", "9012": "/dev/nvidia0", "9013": "socket:[2]"}
    assert guard_of_leaks._standing() != standing, "such a test is not looked at"
    assert guard_of_leaks._descriptors() - before == {"socket:[2]"}
    # The next test begins with them; what it leaves is told all the same.
    before, standing = guard_of_leaks._descriptors(), guard_of_leaks._standing()
    open_now["9014"] = "pipe:[3]"
    assert guard_of_leaks._standing() == standing
    assert guard_of_leaks._descriptors() - before == {"pipe:[3]"}


@pytest.mark.parametrize(
    ("chosen", "are_hidden"),
    [("", True), ("not slow and not gpu", True), ("gpu", False), ("gpu and not slow", False)],
)
def test_only_tests_about_gpus_see_them(
    guard_of_leaks: Any, monkeypatch: pytest.MonkeyPatch, chosen: str, are_hidden: bool
) -> None:
    monkeypatch.delenv("MONARCH_TEST_GPUS", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "")
    config: Any = SimpleNamespace(getoption=lambda name, default: chosen)
    assert bool(guard_of_leaks._hide_gpus(config)) == are_hidden
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ("" if are_hidden else "0,1")
