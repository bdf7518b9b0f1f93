"""States of jobs, and folders, that strangers have prepared."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.config import configured, runtime_dir
from monarch.errors import JobError
from monarch.job import JobState, JobTrait, job_load, job_loads
from monarch.job.places import Place, has_state, left_behind, record_of
from monarch.job.state_folder import state_path
from monarch.runs import receive_state

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


def state_of(path: Path) -> str:
    """What a program finds at a path: "" for no job."""
    try:
        return job_load(path).apply_id or "a job"
    except FileNotFoundError:
        return ""


def noted(path: Path, name: str) -> NoteJob:
    job = NoteJob()
    job.apply_id = name
    job.dump(path)
    return job


# Files that came with a folder


def test_the_secret_stays_out_of_the_project(folder: Path) -> None:
    path = folder / ".monarch/job_state.json"
    noted(path, "mine")
    assert state_of(path) == "mine"
    for file in folder.rglob("*"):
        assert file.is_dir() or "ab" * 32 not in file.read_text()
    note = json.loads(path.read_text())
    assert note["apply_id"] == "mine"
    assert Path(note["state"]) == record_of(path)
    assert stat.S_IMODE(record_of(path).stat().st_mode) == 0o600
    assert stat.S_IMODE(state_path().stat().st_mode) == 0o700
    assert (folder / ".monarch/.gitignore").read_text() == "*\n"


@pytest.mark.parametrize("name", [".monarch/job_state.json", "state.json"])
def test_a_file_at_the_path_has_no_effect(name: str, folder: Path) -> None:
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    job = noted(elsewhere / "state.json", "mine")
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    # Of an older release, or of a stranger; and this user's own, signed, from another folder.
    for data in (b'{"version": 1, "kind": "note", "secret": "00"}', job.dumps()):
        path.touch(0o600)
        path.write_bytes(data)
        assert state_of(path) == ""
        assert not has_state(path)
    noted(path, "here")
    assert (state_of(path), state_of(elsewhere / "state.json")) == ("here", "mine")


def test_a_copy_of_a_folder_has_no_job(folder: Path) -> None:
    project, copy = folder / "project", folder / "copy"
    project.mkdir()
    noted(project / ".monarch/job_state.json", "mine")
    shutil.copytree(project, copy)
    assert state_of(copy / ".monarch/job_state.json") == ""
    # In the place of the first it is another folder, too, though it may get the same inode.
    shutil.rmtree(project)
    os.rename(copy, project)
    assert state_of(project / ".monarch/job_state.json") == ""
    shutil.rmtree(project)
    project.mkdir()
    assert state_of(project / ".monarch/job_state.json") == ""


def test_hosts_that_a_removed_folder_has_left_are_told_of(folder: Path) -> None:
    project = folder / "project"
    project.mkdir()
    noted(project / ".monarch/job_state.json", "mine")
    shutil.rmtree(project)
    project.mkdir()
    (left,) = left_behind(project)
    assert left.place.path == str(project)
    assert state_of(left.record) == "mine", "its record can be named"


def test_a_folder_that_was_moved_keeps_its_job(folder: Path) -> None:
    before, after = folder / "before", folder / "after"
    before.mkdir()
    if not Place.of(before).birth:
        pytest.skip("this file system does not tell when a folder was made")
    path = before / ".monarch/job_state.json"
    noted(path, "mine")
    record = record_of(path)
    os.rename(before, after)
    moved = after / ".monarch/job_state.json"
    assert state_of(moved) == "mine"
    assert record_of(moved) == record, "a program that runs goes on with the same record"
    with pytest.raises(FileNotFoundError):
        job_load(path)
    # A new folder at the old path is another one.
    before.mkdir()
    assert state_of(path) == ""
    noted(path, "new")
    assert (state_of(path), state_of(moved)) == ("new", "mine")
    job_load(moved).kill()
    assert (state_of(path), state_of(moved)) == ("new", "")
    assert not moved.exists(), "the note goes with it"


def test_the_same_folder_by_a_link_has_the_same_job(folder: Path) -> None:
    project, link = folder / "project", folder / "link"
    project.mkdir()
    link.symlink_to(project)
    noted(link / ".monarch/job_state.json", "mine")
    assert state_of(project / ".monarch/job_state.json") == "mine"


def test_a_folder_of_another_machine_has_no_job_here(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / ".monarch/job_state.json"
    monkeypatch.setattr("monarch.job.places._machine", lambda: "another")
    noted(path, "there")
    monkeypatch.undo()
    assert state_of(path) == ""
    (left,) = left_behind(folder)
    assert not left.place.machine_is_this


@pytest.mark.parametrize("link", [".monarch", ".monarch/job_state.json"])
def test_links_in_a_project_are_not_followed(link: str, folder: Path) -> None:
    precious = folder / "precious"
    precious.mkdir()
    (precious / "job_state.json").write_text("mine")
    project = folder / "project"
    (project / link).parent.mkdir(parents=True)
    (project / link).symlink_to(precious if link == ".monarch" else precious / "job_state.json")
    path = project / ".monarch/job_state.json"
    noted(path, "job")
    assert state_of(path) == "job"
    job_load(path).kill()
    assert os.listdir(precious) == ["job_state.json"]
    assert (precious / "job_state.json").read_text() == "mine"


def test_a_link_to_a_record_names_no_job(folder: Path) -> None:
    noted(folder / "state.json", "mine")
    project = folder / "project"
    (project / ".monarch").mkdir(parents=True)
    (project / ".monarch/job_state.json").symlink_to(record_of(folder / "state.json"))
    assert state_of(project / ".monarch/job_state.json") == ""


@pytest.mark.parametrize("trap", ["fifo", "folder", "huge"])
def test_what_lies_at_the_path_stops_no_job(trap: str, folder: Path) -> None:
    path = folder / ".monarch/job_state.json"
    path.parent.mkdir()
    if trap == "fifo":
        os.mkfifo(path)
    elif trap == "folder":
        path.mkdir()
    else:
        path.write_text("[" * 100_000)
    noted(folder / ".monarch/job_state.json", "mine")
    if trap != "folder":
        path.unlink()
        os.mkfifo(path)
    job_load(path).kill()
    assert state_of(path) == ""


# The state folder


def test_bytes_that_were_not_signed_here_are_refused(folder: Path) -> None:
    data = noted(folder / "state.json", "mine").dumps()
    assert job_loads(data).apply_id == "mine"
    forged = json.loads(data) | {"apply_id": "theirs"}
    unsigned = {name: value for name, value in forged.items() if name != "signature"}
    for fields in (forged, unsigned, unsigned | {"signature": 3}, unsigned | {"signature": "00é"}):
        with pytest.raises(JobError, match="not written by your monarch"):
            job_loads(json.dumps(fields).encode())
    record = record_of(folder / "state.json")
    record.write_text(json.dumps(forged))
    for use in (lambda: job_load(record), lambda: NoteJob().state(str(folder / "state.json"))):
        with pytest.raises(JobError, match="not written by your monarch"):
            use()


def test_each_state_folder_has_a_key_of_its_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = NoteJob().dumps()
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "other"))
    with pytest.raises(JobError, match="not written by your monarch"):
        job_loads(data)
    assert not (folder / "other").exists(), "who only reads makes nothing"
    NoteJob().dumps()
    assert stat.S_IMODE((folder / "other/monarch/key").stat().st_mode) == 0o600
    (folder / "other/monarch/key").chmod(0o640)
    with pytest.raises(JobError, match="chmod 600"):
        NoteJob().dumps()


def test_a_state_that_the_client_hands_over_is_kept_with_the_key_there(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = noted(folder / "state.json", "mine")
    data = job.dumps()
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "there"))
    path = receive_state.main(str(folder / "runs/.job_state.json"), data)
    assert state_of(Path(path)) == "mine"
    with pytest.raises(JobError, match="not written by your monarch"):
        job_loads(data)
    with pytest.raises(JobError, match="not the state of a job"):
        receive_state.main(str(folder / "runs/.job_state.json"), b"{}")


def test_many_programs_at_once_have_one_key(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "other"))
    ready, states = threading.Barrier(8), []

    def make() -> None:
        ready.wait()
        states.append(NoteJob().dumps())

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(states)) == 1
    assert os.listdir(folder / "other/monarch") == ["key"]


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_a_state_folder_that_others_can_write_to_is_refused(
    mode: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    path = folder / "state.json"
    noted(path, "mine")
    (folder / "monarch").chmod(mode)
    for use in (lambda: job_load(path), lambda: NoteJob().dump(path), NoteJob().dumps):
        with pytest.raises(JobError, match="chmod 700"):
            use()


@only_root
@pytest.mark.parametrize("is_link", [False, True])
def test_a_state_folder_of_somebody_else_is_refused(
    is_link: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    theirs = folder / "monarch"
    if is_link:
        theirs.symlink_to(folder)
    else:
        theirs.mkdir(mode=0o700)
    os.chown(theirs, STRANGER, STRANGER, follow_symlinks=False)
    for use in (lambda: job_load(folder / "x"), lambda: NoteJob().dump(folder / "x")):
        with pytest.raises(JobError, match=r"belong to you|another user"):
            use()


def test_a_relative_state_folder_does_not_count(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be in whatever folder the command is called in."""
    monkeypatch.setenv("XDG_STATE_HOME", "state")
    monkeypatch.setenv("HOME", str(folder))
    assert state_path() == folder / ".local/state/monarch"
    monkeypatch.setenv("HOME", "home")
    with pytest.raises(JobError, match="XDG_STATE_HOME"):
        state_path()


