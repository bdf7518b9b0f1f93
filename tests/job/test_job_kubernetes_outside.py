"""Pods of a real cluster that no packet reaches from here, and pods that have only a Python."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import pytest

from monarch.actor import Actor, endpoint, shutdown_context
from monarch.job import KubeConfig, KubernetesJob, job_load
from monarch.net.gateway import Gateway
from monarch.runtime.client_agent import client
from monarch.runtime.process import is_bootstrapped
from tests.actors import Echo
from tests.job.kube_cluster import BARE_PYTHON, KubeCluster, pod_template
from tests.support import wait_for

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


class Where(Actor):
    @endpoint
    def where(self) -> str:
        import monarch

        return str(monarch.__file__)


@pytest.fixture
def kubeconfig() -> Iterator[KubeConfig]:
    yield KubeConfig.from_path(str(KubeCluster.shared().kubeconfig))
    if is_bootstrapped():
        shutdown_context().get()


def _gateway() -> Gateway:
    gateway = client().node.gateway
    assert gateway is not None
    return gateway


def test_pods_are_reached_through_one_of_them(kubeconfig: KubeConfig, tmp_path: Path) -> None:
    job = KubernetesJob(
        "default", 60.0, kubeconfig, "trainers-1", python_exe=sys.executable, grace_seconds=5
    )
    job.add_mesh("trainers", 2, pod_template=pod_template())
    cache = tmp_path / "state.json"
    try:
        echo = job.state(str(cache)).trainers.spawn_procs().spawn("echo", Echo)
        assert echo.echo.call(3).get(timeout=60).values() == [3, 3]
        gateway = _gateway()
        assert gateway.name == job.hosts[1].name
        before = gateway.num_bytes[0]
        data = os.urandom(1_000_000)
        assert echo.echo.call(data).get(timeout=60).values() == [data] * 2
        assert len(data) < gateway.num_bytes[0] - before < 1.2 * len(data)
        first = gateway._process
        assert first is not None
        os.killpg(first.pid, signal.SIGKILL)
        assert echo.echo.call(4).get(timeout=60).values() == [4, 4]
        wait_for(lambda: gateway._process not in (None, first), 30.0, what="another connection")
        shutdown_context().get()
        again = job_load(cache)
        assert again.num_running() == 2
        assert _gateway().name == job.hosts[1].name
    finally:
        job_load(cache).kill()


@pytest.mark.parametrize("door", [None, "trainers-0"])
def test_pods_that_have_only_a_python_are_given_monarch(
    kubeconfig: KubeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, door: str | None
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # where the bundle is made
    here = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(here)  # No pod has the tests.
    job = KubernetesJob("default", 60.0, kubeconfig, door, python_exe=BARE_PYTHON, grace_seconds=5)
    job.add_mesh("trainers", 2, pod_template=pod_template(has_monarch=False))
    try:
        procs = job.state(cached_path=None).trainers.spawn_procs()
        places = procs.spawn("where", Where).where.call().get(timeout=60).values()
        assert all("/monarch/bundles/" in place for place in places), places
    finally:
        cloudpickle.unregister_pickle_by_value(here)
        job.kill()
