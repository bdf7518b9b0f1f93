"""A project folder to edit and sync, and meshes to run it on."""

from __future__ import annotations

import asyncio
import importlib
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from monarch.actor import HostMesh, ProcMesh, this_host
from monarch.config import runtime_dir
from monarch.job import ProcessJob
from monarch.runtime.client_agent import client
from monarch.runtime.ends.process_start import process_start
from monarch_sync import SyncReport, Workspace
from monarch_sync.replicas.state_folder import find_state_folder
from tests.support import wait_for

STEPPER = """
import os
import sys

from monarch.actor import Actor, Port, context, endpoint

SCALE = 1


class Stepper(Actor):
    def __init__(self):
        self.count = 0

    @endpoint
    def step(self):
        self.count += 1
        return self.amount(), self.count

    def amount(self):
        return SCALE * 10

    @endpoint
    def stamp(self):
        return context().generation, SCALE

    @endpoint
    def where(self):
        return os.environ.get("WORKSPACE_DIR"), sys.path[0], sys.modules[__name__].__file__
"""


class Project:
    """A folder of modules, importable here."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.workspace = Workspace(dirs={root: ""})

    def write(self, name: str, text: str) -> Path:
        """As an editor saves: procs may run on these very files, and import one meanwhile."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        saved = self.root.with_name("saved")
        saved.write_text(textwrap.dedent(text))
        saved.replace(path)
        return path

    def edit(self, name: str, old: str, new: str) -> None:
        text = (self.root / name).read_text()
        assert text.count(old) == 1
        self.write(name, text.replace(old, new))

    def load(self, name: str) -> ModuleType:
        importlib.invalidate_caches()
        return importlib.import_module(name)

    def sync(self, mesh: HostMesh | ProcMesh, **options: Any) -> SyncReport:
        return asyncio.run(mesh.sync_workspace(self.workspace, **options))


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    root = tmp_path / "project"
    root.mkdir()
    before = set(sys.modules)
    sys.path.insert(0, os.fspath(root))
    made = Project(root)
    made.write("stepper.py", STEPPER)
    yield made
    sys.path.remove(os.fspath(root))
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(root)):
            del sys.modules[name]
    sys.path_importer_cache.pop(os.fspath(root), None)
    importlib.invalidate_caches()


@pytest.fixture
def job() -> Iterator[ProcessJob]:
    """Two hosts with workspace folders of their own."""
    made = ProcessJob({"trainers": 2})
    yield made
    made.kill()


@pytest.fixture
def hosts(job: ProcessJob) -> HostMesh:
    return job.state(cached_path=None).trainers


@pytest.fixture(params=["replicas", "in place"])
def procs(request: pytest.FixtureRequest) -> ProcMesh:
    """Two procs: on a host each, with copies of the files, or here, on the files themselves."""
    if request.param == "replicas":
        hosts: HostMesh = request.getfixturevalue("hosts")
        return hosts.spawn_procs(name="trainers")
    return this_host().spawn_procs({"gpus": 2}, name="trainers")


def restart(job: ProcessJob, index: int, meanwhile: Callable[[], object] = lambda: None) -> None:
    """SIGKILL a host agent, and start it again, as an init system would."""
    host = job.hosts[index]
    links = client().links
    if host.is_running:
        if host.url in links:  # A handshake under way may end after the next one's start.
            link = links[host.url]
            wait_for(lambda: link.ready.is_set or link.is_lost, what="its client to meet it")
        os.kill(host.pid, signal.SIGKILL)
    wait_for(lambda: not host.is_running, what="its end")
    # One that is back before anybody has seen it go is for no test to be lucky with.
    if host.url in links and links[host.url].ready.is_set:
        wait_for(lambda: links[host.url].is_lost, what="its client to notice")
    Path(host.url.removeprefix("ipc://")).unlink(missing_ok=True)
    meanwhile()
    with open(host.log, "ab") as log:
        child = subprocess.Popen(
            [
                *(sys.executable, "-m", "monarch.runtime.entry.host_main"),
                *(host.url, f"{host.mesh}{index}"),
            ],
            env={**os.environ, "WORKSPACE_DIR": host.workspace},
            start_new_session=True, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    job._children.append(child)
    started = wait_for(lambda: process_start(child.pid), what="its start")
    job.hosts[index] = host._replace(pid=child.pid, started=started)
    for sockets in Path(runtime_dir()).glob(f"*-{host.pid}-*"):
        shutil.rmtree(sockets)  # as the next program's sweep would


def replica_of(job: ProcessJob, index: int = 0) -> Path:
    return Path(job.hosts[index].workspace)


def state_of(job: ProcessJob, index: int = 0) -> Path:
    """Where the replica keeps what it knows."""
    state = find_state_folder(replica_of(job, index))
    assert state is not None
    return state
