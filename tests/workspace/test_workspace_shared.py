"""Hosts that see one folder, of their own or the author's: bytes go once, and each looks."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import HostMesh
from monarch.job import ProcessJob
from monarch.runtime.workspace.pushing.shared_folder import SharedFolder, folder_id
from monarch_sync.content.digest import digest_bytes
from monarch_sync.replicas.state_folder import make_state_folder
from tests.workspace.conftest import Project, restart
from tests.workspace.steps import PLAYER, Stamps


def _share(job: ProcessJob, folders: list[Path]) -> None:
    """Restart the hosts on these folders, before anybody has come to them."""
    for index, folder in enumerate(folders):
        job.hosts[index] = job.hosts[index]._replace(workspace=str(folder))
        restart(job, index)


def _edit(project: Project, mark: int) -> None:
    project.write("player.py", PLAYER.replace("MARK = 0", f"MARK = {mark}"))


@pytest.fixture
def two_mounts(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """A folder, and the same folder alone, without what lies beside it."""
    shared, alone = tmp_path / "above/shared", tmp_path / "alone"
    shared.mkdir(parents=True)
    alone.mkdir()
    mount = ["mount", "--bind", str(shared), str(alone)]
    if os.geteuid() or shutil.which("mount") is None or subprocess.run(mount).returncode:
        pytest.skip("nobody lets us mount a folder twice")
    yield shared, alone
    subprocess.run(["umount", "-l", str(alone)], check=True)


@pytest.mark.long
def test_a_host_that_sees_the_folder_alone_and_comes_later(
    project: Project, job: ProcessJob, two_mounts: tuple[Path, Path]
) -> None:
    """It cannot see that the first one keeps a state beside the folder, and begins one inside."""
    job.state(cached_path=None)
    shared, alone = two_mounts
    _share(job, [shared])
    hosts: HostMesh = job.state(cached_path=None).trainers
    _edit(project, 1)
    project.write("gone.txt", "1")
    assert project.sync(hosts.slice(hosts=0)).ok
    job.hosts[1] = job.hosts[1]._replace(workspace=str(alone))
    restart(job, 1)
    _edit(project, 2)
    report = project.sync(hosts)
    assert not report.ok
    assert "another host keeps the same folder: push again" in str(report)
    assert "MARK = 1" in (shared / "player.py").read_text()

    _edit(project, 3)
    (project.root / "gone.txt").unlink()
    report = project.sync(hosts)
    assert report.ok, str(report)
    assert sum(host.bytes_sent > 0 for host in report.hosts) == 1, "the bytes went twice"
    assert "MARK = 3" in (shared / "player.py").read_text()
    _edit(project, 4)
    report = project.sync(hosts)
    assert report.ok, str(report)
    assert sum(host.bytes_sent > 0 for host in report.hosts) == 1
    # The new state knows nothing of what was pushed before: that is the hosts' own, and kept.
    names = [path.name for path in alone.iterdir() if ".host-" not in path.name]
    assert sorted(names) == [".monarch", "gone.txt", "player.py", "stepper.py"]
    (kept,) = alone.glob("player.py.host-*")
    assert "MARK = 1" in kept.read_text()
    stamps: Any = hosts.spawn_procs(name="after").spawn("player", project.load("player").Player)
    values = stamps.stamp.call().get(timeout=60).values()
    assert values == [(report.generation, 4)] * 2


@pytest.mark.long
def test_two_hosts_on_one_folder(
    project: Project, job: ProcessJob, tmp_path: Path, faults: list[Any]
) -> None:
    job.state(cached_path=None)
    # Mounted in two places, as network file systems are.
    shared, elsewhere = tmp_path / "shared", tmp_path / "elsewhere"
    shared.mkdir()
    elsewhere.symlink_to(shared)
    _share(job, [shared, elsewhere])
    hosts: HostMesh = job.state(cached_path=None).trainers
    _edit(project, 0)
    project.write("large.txt", "".join(f"{n} of many\n" for n in range(10_000)))
    first = project.sync(hosts)
    assert first.ok, str(first)
    sent = sorted(host.bytes_sent for host in first.hosts)
    assert sent[0] == 0, "the bytes went twice"
    assert sent[1] > 1000
    procs = hosts.spawn_procs(name="trainers")
    players: Any = procs.spawn("player", project.load("player").Player)
    stamps = Stamps()
    for mark in (1, 2):
        _edit(project, mark)
        report = project.sync(procs)
        assert report.ok, str(report)
        values = players.stamp.call().get(timeout=60).values()
        assert values == [(report.generation, mark)] * 2
    stamps.close()
    stamps.check()
    _edit(project, 3)
    (project.root / "broken.py").write_text("")
    project.write("player.py", PLAYER + "\n(")
    refused = project.sync(procs)
    assert not refused.ok
    assert players.stamp.call().get(timeout=60).values() == values
    assert "MARK = 2" in (shared / "player.py").read_text()
    procs.stop().get(timeout=60)

    # Where the host that writes is gone, the other one does.
    writer = next(i for i, host in enumerate(first.hosts) if host.bytes_sent)
    os.kill(job.hosts[writer].pid, signal.SIGKILL)
    left = hosts.slice(hosts=1 - writer)
    _edit(project, 4)
    report = project.sync(left)
    assert report.ok, str(report)
    assert "MARK = 4" in (shared / "player.py").read_text()
    player: Any = left.spawn_procs(name="left").spawn("player", project.load("player").Player)
    assert player.stamp.call_one().get(timeout=60) == (report.generation, 4)


@pytest.mark.long
def test_a_host_on_the_authors_own_folder(
    project: Project, job: ProcessJob, faults: list[Any]
) -> None:
    job.state(cached_path=None)
    _share(job, [project.root, Path(job.hosts[1].workspace)])
    hosts: HostMesh = job.state(cached_path=None).trainers
    _edit(project, 0)
    first = project.sync(hosts)
    assert first.ok, str(first)
    assert first.hosts[0].bytes_sent == 0
    assert first.hosts[1].bytes_sent > 0
    procs = hosts.spawn_procs(name="trainers")
    players: Any = procs.spawn("player", project.load("player").Player)
    _edit(project, 1)
    before = (project.root / "player.py").stat()
    report = project.sync(procs)
    assert report.ok, str(report)
    assert players.stamp.call().get(timeout=60).values() == [(report.generation, 1)] * 2
    again = hosts.spawn_procs(name="more")
    players = again.spawn("player", project.load("player").Player)
    assert players.stamp.call().get(timeout=60).values() == [(report.generation, 1)] * 2
    now = (project.root / "player.py").stat()
    is_same = (now.st_ino, now.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert is_same, "our own file was written"


def test_each_looks_for_itself(tmp_path: Path) -> None:
    state = str(make_state_folder(tmp_path))
    folder = SharedFolder(str(tmp_path), state, patience_seconds=0.0)
    assert SharedFolder(str(tmp_path), state).id == folder.id == folder_id(tmp_path)
    (tmp_path / "a.py").write_bytes(b"new")
    good, gone = (b"a.py", digest_bytes(b"new")), (b"b.py", b"")
    assert folder.verify(3, "d3", [good, gone]) == ""
    assert (folder.generation, folder.digest) == (3, "d3")
    (tmp_path / "a.py").write_bytes(b"old")
    assert "a.py is not what" in folder.verify(4, "d4", [good])
    (tmp_path / "b.py").write_bytes(b"")
    assert "b.py is not what" in folder.verify(4, "d4", [gone])
    assert (folder.generation, folder.digest) == (3, "d3")
