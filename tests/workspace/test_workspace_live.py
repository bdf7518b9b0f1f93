"""What live actors make of an edit: they run it, all of them, and keep what they have."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import Actor, ActorMesh, HostMesh, ProcMesh, endpoint, this_host
from monarch.job import ProcessJob
from monarch.runtime import process
from monarch_sync import SyncFailed, Workspace, WorkspaceMissing
from tests.actors import Echo
from tests.workspace.conftest import STEPPER, Project, replica_of


class Importer(Actor):
    @endpoint
    def get(self, name: str) -> Any:
        return importlib.import_module(name).A


def _values(mesh_call: Any) -> list[Any]:
    return list(mesh_call.call().get(timeout=30).values())


def _steppers(project: Project, procs: ProcMesh) -> ActorMesh[Any]:
    assert project.sync(procs).ok
    actors: ActorMesh[Any] = procs.spawn("stepper", project.load("stepper").Stepper)
    assert _values(actors.step) == [(10, 1)] * 2
    return actors


@pytest.mark.long_but(1)
def test_all_ranks_run_an_edit_and_keep_their_state(project: Project, procs: ProcMesh) -> None:
    steppers = _steppers(project, procs)
    before = project.sync(procs).generation

    project.edit("stepper.py", "return SCALE * 10", "return SCALE * 10 + 5")
    report = project.sync(procs)
    assert _values(steppers.step) == [(15, 2)] * 2
    assert report.generation == before + 1
    assert report.changed_files == ["stepper.py"]
    assert report.modules_reloaded == ["stepper.py"]
    assert report.actors_patched == {"Stepper": 2}

    project.edit("stepper.py", "SCALE = 1", "SCALE = 7")
    project.write("stepper.py", (project.root / "stepper.py").read_text() + NEW_ENDPOINT)
    assert project.sync(procs).ok
    assert _values(steppers.step) == [(75, 3)] * 2
    assert _values(steppers.total) == [3, 3]
    assert _values(steppers.stamp) == [(before + 2, 7)] * 2


NEW_ENDPOINT = """
    @endpoint
    def total(self):
        return self.count
"""


@pytest.mark.long_but(1)
def test_an_edit_before_the_first_push_reaches_the_program_too(
    project: Project, procs: ProcMesh
) -> None:
    """Nobody has followed its imports until then."""
    stepper = project.load("stepper")
    steppers = procs.spawn("stepper", stepper.Stepper)
    assert _values(steppers.step) == [(10, 1)] * 2
    project.edit("stepper.py", "SCALE = 1", "SCALE = 7")
    project.edit("stepper.py", "def step(self):", "def step(self, by):")
    project.edit("stepper.py", "self.count += 1", "self.count += by")
    project.write("stepper.py", (project.root / "stepper.py").read_text() + NEW_ENDPOINT)
    assert project.sync(procs).ok
    assert stepper.SCALE == 7
    assert list(steppers.step.call(4).get(timeout=30).values()) == [(70, 5)] * 2
    assert _values(steppers.total) == [5, 5]


RELOADING = """
from monarch.actor import Actor, endpoint

SCALE = 1


class Plain(Actor):
    def __init__(self):
        self.heard = []

    def __reload__(self, change):
        self.heard.append((SCALE, sorted(change.modules)))

    @endpoint
    def told(self):
        return self.heard


class Async(Actor):
    def __init__(self):
        self.heard = []

    async def __reload__(self, change):
        self.heard.append((SCALE, sorted(change.modules)))

    @endpoint
    async def told(self):
        return self.heard
