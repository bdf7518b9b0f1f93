"""Hosts that are reached through one machine only."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch.actor import shutdown_context
from monarch.errors import JobError
from monarch.job import SlurmJob, SSHJob, job_load
from monarch.job.kinds.kube_pods import is_in_reach
from monarch.job.kinds.kubernetes import ImageSpec, KubeConfig, KubernetesJob
from monarch.net.gateway import Gateway
from monarch.runtime.client_agent import client
from monarch.runtime.process import is_bootstrapped
from monarch.tools.network import free_port
from tests.actors import Echo
from tests.job.fakes.kube_server import KubeServer
from tests.job.kinds import FAKES, MARK, processes_marked
from tests.support import wait_for


@pytest.fixture(autouse=True)
def fake_ssh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PATH", f"{FAKES}:{os.environ['PATH']}")
    yield
    if is_bootstrapped():
        shutdown_context().get()


@pytest.fixture
def mark() -> Iterator[str]:
    name = uuid.uuid4().hex
    yield name
    wait_for(lambda: not processes_marked(name), what=f"no process left: {processes_marked(name)}")


def _job(mark: str, *hosts: str, gateway: str | None = None) -> SSHJob:
    job = SSHJob(sys.executable, monarch_port=0, env={MARK: mark}, gateway=gateway)
    job.add_mesh("trainers", hosts)
    return job


def _gateway() -> Gateway:
    gateway = client().node.gateway
    assert gateway is not None
    return gateway


@pytest.mark.long
def test_all_that_is_said_passes_the_gateway_and_a_break_of_the_login_is_not_noticed(
    mark: str,
) -> None:
    job = _job(mark, "gpu1", "gpu2", gateway="gpu0")
    try:
        trainers = job.state(cached_path=None).trainers
        echo = trainers.spawn_procs({"procs": 2}).spawn("echo", Echo)
        assert echo.echo.call(3).get(timeout=60).values() == [3, 3, 3, 3]
        gateway = _gateway()
        assert gateway.name == "gpu0"
        before = gateway.num_bytes[0]
        data = os.urandom(1_000_000)
        assert echo.echo.call(data).get(timeout=60).values() == [data] * 4
        assert len(data) < gateway.num_bytes[0] - before < 1.2 * len(data)
        first = gateway._process
        assert first is not None
        os.killpg(first.pid, signal.SIGKILL)  # With what stands in for the network.
        assert echo.echo.call(4).get(timeout=60).values() == [4, 4, 4, 4]
        wait_for(lambda: gateway._process not in (None, first), what="another login")
    finally:
        job.kill()


@pytest.mark.long
def test_where_ssh_jumps_the_first_host_is_the_gateway(
    mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_SSH_JUMP", "bastion")
    job = _job(mark, "gpu-far1", "gpu-far2")
    try:
        trainers = job.state(cached_path=None).trainers
        trainers.initialized.get(timeout=60)
        assert _gateway().name == "gpu-far1"
        assert "-J" not in job._login("gpu-far2")  # ssh knows its own way.
    finally:
        job.kill()


@pytest.mark.long
def test_a_later_program_comes_in_by_the_same_door(mark: str, tmp_path: Path) -> None:
    job = _job(mark, "gpu1", gateway="gpu0")
    cache = tmp_path / "state.json"
    try:
        job.state(str(cache)).trainers.initialized.get(timeout=60)
        shutdown_context().get()
        again = job_load(cache)
        assert again.num_running() == 1
        assert _gateway().name == "gpu0"
    finally:
        job_load(cache).kill()


@pytest.mark.long
@pytest.mark.parametrize(("attach_to", "name"), [("gpu-login", "gpu-login"), (None, None)])
def test_nodes_of_slurm_are_reached_through_a_login_node_or_the_first_of_them(
    mark: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    attach_to: str | None,
    name: str | None,
) -> None:
    (tmp_path / "slurm").mkdir()
    monkeypatch.setenv("PATH", f"{FAKES}/slurm:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SLURM", str(tmp_path / "slurm"))
    monkeypatch.chdir(tmp_path)
    port, env = free_port(), {MARK: mark}
    job = SlurmJob(
        {"trainers": 2}, sys.executable, monarch_port=port, env=env,
        out_of_cluster=True, attach_to=attach_to,
    )  # fmt: skip
    try:
        if name is None:
            # The fake's nodes have names by which no ssh knows them: that is said.
            with pytest.raises(JobError, match=r"cannot reach the gateway .*: ssh: Could not"):
                job.state(cached_path=None)
            return
        trainers = job.state(cached_path=None).trainers
        echo = trainers.spawn_procs().spawn("echo", Echo)
        assert echo.echo.call(3).get(timeout=60).values() == [3, 3]
        assert _gateway().name == name
    finally:
        job.kill()


def test_a_gateway_that_is_not_there_is_said_in_the_words_of_ssh(mark: str) -> None:
    with pytest.raises(JobError) as caught:
        _job(mark, "gpu1", gateway="nosuch").state(cached_path=None)
    assert "gateway nosuch: ssh: Could not resolve hostname nosuch" in str(caught.value)


@pytest.mark.long
def test_a_host_that_ended_is_told_from_one_that_is_silent(mark: str) -> None:
    job = _job(mark, "gpu1", "gpu2", gateway="gpu0")
    try:
        job.state(cached_path=None).trainers.initialized.get(timeout=60)
        assert job.ended() == []
        os.kill(job._hosts[1].pid, 9)
        wait_for(lambda: job.ended() == [job._hosts[1].url], what="the loss to be noticed")
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            url = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
            assert _gateway().knock(url, 5.0) == ""
    finally:
        job.kill()


@pytest.fixture
def pods(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[KubeConfig]:
    server = KubeServer()
    config = tmp_path / "kubeconfig"
    config.write_text(json.dumps(server.kubeconfig))
    yield KubeConfig.from_path(str(config))
    if is_bootstrapped():
        shutdown_context().get()
    server.close()


def _pods(config: KubeConfig, mark: str, attach_to: str | None = None) -> KubernetesJob:
    job = KubernetesJob(
        "default", 60.0, config, attach_to, python_exe=sys.executable, env={MARK: mark},
        grace_seconds=5,
    )  # fmt: skip
    job.add_mesh("trainers", 2, image_spec=ImageSpec("python"))
    return job


@pytest.mark.long
def test_pods_are_reached_through_one_of_them_from_outside(
    mark: str, pods: KubeConfig, tmp_path: Path
) -> None:
    job, cache = _pods(pods, mark, "trainers-1"), tmp_path / "state.json"
    try:
        trainers = job.state(str(cache)).trainers
        echo = trainers.spawn_procs().spawn("echo", Echo)
        assert echo.echo.call(3).get(timeout=60).values() == [3, 3]
        gateway = _gateway()
        assert gateway.name == job.hosts[1].name
        first = gateway._process
        assert first is not None
        os.killpg(first.pid, signal.SIGKILL)
        assert echo.echo.call(4).get(timeout=60).values() == [4, 4]
        shutdown_context().get()
        again = job_load(cache)
        assert again.num_running() == 2
        assert _gateway().name == job.hosts[1].name
    finally:
        job_load(cache).kill()


@pytest.mark.long
def test_where_pods_are_out_of_reach_the_first_is_the_gateway(
    mark: str, pods: KubeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monarch.job.kinds.kubernetes.is_in_reach", lambda url: False)
    job = _pods(KubeConfig.from_config(json.loads(Path(str(pods.path)).read_text())), mark)
    try:
        job.state(cached_path=None).trainers.initialized.get(timeout=60)
        assert _gateway().name == job.hosts[0].name
        assert "worker" in _gateway()._command
    finally:
        job.kill()


def test_a_pod_that_is_not_there_is_no_gateway(mark: str, pods: KubeConfig) -> None:
    with pytest.raises(JobError) as caught:
        _pods(pods, mark, "bastion").state(cached_path=None)
    assert 'gateway bastion: Error from server (NotFound): pods "bastion" not found' in str(
        caught.value
    )


def test_without_kubectl_it_is_said_what_it_is_for(
    mark: str, pods: KubeConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JobError, match="no `kubectl` on the path"):
        _pods(pods, mark, "trainers-0").state(cached_path=None)


def test_what_answers_in_any_way_is_in_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        assert is_in_reach(f"tcp://127.0.0.1:{closed.getsockname()[1]}")
        closed.listen()
        assert is_in_reach(f"tcp://127.0.0.1:{closed.getsockname()[1]}")

    def get_lost(*_: object) -> socket.socket:
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", get_lost)
    assert not is_in_reach("tcp://127.0.0.1:26600")
