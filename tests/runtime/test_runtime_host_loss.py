"""Procs that have to do with procs of another host, when that host is lost."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import (
    Actor,
    HostMesh,
    MeshFailure,
    attach_to_workers,
    endpoint,
    shutdown_context,
    this_host,
)
from tests.actors import Echo
from tests.support import Program, wait_for

Start = Callable[..., Program]

SECONDS = 60.0

SERVE = """
import monarch.runtime.node
{before}
from monarch.actor import run_worker_loop_forever
run_worker_loop_forever(ca="trust_all_connections", address={url!r})
"""

# On one machine the other's process is watched; made to look like two, heartbeats are.
ELSEWHERE = "monarch.runtime.node.machine_id = lambda: {name!r}"


class Far(Actor):
    """Calls and owns what is on another host, and tells what comes of it."""

    def __init__(self) -> None:
        self.failures: list[tuple[str, tuple[int, ...], str]] = []
        self.children: Any = None

    @endpoint
    def call(self, mesh: Any, *args: Any) -> str:
        try:
            method = mesh.wait_for_file if args else mesh.echo
            return str(method.call(*(args or (1,))).get(timeout=SECONDS).values())
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    @endpoint
    def spawn(self, hosts: HostMesh) -> Any:
        self.children = hosts.spawn_procs({"gpus": 2}, name="children").spawn("child", Echo)
        self.children.initialized.get(timeout=SECONDS)
        return self.children

    @endpoint
    def seen(self) -> list[tuple[str, tuple[int, ...], str]]:
        return self.failures

    def __supervise__(self, failure: MeshFailure) -> bool:
        self.failures.append((failure.mesh_name, failure.crashed_ranks, failure.report()))
        return True


@pytest.fixture
def urls() -> Iterator[list[str]]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield [f"ipc://{folder}/{name}" for name in ("near", "far")]


@pytest.fixture
def serve(program: Start, faults: Any) -> Iterator[Callable[..., Program]]:
    yield lambda url, before="", **env: program(SERVE.format(url=url, before=before), **env)
    shutdown_context().get(timeout=SECONDS)


def attach(url: str) -> HostMesh:
    return attach_to_workers(ca="trust_all_connections", workers=[url])


@pytest.mark.parametrize("caller", ["another host", "the client's host"])
def test_a_proc_notices_the_death_of_another_host(
    serve: Any, urls: list[str], tmp_path: Path, caller: str
) -> None:
    near, far = urls
    serve(near)
    agent = serve(far)
    hosts = attach(near) if caller == "another host" else this_host()
    relay = hosts.spawn_procs().spawn("relay", Far)
    echo = attach(far).spawn_procs({"gpus": 2}, name="far").spawn("echo", Echo)
    assert relay.call.call(echo).get(timeout=SECONDS).item(**dict.fromkeys(hosts.sizes, 0)) == (
        "[1, 1]"
    )
    pending = relay.call.call(echo, str(tmp_path / "never"))
    agent.send_signal(signal.SIGKILL)
    for told in (pending, relay.call.call(echo)):
        (text,) = told.get(timeout=SECONDS).values()
        assert text.startswith("SupervisionError"), text
        assert far in text


@pytest.mark.long
def test_a_proc_notices_another_host_that_falls_silent(
    serve: Any, urls: list[str], tmp_path: Path
) -> None:
    near, far = urls
    # Long enough for one that is only busy.
    quick = {"MONARCH_HEARTBEAT_SECONDS": "0.1", "MONARCH_HEARTBEAT_TIMEOUT_SECONDS": "3.0"}
    serve(near, ELSEWHERE.format(name="near"), **quick)
    agent = serve(far, **quick)
    relay = attach(near).spawn_procs().spawn("relay", Far)
    echo = attach(far).spawn_procs({"gpus": 2}, name="far").spawn("echo", Echo)
    relay.call.call(echo).get(timeout=SECONDS)
    pending = relay.call.call(echo, str(tmp_path / "go"))
    agent.send_signal(signal.SIGSTOP)
    (text,) = pending.get(timeout=SECONDS).values()
    assert "nothing was heard of it" in text
    (tmp_path / "go").touch()
    agent.send_signal(signal.SIGCONT)


def test_an_owner_on_one_host_hears_once_of_the_loss_of_another(
    serve: Any, urls: list[str], faults: list[MeshFailure]
) -> None:
    near, far = urls
    serve(near)
    agent = serve(far)
    owner = attach(near).spawn_procs().spawn("owner", Far)
    hosts = attach(far)
    owner.spawn.call(hosts).get(timeout=SECONDS)
    agent.send_signal(signal.SIGKILL)
    ((failures,),) = wait_for(lambda: [s for s in [owner.seen.call().get().values()] if s[0]])
    ((mesh, ranks, report),) = [failures] if isinstance(failures, tuple) else failures
    assert (mesh, ranks) == ("children", (0, 1))
    assert far in report
    assert "child{'hosts': 0/1, 'gpus': 1/2}" in report
    assert not faults


@pytest.mark.long
def test_a_host_that_is_shut_down_on_purpose_fails_nobody(
    serve: Any, urls: list[str], faults: list[MeshFailure]
) -> None:
    near, far = urls
    serve(near)
    agent = serve(far)
    owner = attach(near).spawn_procs().spawn("owner", Far)
    hosts = attach(far)
    child = owner.spawn.call(hosts).get(timeout=SECONDS).item(hosts=0)
    hosts.shutdown().get(timeout=SECONDS)
    assert agent.wait() == 0
    (text,) = owner.call.call(child).get(timeout=SECONDS).values()
    assert text.startswith("SupervisionError"), text
    assert owner.seen.call().get(timeout=SECONDS).values() == [[]]
    assert not faults


def test_a_host_that_came_back_can_be_spoken_to_again(serve: Any, urls: list[str]) -> None:
    near, far = urls
    serve(near)
    agent = serve(far)
    relay = attach(near).spawn_procs().spawn("relay", Far)
    old = attach(far).spawn_procs({"gpus": 2}).spawn("echo", Echo)
    relay.call.call(old).get(timeout=SECONDS)
    agent.send_signal(signal.SIGKILL)
    (text,) = relay.call.call(old, "/never").get(timeout=SECONDS).values()
    assert text.startswith("SupervisionError"), text
    wait_for(lambda: agent.process.poll() is not None)
    serve(far)
    new = attach(far).spawn_procs({"gpus": 2}).spawn("echo", Echo)
    assert relay.call.call(new).get(timeout=SECONDS).values() == ["[1, 1]"]
    # And it is watched again.
    (text,) = relay.call.call(old).get(timeout=SECONDS).values()
    assert text.startswith("SupervisionError"), text