"""


@pytest.mark.long_but(1)
@pytest.mark.parametrize("kind", ["Plain", "Async"])
def test_an_actor_hears_of_new_code_before_its_next_message(
    kind: str, project: Project, procs: ProcMesh
) -> None:
    project.write("reloading.py", RELOADING)
    assert project.sync(procs).ok
    actors = procs.spawn("actors", getattr(project.load("reloading"), kind))
    assert _values(actors.told) == [[]] * 2
    project.edit("reloading.py", "SCALE = 1", "SCALE = 2")
    assert project.sync(procs).ok
    assert _values(actors.told) == [[(2, ["reloading"])]] * 2


@pytest.mark.long
def test_a_removed_endpoint_is_refused_by_name(project: Project, procs: ProcMesh) -> None:
    steppers = _steppers(project, procs)
    start = STEPPER.index("    @endpoint\n    def stamp")
    end = STEPPER.index("    @endpoint\n    def where")
    project.write("stepper.py", STEPPER[:start] + STEPPER[end:])
    assert project.sync(procs).ok
    with pytest.raises(Exception, match="stamp"):
        steppers.stamp.call().get(timeout=30)
    assert _values(steppers.step) == [(10, 2)] * 2


@pytest.mark.long_but(1)
def test_a_syntax_error_changes_nobody(project: Project, procs: ProcMesh) -> None:
    steppers = _steppers(project, procs)
    stamps = _values(steppers.stamp)

    project.edit("stepper.py", "SCALE = 1", "SCALE = (1")
    refused = project.sync(procs)
    assert not refused.ok
    assert refused.generation == stamps[0][0]
    text = str(refused)
    assert "stepper.py:7" in text
    assert "    SCALE = (1\n" in text
    assert any(line.strip() == "^" for line in text.splitlines())
    assert "trainers 0" in text
    assert str(project.root) not in text
    with pytest.raises(SyncFailed, match=r"stepper\.py:7"):
        refused.raise_for_errors()
    assert _values(steppers.stamp) == stamps
    assert _values(steppers.step) == [(10, 2)] * 2

    project.edit("stepper.py", "SCALE = (1", "SCALE = 3")
    fixed = project.sync(procs)
    assert fixed.ok
    assert fixed.generation == refused.generation + 1
    assert _values(steppers.step) == [(30, 3)] * 2


@pytest.mark.long
def test_a_module_body_that_raises_changes_nobody(project: Project, procs: ProcMesh) -> None:
    steppers = _steppers(project, procs)
    stamps = _values(steppers.stamp)
    project.edit("stepper.py", "SCALE = 1", "SCALE = 1 // 0")
    refused = project.sync(procs)
    assert not refused.ok
    assert "stepper.py:7" in str(refused)
    assert "ZeroDivisionError" in str(refused)
    assert _values(steppers.stamp) == stamps
    assert _values(steppers.step) == [(10, 2)] * 2


# Not `os.kill`: that is for the whole process, and the thread that tries the code may go on.
@pytest.mark.long
@pytest.mark.parametrize("end", ["os._exit(3)", "signal.raise_signal(signal.SIGSEGV)"])
def test_code_that_ends_the_process_as_it_is_tried_is_refused(
    project: Project, job: ProcessJob, hosts: HostMesh, faults: list[Any], end: str
) -> None:
    """The client has not imported it: it would have ended, too."""
    project.write("other.py", "A = 1\n")
    first = project.sync(hosts)
    actors: Any = hosts.spawn_procs(name="trainers").spawn("importer", Importer)
    actors.get.call("other").get(timeout=30)
    project.write("other.py", f"import os, signal\n{end}\n")
    report = project.sync(hosts)
    assert not report.ok
    assert "its process ended as it tried the new code" in str(report)
    assert re.search(r"\(said by trainers [01]", str(report)), report
    assert (replica_of(job) / "other.py").read_text() == "A = 1\n"
    project.write("other.py", "A = 2\n")
    mended = project.sync(hosts)
    assert mended.ok
    assert mended.generation == first.generation + 1
    again: Any = hosts.spawn_procs(name="others").spawn("importer", Importer)
    assert set(again.get.call("other").get(timeout=30).values()) == {2}


@pytest.mark.long_but(1)
def test_one_bad_module_of_two_stops_both(project: Project, procs: ProcMesh) -> None:
    project.write("factors.py", "FACTOR = 2\n")
    project.edit("stepper.py", "import os\n", "import os\n\nimport factors\n")
    project.edit("stepper.py", "SCALE * 10", "factors.FACTOR * 10")
    project.sync(procs)
    steppers = procs.spawn("stepper", project.load("stepper").Stepper)
    assert _values(steppers.step) == [(20, 1)] * 2

    project.write("factors.py", "FACTOR = 3\n")
    project.edit("stepper.py", "SCALE = 1", "SCALE = ")
    assert not project.sync(procs).ok
    assert _values(steppers.step) == [(20, 2)] * 2

    project.edit("stepper.py", "SCALE = ", "SCALE = 4")
    report = project.sync(procs)
    assert sorted(report.modules_reloaded) == ["factors.py", "stepper.py"]
    assert _values(steppers.step) == [(30, 3)] * 2


def test_an_unchanged_workspace_makes_no_generation(project: Project, procs: ProcMesh) -> None:
    first = project.sync(procs)
    again = project.sync(procs)
    assert again.ok
    assert again.generation == first.generation
    assert again.changed_files == []
    assert again.modules_reloaded == []


def test_an_edit_that_no_process_has_imported_makes_a_generation_all_the_same(
    project: Project,
) -> None:
    """A run that holds waits for one, and may have no process left."""
    first = project.sync(this_host())
    project.edit("stepper.py", "SCALE = 1", "SCALE = 2")
    mended = project.sync(this_host())
    assert mended.generation == first.generation + 1
    assert mended.changed_files == ["stepper.py"]
    assert process.current().generation == mended.generation
    assert project.sync(this_host()).generation == mended.generation


def test_reload_off_moves_files_and_no_code(
    project: Project, job: ProcessJob, hosts: HostMesh
) -> None:
    procs = hosts.spawn_procs(name="trainers")
    steppers = _steppers(project, procs)
    project.edit("stepper.py", "SCALE = 1", "SCALE = 2")
    report = project.sync(procs, reload="off")
    assert report.ok
    assert report.modules_reloaded == []
    assert "SCALE = 2" in (replica_of(job) / "stepper.py").read_text()
    assert _values(steppers.step) == [(10, 2)] * 2
    assert project.sync(procs, auto_reload=False).generation == report.generation


@pytest.mark.long_but(1)
def test_what_came_without_a_reload_runs_after_the_next_one(
    project: Project, procs: ProcMesh
) -> None:
    project.write("other.py", "A = 1\n")
    steppers = _steppers(project, procs)
    project.edit("stepper.py", "SCALE = 1", "SCALE = 2")
    assert project.sync(procs, reload="off").ok
    project.edit("other.py", "A = 1", "A = 2")
    assert project.sync(procs, reload="off").ok
    assert _values(steppers.step) == [(10, 2)] * 2
    report = project.sync(procs)
    assert report.ok
    assert "stepper.py" in report.modules_reloaded
    assert _values(steppers.step) == [(20, 3)] * 2
    assert project.sync(procs).generation == report.generation, "and then there is nothing new"


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    project = Project(tmp_path / "nowhere")
    with pytest.raises(WorkspaceMissing, match="nowhere"):
        project.sync(this_host())


def test_hosts_that_were_shut_down_take_no_workspace(project: Project, hosts: HostMesh) -> None:
    assert project.sync(hosts).ok
    hosts.shutdown().get(timeout=30)
    with pytest.raises(RuntimeError, match="shut down"):
        project.sync(hosts)


@pytest.mark.long_but(1)
@pytest.mark.parametrize("what", ["hosts", "procs", "actors", "slice", "slice of actors"])
def test_hosts_procs_actors_and_slices_sync(what: str, project: Project, hosts: HostMesh) -> None:
    procs = hosts.spawn_procs(name="trainers")
    actors = procs.spawn("echo", Echo)
    mesh: Any = {
        "hosts": hosts,
        "procs": procs,
        "actors": actors,
        "slice": procs.slice(hosts=1),
        "slice of actors": actors.slice(hosts=1),
    }[what]
    report = project.sync(mesh)
    assert [host.host for host in report.hosts] == ["trainers0", "trainers1"][-len(report.hosts) :]
    assert len(report.hosts) == (1 if what.startswith("slice") else 2)
    steppers = procs.slice(hosts=1).spawn("stepper", project.load("stepper").Stepper)
    assert steppers.stamp.call_one().get(timeout=30) == (report.generation, 1)
    project.edit("stepper.py", "SCALE = 1", "SCALE = 2")
    assert project.sync(mesh).ok
    assert steppers.stamp.call_one().get(timeout=30) == (report.generation + 1, 2)


@pytest.mark.long
def test_later_procs_start_with_the_current_generation(
    project: Project, job: ProcessJob, hosts: HostMesh
) -> None:
    first = project.sync(hosts).generation
    project.edit("stepper.py", "SCALE = 1", "SCALE = 2")
    assert project.sync(hosts).generation == first + 1
    project.load("stepper")
    project.write("late.py", STEPPER)
    assert project.sync(hosts).generation == first + 2
    steppers = hosts.spawn_procs(name="later").spawn("stepper", project.load("late").Stepper)
    assert _values(steppers.stamp) == [(first + 2, 1)] * 2
    for index, (workspace_dir, first_path, file) in enumerate(_values(steppers.where)):
        replica = str(replica_of(job, index))
        assert workspace_dir == replica
        assert first_path == replica
        assert file == f"{replica}/late.py"


@pytest.mark.long
def test_two_folders_land_where_the_mapping_says(
    project: Project, job: ProcessJob, hosts: HostMesh, tmp_path: Path
) -> None:
    library = tmp_path / "library"
    library.mkdir()
    (library / "gadgets.py").write_text("SIZE = 1\n")
    project.workspace = Workspace(dirs={project.root: "app", library: "lib/deep"})
    assert project.sync(hosts).ok
    assert (replica_of(job) / "app/stepper.py").exists()
    assert (replica_of(job) / "lib/deep/gadgets.py").exists()
    steppers = hosts.spawn_procs(name="later").spawn("s", project.load("stepper").Stepper)
    for index, (root, _, file) in enumerate(_values(steppers.where)):
        assert root == str(replica_of(job, index))
        assert file == f"{root}/app/stepper.py"
