"""What procs of `this_host()` find in a `$WORKSPACE_DIR` that they were given."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import Actor, ProcMesh, endpoint, proc_mesh, this_host
from monarch.runtime.client_agent import client
from monarch_sync import Workspace, WorkspaceEmptied
from tests.support import wait_for
from tests.workspace.conftest import Project


class Reader(Actor):
    """Reads what lies in the folder, and imports it from there."""

    @endpoint
    def workspace(self) -> str | None:
        return os.environ.get("WORKSPACE_DIR")

    @endpoint
    def read(self, name: str) -> str:
        return (Path(os.environ["WORKSPACE_DIR"]) / name).read_text()

    @endpoint
    def value(self) -> tuple[int, str]:
        import copied

        return copied.value(), copied.__file__

    def __reload__(self, change: Any) -> None:
        import copied

        if copied.VALUE == 13:
            raise ValueError("13 is not for me")


def _by_env(root: Path) -> ProcMesh:
    return proc_mesh(gpus=2, env={"WORKSPACE_DIR": os.fspath(root)})


def _by_bootstrap(root: Path) -> ProcMesh:
    def name_it() -> None:
        os.environ["WORKSPACE_DIR"] = os.fspath(root)
        sys.path.insert(0, os.fspath(root))

    return this_host().spawn_procs({"gpus": 2}, bootstrap=name_it)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "remote" / "workspace"


def _listed(root: Path) -> dict[str, str]:
    files = [path for path in root.rglob("*") if path.is_file()]
    return {path.relative_to(root).as_posix(): path.read_text() for path in files}


@pytest.mark.parametrize("give", [_by_env, _by_bootstrap])
@pytest.mark.parametrize("auto_reload", [True, False])
def test_the_files_are_there(
    give: Callable[[Path], ProcMesh], auto_reload: bool, project: Project, root: Path
) -> None:
    (project.root / "stepper.py").unlink()
    procs = give(root)
    readers: Any = procs.spawn("readers", Reader)
    project.write("config.toml", "rate = 1\n")
    workspace = Workspace(dirs=[project.root])
    report = procs.sync_workspace(workspace, auto_reload=auto_reload).get()
    assert report.ok, report
    assert set(readers.read.call("project/config.toml").get().values()) == {"rate = 1\n"}
    assert report.changed_files == ["project/config.toml"]
    assert [host.num_written for host in report.hosts] == [1]
    assert any(str(root) in note for note in report.notes)

    (root / "ours.txt").write_text("not from the author")
    project.write("config.toml", "rate = 2\n")
    project.write("more.toml", "a = 1\n")
    assert procs.sync_workspace(workspace, auto_reload=auto_reload).get().ok
    (project.root / "more.toml").unlink()
    report = procs.sync_workspace(workspace, auto_reload=auto_reload).get()
    assert (report.ok, report.hosts[0].num_deleted, report.notes) == (True, 1, [])
    assert _listed(root) == {
        "ours.txt": "not from the author", "project/config.toml": "rate = 2\n",
    }  # fmt: skip
    procs.stop().get()


def test_what_was_imported_from_there_reloads(project: Project, root: Path) -> None:
    project.write("copied.py", "VALUE = 1\n\n\ndef value():\n    return VALUE\n")
    procs = _by_bootstrap(root)
    readers: Any = procs.spawn("readers", Reader)
    assert project.sync(procs).ok
    there = os.fspath(root / "copied.py")
    assert set(readers.value.call().get().values()) == {(1, there)}
    project.edit("copied.py", "VALUE = 1", "VALUE = 2")
    report = project.sync(procs)
    assert report.ok, report
    assert set(readers.value.call().get().values()) == {(2, there)}
    procs.stop().get()


@pytest.mark.parametrize(
    ("old", "new"), [("    return VALUE", "    return ("), ("VALUE = 1", "VALUE = 13")]
)
def test_a_refused_push_leaves_what_was_there(
    old: str, new: str, project: Project, root: Path
) -> None:
    """Refused before the files are shown, and after."""
    project.write("copied.py", "VALUE = 1\n\n\ndef value():\n    return VALUE\n")
    procs = _by_bootstrap(root)
    readers: Any = procs.spawn("readers", Reader)
    assert project.sync(procs).ok
    readers.value.call().get()
    before = _listed(root)
    project.edit("copied.py", old, new)
    assert not project.sync(procs).ok
    assert _listed(root) == before
    assert {number for number, _ in readers.value.call().get().values()} == {1}
    procs.stop().get()


def test_one_that_cannot_be_written_refuses_the_push(project: Project, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    procs = _by_env(tmp_path / "file" / "workspace")
    report = project.sync(procs)
    assert not report.ok
    assert "$WORKSPACE_DIR of procs here" in "\n".join(report.errors)
    procs.stop().get()


def test_procs_that_were_only_just_ordered_count(root: Path) -> None:
    """The order is a message to the host agent of this process, which may be busy."""
    node = client().node
    go = threading.Event()

    def be_busy() -> None:
        go.wait(30)

    node.loop.call_soon(be_busy)
    procs = _by_env(root)
    before = len(node.calls)
    with ThreadPoolExecutor(1) as pool:
        try:
            asked = pool.submit(client().given_workspaces)
            wait_for(lambda: asked.done() or len(node.calls) > before, what="a question")
        finally:
            go.set()
        assert asked.result(timeout=30) == [os.fspath(root)]
    procs.stop().get()


def test_a_folder_that_seems_empty_does_not_empty_it(project: Project, root: Path) -> None:
    procs = _by_env(root)
    assert project.sync(procs).ok
    (project.root / "stepper.py").unlink()
    anew = Workspace(dirs={project.root: ""}, ignore=["*.log"])
    with pytest.raises(WorkspaceEmptied):
        procs.sync_workspace(anew).get()
    assert set(_listed(root)) == {"stepper.py"}
    assert procs.sync_workspace(anew, allow_empty=True).get().ok
    assert _listed(root) == {}
    procs.stop().get()


def test_without_one_of_their_own_nothing_is_copied(
    project: Project, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKSPACE_DIR", os.fspath(root))
    plain = this_host().spawn_procs(bootstrap=lambda: None)
    for procs in (plain, _by_env(project.root)):
        before = _listed(project.root)
        report = project.sync(procs)
        assert (report.ok, report.hosts[0].num_written, report.notes) == (True, 0, [])
        assert not root.exists()
        assert _listed(project.root) == before
        procs.stop().get()
