"""Folders that are equal on other hosts while a mount is open."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch.actor import ActorError, HostMesh, this_host
from monarch.gather_mount import gather_mount  # type: ignore[import-untyped]
from monarch.job import ProcessJob
from monarch.job.mounts import MountCopy, MountSource
from monarch.remotemount import remotemount  # type: ignore[import-untyped]
from monarch_sync import HostView
from monarch_sync.messages import Staged, decode, encode
from tests.support import wait_for


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / ".venv/bin").mkdir(parents=True)
    (folder / ".venv/bin/tool").write_text("#!/bin/sh\n")
    (folder / ".gitignore").write_text(".venv\n")
    (folder / "train.py").write_text("one")
    return folder


@pytest.fixture
def hosts() -> Iterator[HostMesh]:
    job = ProcessJob({"hosts": 2})
    try:
        yield job.state(cached_path=None).hosts
    finally:
        job.kill()


def bring(source: MountSource, copy: MountCopy, view: HostView) -> bool:
    """Whether there was something to bring."""
    source.look()
    push = source.push(view, copy.generation + 1)
    if push is None:
        return False
    step = push.first()
    while not isinstance(step, Staged):
        blobs = [bytes(blob) for blob in step.blobs]
        step = push.receive(decode(copy.handle(encode(step.message), blobs)))
    push.committed(decode(copy.commit(push.generation)))
    return True


def test_a_copy_becomes_what_its_source_is(source: Path, tmp_path: Path) -> None:
    author, copy, view = MountSource(source), MountCopy(tmp_path / "copy"), HostView()
    assert bring(author, copy, view)
    assert (tmp_path / "copy/train.py").read_text() == "one"
    assert (tmp_path / "copy/.venv/bin/tool").exists()  # git's rules have no say
    assert not bring(author, copy, view)
    (source / "train.py").unlink()
    (source / "eval.py").write_text("two")
    assert bring(author, copy, view)
    assert not (tmp_path / "copy/train.py").exists()
    assert (tmp_path / "copy/eval.py").read_text() == "two"
    author.close()
    copy.close()


def test_a_source_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    author, copy, view = MountSource(tmp_path / "later"), MountCopy(tmp_path / "copy"), HostView()
    assert not bring(author, copy, view)
    (tmp_path / "later").mkdir()
    (tmp_path / "later/log").write_text("begun")
    assert bring(author, copy, view)
    assert (tmp_path / "copy/log").read_text() == "begun"
    author.close()
    copy.close()


def test_a_folder_follows_edits_on_all_hosts(hosts: HostMesh, source: Path, tmp_path: Path) -> None:
    place = tmp_path / "mount"
    with remotemount(hosts, str(source), str(place)) as mount:
        assert (place / "train.py").read_text() == "one"
        (source / "train.py").write_text("edited")
        wait_for(lambda: (place / "train.py").read_text() == "edited")
        (source / "more.py").write_text("more")
        mount.refresh()
        assert (place / "more.py").read_text() == "more"


def test_folders_of_hosts_are_gathered_by_their_coordinates(
    hosts: HostMesh, tmp_path: Path
) -> None:
    for host in range(2):
        (tmp_path / f"out/hosts_{host}").mkdir(parents=True)
        (tmp_path / f"out/hosts_{host}/log").write_text(str(host))
    with gather_mount(hosts, f"{tmp_path}/out/$SUBDIR", str(tmp_path / "all")):
        assert (tmp_path / "all/hosts_1/log").read_text() == "1"
        (tmp_path / "out/hosts_0/log").write_text("0 and more")
        wait_for(lambda: (tmp_path / "all/hosts_0/log").read_text() == "0 and more")


def test_a_mount_at_its_source_touches_nothing_and_one_inside_it_is_refused(source: Path) -> None:
    with remotemount(this_host(), str(source)):
        assert sorted(path.name for path in source.iterdir()) == [
            ".gitignore", ".venv", "train.py",
        ]  # fmt: skip
    with pytest.raises(ActorError, match="one is inside the other"):
        remotemount(this_host(), str(source), str(source / "inside")).open()


def test_a_job_has_its_mounts_once_and_ends_them(source: Path, tmp_path: Path) -> None:
    job = ProcessJob({"hosts": 1})
    job.remote_mount(source, str(tmp_path / "mount"))
    job.gather_mount(str(tmp_path / "mount"), str(tmp_path / "all"))
    job.state(cached_path=None)
    assert (tmp_path / "all/hosts_0/train.py").read_text() == "one"
    before = list(job._mounts)
    job.state(cached_path=None)
    assert job._mounts == before
    job.kill()
    assert job._mounts == []
