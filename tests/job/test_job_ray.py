"""Jobs of Ray, on a cluster of three nodes on this machine."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import shutdown_context
from monarch.errors import JobError
from monarch.job import RayJob, job_load
from monarch.runtime.process import is_bootstrapped
from tests.actors import Echo
from tests.cli.command_folder import CommandFolder
from tests.job.kinds import agent_pids
from tests.job.ray_cluster import RayCluster
from tests.support import wait_for


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(JobError, match=r"pip install 'monarch-loop\[ray\]'"):
        RayJob({"a": 1}).state(cached_path=None)


@pytest.fixture
def address() -> Iterator[str]:
    yield RayCluster.shared().address
    if is_bootstrapped():
        shutdown_context().get()
    importlib.import_module("ray").shutdown()


@pytest.mark.system
def test_a_job_of_ray(address: str, tmp_path: Path, faults: Any) -> None:
    path = tmp_path / "state.json"
    job = RayJob({"trainers": 2, "evaluators": 1}, address)
    state = job.state(str(path))
    echo = state.trainers.spawn_procs().spawn("echo", Echo)
    assert echo.echo.call(3).get(timeout=60).values() == [3, 3]
    again = job_load(path)
    assert again.is_running()
    assert again.can_run(RayJob({"trainers": 2, "evaluators": 1}, address))
    names, pids = list(job.names_by_url().values()), agent_pids(job)
    os.kill(pids[0], signal.SIGKILL)
    wait_for(lambda: job.num_running() == 2, 60.0, what="the loss")
    # Ray makes the actor again, and with it the host, by its name.
    assert job.repair() == ["trainers0"]
    assert list(job.names_by_url().values()) == names
    assert agent_pids(job)[1:] == pids[1:]
    echo = job.state(str(path)).trainers.spawn_procs().spawn("echo", Echo)
    assert echo.echo.call(4).get(timeout=60).values() == [4, 4]
    # More nodes than there are.
    with pytest.raises(JobError, match="Ray has no place for 4 hosts"):
        RayJob({"a": 4}, address, timeout=3.0).state(cached_path=None)
    job.kill()
    assert not again.is_running()
    assert not path.exists()


@pytest.mark.system
def test_what_a_doctor_says_of_it(address: str, tmp_path: Path) -> None:
    folder = CommandFolder(tmp_path)
    text = '[job]\nkind = "ray"\nhosts = {{ t = {} }}\n[job.ray]\naddress = "{}"\n'
    folder.write("monarch.toml", text.format(3, address))
    assert "it has 3 nodes, of which 3 have" in " ".join(folder.monarch("doctor").split())
    folder.write("monarch.toml", text.format(4, address))
    told = " ".join(folder.monarch("doctor", status=1).split())
    assert "of which 3 have {'CPU': 1.0}; the job wants 4" in told


@pytest.mark.system
def test_a_ray_that_is_not_there() -> None:
    pytest.importorskip("ray", reason="no Ray here: `tools/system.sh` installs it")
    began = time.monotonic()
    with pytest.raises(JobError, match=r"cannot reach Ray at 127\.0\.0\.1:9"):
        RayJob({"a": 1}, "127.0.0.1:9").state(cached_path=None)
    assert time.monotonic() - began < 30.0