def test_a_state_folder_that_cannot_be_made_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "file"))
    assert not has_state(folder / "state.json")
    with pytest.raises(JobError, match=r"cannot be kept in .*/file/monarch"):
        NoteJob().dump(folder / "state.json")


def test_a_full_disk_leaves_the_old_state(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / ".monarch/job_state.json"
    noted(path, "mine")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("monarch.job.state_folder.os.replace", full)
        with pytest.raises(OSError, match="No space left") as error:
            noted(path, "new")
    assert error.value.filename == str(record_of(path))
    assert state_of(path) == "mine"
    assert not [name for name in os.listdir(record_of(path).parent) if name.startswith(".")]


def test_what_is_kept_of_folders_that_are_gone_is_forgotten(folder: Path) -> None:
    gone, kept, new = folder / "gone", folder / "kept", folder / "new"
    records = []
    for path in (gone, kept, new):
        path.mkdir()
        job = noted(path / ".monarch/job_state.json", path.name)
        records.append(record_of(path / ".monarch/job_state.json").parents[2])
        if path == gone:
            job_load(path / ".monarch/job_state.json").kill()
            shutil.rmtree(gone)
        elif path == kept:
            shutil.rmtree(kept)
    assert job.apply_id == "new"
    assert [path.exists() for path in records] == [False, True, True], "a job is not forgotten"


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
