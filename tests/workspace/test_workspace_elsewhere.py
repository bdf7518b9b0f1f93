"""Pushes that come from another process, and processes that die in the middle of a push."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import monarch.actor
from monarch.actor import Channel, HostMesh, MeshFailure
from monarch.config import runtime_dir
from monarch.job import ProcessJob
from tests.support import is_running, wait_for
from tests.workspace.conftest import Project, replica_of
from tests.workspace.steps import wait_for_fence

BUSY = """
import os

from monarch.actor import Actor, Channel, context, endpoint

ANSWER = 1


class Busy(Actor):
    @endpoint
    def work(self, started):
        gate, wait = Channel.open()
        started.send((gate, os.getpid()))
        wait.recv().get(timeout=60)

    @endpoint
    def stamp(self):
        return context().generation, ANSWER
"""


def _push(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "monarch.cli.main", "sync"],
        cwd=folder, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


@pytest.mark.long
def test_a_push_from_elsewhere_switches_the_procs_of_the_client(
    project: Project, job: ProcessJob, hosts: HostMesh
) -> None:
    job.dump(project.root / ".monarch/job_state.json")
    pushed = _push(project.root)
    assert pushed.returncode == 0, pushed.stdout + pushed.stderr
    procs = hosts.spawn_procs(name="trainers")
    steppers: Any = procs.spawn("stepper", project.load("stepper").Stepper)
    assert steppers.stamp.call().get(timeout=30).values() == [(1, 1)] * 2

    project.edit("stepper.py", "SCALE = 1", "SCALE = 2")
    pushed = _push(project.root)
    assert pushed.returncode == 0, pushed.stdout + pushed.stderr
    assert "✓ gen 2  1 file → 2 hosts" in pushed.stdout
    assert "reloaded stepper.py" in pushed.stdout
    assert "patched Stepper×2" in pushed.stdout
    assert steppers.stamp.call().get(timeout=30).values() == [(2, 2)] * 2

    project.edit("stepper.py", "SCALE = 2", "SCALE = (2")
    refused = _push(project.root)
    assert refused.returncode == 1
    assert "stepper.py:7" in refused.stdout
    assert "still on gen 2" in refused.stdout
    assert steppers.stamp.call().get(timeout=30).values() == [(2, 2)] * 2
    assert "SCALE = 2" in (replica_of(job) / "stepper.py").read_text()

    # And the client's own pushes go on from there.
    project.edit("stepper.py", "SCALE = (2", "SCALE = 3")
    assert project.sync(procs).ok
    assert steppers.stamp.call().get(timeout=30).values() == [(3, 3)] * 2


@pytest.mark.parametrize("who", ["proc", "host agent"])
def test_death_during_a_switch_ends_the_push(
    who: str,
    project: Project,
    job: ProcessJob,
    hosts: HostMesh,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failures: list[MeshFailure] = []
    monkeypatch.setattr(monarch.actor, "unhandled_fault_hook", failures.append)
    project.write("busy.py", BUSY)
    procs = hosts.spawn_procs(name="trainers")
    first = project.sync(procs).generation
    busy: Any = procs.spawn("busy", project.load("busy").Busy)
    port, started = Channel.open()
    working = busy.slice(hosts=0).work.call_one(port)
    _, pid = started.recv().get(timeout=30)

    project.edit("busy.py", "ANSWER = 1", "ANSWER = 2")
    ends: list[Any] = []
    pusher = threading.Thread(target=lambda: ends.append(_outcome(lambda: project.sync(procs))))
    pusher.start()
    wait_for_fence(3)
    assert "ANSWER = 1" in (replica_of(job) / "busy.py").read_text(), "files before all stand"
    victim = pid if who == "proc" else job.hosts[0].pid
    os.kill(victim, signal.SIGKILL)
    pusher.join(30)
    assert len(ends) == 1, "the push hangs"
    with pytest.raises(Exception, match="trainers"):
        working.get(timeout=30)
    wait_for(lambda: not is_running(pid), what="the proc to end")
    wait_for(lambda: failures, what="the owner to be told")
    # The other rank runs the new code or, if the push was taken back, the old.
    generation, answer = busy.slice(hosts=1).stamp.call_one().get(timeout=30)
    assert (generation, answer) in [(first, 1), (first + 1, 2)]
    for sockets in Path(runtime_dir()).glob(f"*-{victim}-*"):
        shutil.rmtree(sockets)  # as the next program's sweep would


def _outcome(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except Exception as error:
        return error
