"""State files and folders that other users have prepared."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.config import configured, runtime_dir
from monarch.errors import JobError
from monarch.job import JobState, JobTrait, job_load, job_loads

STRANGER = 65534

only_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can act for somebody else")


class NoteJob(JobTrait):
    """A job that starts nothing, and has a secret to write down."""

    kind = "note"

    def _create(self, client_script: str | None) -> None: ...

    def _state(self) -> JobState:
        return JobState({})

    def _is_running(self) -> bool:
        return True

    def _kill(self) -> None: ...

    def can_run(self, spec: JobTrait) -> bool:
        return True

    def _to_data(self) -> dict[str, Any]:
        return {"secret": "ab" * 32}

    @classmethod
    def _from_data(cls, data: dict[str, Any]) -> NoteJob:
        return cls()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that everybody may write to, as a careless group has it."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        os.chmod(name, 0o777)
        yield Path(name)


@pytest.fixture(autouse=True)
def forget_kind() -> Iterator[None]:
    JobTrait._kinds["note"] = NoteJob
    yield
    JobTrait._kinds.pop("note")


@only_root
def test_a_state_file_of_somebody_else_is_refused(folder: Path) -> None:
    path = folder / "state.json"
    NoteJob().dump(path)
    os.chown(path, STRANGER, STRANGER)
    with pytest.raises(JobError, match="must belong to you"):
        job_load(path)
    with pytest.raises(JobError, match="must belong to you"):
        NoteJob().state(str(path))


@only_root
def test_a_link_of_somebody_else_is_neither_read_nor_written_through(folder: Path) -> None:
    precious = folder / "precious"
    precious.write_text("mine")
    precious.chmod(0o600)
    path = folder / "state.json"
    path.symlink_to(precious)
    os.chown(path, STRANGER, STRANGER, follow_symlinks=False)
    for use in (lambda: job_load(path), lambda: NoteJob().dump(path)):
        with pytest.raises(JobError, match="another user"):
            use()
    with pytest.raises(JobError, match="another user"):
        NoteJob().state(str(path))
    assert precious.read_text() == "mine"
    # Where it leads nowhere, nothing is made there.
    precious.unlink()
    with pytest.raises(JobError, match="another user"):
        NoteJob().state(str(path))
    assert not precious.exists()


def test_a_state_is_written_to_a_new_file_of_its_own(folder: Path) -> None:
    """Names that somebody could guess, and prepare, lead nowhere."""
    trap = folder / "trap"
    for pid in range(os.getpid() - 2, os.getpid() + 3):
        (folder / f".state.json.{pid}").symlink_to(trap)
    before = os.umask(0)
    try:
        NoteJob().dump(folder / "state.json")
    finally:
        os.umask(before)
    assert not trap.exists()
    assert stat.S_IMODE((folder / "state.json").stat().st_mode) == 0o600


def test_a_state_that_is_nested_without_end_is_refused() -> None:
    with pytest.raises(JobError, match="not the state of a job"):
        job_loads(b"[" * 1_000_000)


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_a_runtime_folder_that_others_can_enter_is_refused(folder: Path, mode: int) -> None:
    folder.chmod(mode)
    with configured(runtime_dir=str(folder)), pytest.raises(PermissionError, match="0700"):
        runtime_dir()


@only_root
def test_a_runtime_folder_of_somebody_else_is_refused(folder: Path) -> None:
    theirs = folder / "theirs"
    theirs.mkdir(mode=0o700)
    os.chown(theirs, STRANGER, STRANGER)
    with configured(runtime_dir=str(theirs)), pytest.raises(PermissionError, match="belong to you"):
        runtime_dir()


def test_a_runtime_folder_that_is_a_link_is_refused(folder: Path) -> None:
    real, link = folder / "real", folder / "link"
    real.mkdir(mode=0o700)
    link.symlink_to(real)
    with configured(runtime_dir=str(link)), pytest.raises(PermissionError, match="0700"):
        runtime_dir()
