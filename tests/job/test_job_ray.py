"""Jobs of Ray, on a cluster of three nodes on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
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
from tests.job.kinds import agent_pids
from tests.support import wait_for

_CLUSTER = """
import sys
from ray.cluster_utils import Cluster
node = {"num_cpus": 2, "object_store_memory": 80 << 20}
cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
for _ in range(2):
    cluster.add_node(**node)
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(JobError, match=r"pip install 'monarch-loop\[ray\]'"):
        RayJob({"a": 1}).state(cached_path=None)


@pytest.fixture
def address() -> Iterator[str]:
    ray = pytest.importorskip("ray", reason="no Ray here: `tools/system.sh` installs it")
    cluster = subprocess.Popen(
        [sys.executable, "-c", _CLUSTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert cluster.stdin is not None
    assert cluster.stdout is not None
    yield cluster.stdout.readline().strip()
    if is_bootstrapped():
        shutdown_context().get()
    ray.shutdown()
    cluster.stdin.close()
    cluster.wait(60)
    cluster.stdout.close()


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
def test_a_ray_that_is_not_there() -> None:
    pytest.importorskip("ray", reason="no Ray here: `tools/system.sh` installs it")
    began = time.monotonic()
    with pytest.raises(JobError, match=r"cannot reach Ray at 127\.0\.0\.1:9"):
        RayJob({"a": 1}, "127.0.0.1:9").state(cached_path=None)
    assert time.monotonic() - began < 30.0
