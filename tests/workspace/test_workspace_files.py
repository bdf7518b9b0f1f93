"""What happens to the files on the hosts: ours follow, others stay."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import HostMesh, ProcMesh
from monarch.job import ProcessJob
from monarch.runtime.workspace.reload_plan import FileChange, ReloadPlan
from monarch_sync import Workspace
from tests.support import wait_for
from tests.workspace.conftest import Project, replica_of, state_of


def _tree(root: Path) -> dict[str, str]:
    """The files of a folder."""
    return {
        str(path.relative_to(root)): path.read_text()
        for path in root.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_files_added_deleted_renamed(project: Project, job: ProcessJob, hosts: HostMesh) -> None:
    project.write("data/notes.txt", "notes\n" * 100)
    project.write("data/other.txt", "other\n")
    project.sync(hosts)
    assert [_tree(replica_of(job, i)) for i in (0, 1)] == [_tree(project.root)] * 2

    project.write("data/new.txt", "new\n")
    (project.root / "data/other.txt").unlink()
    (project.root / "data/notes.txt").rename(project.root / "moved.txt")
    report = project.sync(hosts)
    assert [_tree(replica_of(job, i)) for i in (0, 1)] == [_tree(project.root)] * 2
    assert report.changed_files == [
        "data/new.txt", "data/notes.txt", "data/other.txt", "moved.txt",
    ]  # fmt: skip
    for host in report.hosts:
        counts = (host.num_written, host.num_moved, host.num_deleted, host.num_unchanged)
        assert counts == (1, 1, 2, 1), "what moved is gone from its old place"
        assert 0 < host.bytes_sent <= report.bytes_sent
    assert report.bytes_sent < 2 * 600, "the renamed file travelled again"


def test_a_mode_is_no_file_that_changed(project: Project, hosts: HostMesh) -> None:
    project.write("notes.txt", "1\n")
    num_files = len(project.sync(hosts).changed_files)
    (project.root / "notes.txt").chmod(0o600)
    report = project.sync(hosts)
    assert report.changed_files == []
    assert "  1 mode → 2 hosts  " in report.one_line()
    same = project.sync(hosts)
    assert [host.num_unchanged for host in same.hosts] == [num_files] * 2, "nothing was sent"


def test_what_was_replaced_is_filed_once_nothing_else_comes(
    project: Project, job: ProcessJob, hosts: HostMesh
) -> None:
    for text in ("old\n", "new\n"):
        project.write("notes.txt", text)
        assert project.sync(hosts).ok
    for number in (0, 1):
        store = state_of(job, number) / "store"
        wait_for(
            lambda store=store: "old\n" in [path.read_text() for path in store.iterdir()],
            what="the old file in the store",
        )


def test_a_module_renamed_under_a_live_actor(project: Project, hosts: HostMesh) -> None:
    procs = hosts.spawn_procs(name="trainers")
    project.sync(procs)
    steppers = procs.spawn("stepper", project.load("stepper").Stepper)
    assert steppers.step.call().get(timeout=30).values() == [(10, 1)] * 2
    (project.root / "stepper.py").rename(project.root / "walker.py")
    assert project.sync(procs).ok
    assert steppers.step.call().get(timeout=30).values() == [(10, 2)] * 2


def test_live_code_follows_its_files_to_where_another_mapping_lands_them(
    project: Project, job: ProcessJob, hosts: HostMesh
) -> None:
    project.write("kit/__init__.py", "MADE = []\n")
    project.write("kit/parts.py", "def weight():\n    return 1\n")
    project.edit("stepper.py", "SCALE = 1", "from kit import MADE, parts\n\nSCALE = 1")
    project.edit("stepper.py", "SCALE * 10", "SCALE * 10 * parts.weight() + len(MADE)")
    project.edit("stepper.py", "self.count = 0", "self.count = 0\n        MADE.append(self)")
    procs = hosts.spawn_procs(name="trainers")
    assert project.sync(procs).ok
    steppers = procs.spawn("stepper", project.load("stepper").Stepper)
    assert steppers.step.call().get(timeout=30).values() == [(11, 1)] * 2

    project.workspace = Workspace(dirs={project.root: "app"})
    assert project.sync(procs).ok
    for index, (_, _, file) in enumerate(steppers.where.call().get(timeout=30).values()):
        assert file == f"{replica_of(job, index)}/app/stepper.py"
    project.edit("kit/parts.py", "return 1", "from kit import spare\n    return spare.WEIGHT")
    project.write("kit/spare.py", "WEIGHT = 3\n")
    assert project.sync(procs).ok
    assert steppers.step.call().get(timeout=30).values() == [(31, 2)] * 2

    project.workspace = Workspace(dirs={project.root: ""})
    project.edit("stepper.py", "SCALE = 1", "SCALE = 2")
    assert project.sync(procs).ok
    assert steppers.step.call().get(timeout=30).values() == [(61, 3)] * 2


def test_a_file_edited_on_the_host_is_kept_beside(
    project: Project, job: ProcessJob, hosts: HostMesh
) -> None:
    project.write("settings.toml", "rate = 1\n")
    project.sync(hosts)
    edited = replica_of(job) / "settings.toml"
    edited.write_text("rate = 99  # tried on the host\n")

    project.write("settings.toml", "rate = 2\n")
    report = project.sync(hosts)
    assert report.ok
    assert edited.read_text() == "rate = 2\n"
    [kept] = report.hosts[0].kept
    assert kept.startswith("settings.toml.host-")
    assert (replica_of(job) / kept).read_text() == "rate = 99  # tried on the host\n"
    assert report.hosts[1].kept == []
    assert f"kept as {kept}" in str(report)


def test_what_did_not_come_from_us_is_left_alone(
    project: Project, job: ProcessJob, hosts: HostMesh
) -> None:
    project.write("runs/readme.txt", "ours\n")
    project.sync(hosts)
    checkpoint = replica_of(job) / "runs/step_10.pt"
    checkpoint.write_text("theirs")
    (project.root / "runs/readme.txt").unlink()
    (project.root / "runs").rmdir()
    assert project.sync(hosts).ok
    assert checkpoint.read_text() == "theirs"
    assert not (replica_of(job) / "runs/readme.txt").exists()


@pytest.mark.long_but(1)
def test_names_that_are_no_utf_8_come_to_live_processes(project: Project, procs: ProcMesh) -> None:
    """And code with them; a push from elsewhere tells the owner the same way."""
    steppers: Any = procs.spawn("stepper", project.load("stepper").Stepper)
    project.sync(procs)
    steppers.step.call().get()  # they have the module now
    for name in ("bad\udcff.txt", "bad\udcff.py", "new\nline"):
        project.write(name, "A = 1\n")
    project.edit("stepper.py", "SCALE = 1", "SCALE = 3")
    report = project.sync(procs)
    assert report.ok, str(report)
    assert len(report.changed_files) == 4
    assert {amount for amount, _ in steppers.step.call().get().values()} == {30}
    plan = ReloadPlan(1, "digest", "auto", {"host": [FileChange("bad\udcff", "there")]})
    assert ReloadPlan.decode(plan.encode()) == plan


@pytest.mark.long_but(1)
def test_a_config_file_whose_name_is_no_utf_8_keeps_nobody_waiting(
    project: Project, procs: ProcMesh
) -> None:
    """What a process says of it could not be sent."""
    steppers: Any = procs.spawn("stepper", project.load("stepper").Stepper)
    project.sync(procs)
    steppers.step.call().get(timeout=30)
    project.write("bad\udcff.toml", "rate = 1\n")
    report = procs.sync_workspace(project.workspace).get(timeout=30)
    assert report.ok, str(report)
    json.dumps(report.to_dict())
    str(report).encode()


def test_what_cannot_travel_is_listed_and_the_rest_arrives(
    project: Project, job: ProcessJob, hosts: HostMesh, tmp_path: Path
) -> None:
    (tmp_path / "outside.txt").write_text("private")
    (project.root / "way_out").symlink_to("../outside.txt")
    (project.root / "within").symlink_to("stepper.py")
    os.mkfifo(project.root / "pipe")
    secret = project.write("secret.txt", "secret")
    secret.chmod(0)
    report = project.sync(hosts)
    assert report.ok
    problems = {problem.path for problem in report.problems}
    expected = {"way_out", "pipe"} if os.geteuid() == 0 else {"way_out", "pipe", "secret.txt"}
    assert problems == expected
    assert "left out way_out: " in str(report)
    replica = replica_of(job)
    assert os.readlink(replica / "within") == "stepper.py"
    assert (replica / "stepper.py").exists()
    assert not (replica / "way_out").is_symlink()


def test_what_git_ignores_stays_at_home(project: Project, job: ProcessJob, hosts: HostMesh) -> None:
    project.write(".gitignore", "*.log\nruns/\n")
    project.write("noise.log", "noise")
    project.write("runs/1.txt", "run")
    project.write("package/__init__.py", "")
    project.write("package/__pycache__/x.pyc", "")
    assert project.sync(hosts).ok
    assert set(_tree(replica_of(job))) == {".gitignore", "stepper.py", "package/__init__.py"}


@pytest.mark.parametrize("mode", [0o755, 0o644])
def test_modes_travel(mode: int, project: Project, job: ProcessJob, hosts: HostMesh) -> None:
    project.write("tool.sh", "#!/bin/sh\n").chmod(mode ^ 0o111)
    project.sync(hosts)
    (project.root / "tool.sh").chmod(mode)
    assert project.sync(hosts).ok
    status = (replica_of(job) / "tool.sh").stat()
    assert bool(status.st_mode & 0o100) == bool(mode & 0o100)
