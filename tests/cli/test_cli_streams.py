"""The command where nobody can be told what it does, and where it can note nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from monarch.cli.main import main
from monarch.job.places import make_record_of

from .conftest import Folder

COMMAND = "from monarch.cli.entry import main; main()"


@pytest.mark.parametrize("buffering", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("arguments", [["--version"], ["sync", "--dry-run"]], ids=" ".join)
def test_a_full_disk_behind_standard_output_is_told_in_a_line(
    folder: Folder, arguments: list[str], buffering: str
) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", COMMAND, *arguments], cwd=folder.path, stdout=full,
            stderr=subprocess.PIPE, text=True, timeout=60, check=False,
            env={**os.environ, "PYTHONUNBUFFERED": buffering},
        )  # fmt: skip
    why = "monarch: cannot write to standard output: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, why)


@pytest.mark.long
def test_who_wants_no_output_gets_none(folder: Folder) -> None:
    """A closed stream's number is that of the next file, or socket, that is opened."""
    closed = f"exec {sys.executable} -c '{COMMAND}' sync --explain amounts.py 0<&- 1>&- 2>&-"
    done = subprocess.run(["sh", "-c", closed], cwd=folder.path, timeout=60, check=False)
    assert done.returncode == 0


@pytest.mark.long
def test_who_has_read_enough_leaves_without_a_word(folder: Folder) -> None:
    for number in range(3000):
        (folder.path / f"{number}_with_a_long_name_that_fills_the_pipe.py").touch()
    command = f"{sys.executable} -c '{COMMAND}' sync --dry-run --all | head -n 1"
    done = subprocess.run(
        ["sh", "-c", command], cwd=folder.path, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.stdout.count("\n") == 1
    # How far it is may be told there, and nothing else.
    said, steps = done.stderr.splitlines(), ("looking  ", "reading  ", "comparing with ")
    assert not [line for line in said if not line.startswith(steps)]


def test_a_folder_of_ours_that_cannot_be_used_is_named(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = make_record_of(folder.path / ".monarch/job_state.json")
    state.mkdir()
    for arguments in (["sync"], ["sync", "status"], ["status"]):
        said = folder.told(monkeypatch, *arguments, status=1)
        assert said.startswith(f"monarch: {state}: Is a directory. There is noted which hosts")
        assert said.count("\n") == 1
    state.rmdir()
    (folder.path / "state").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(folder.path / "state"))
    said = folder.told(monkeypatch, "apply", status=1)
    assert said.startswith(f"monarch: the state of jobs cannot be kept in {folder.path}/state/")


def test_other_files_that_fail_are_for_who_wrote_the_code(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        Path(folder.path / "no/such/file").read_text()

    monkeypatch.setattr("monarch.cli.allocation.allocation.noted_job", fail)
    monkeypatch.setattr(sys, "argv", ["monarch", "status"])
    with pytest.raises(FileNotFoundError):
        main()
