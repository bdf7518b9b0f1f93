"""Messages that nobody waits for and that cannot be delivered."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from monarch.actor import (
    Actor,
    Channel,
    MeshFailure,
    Port,
    PortReceiver,
    ProcMesh,
    SupervisionError,
    endpoint,
    this_host,
)
from tests.actors import Echo
from tests.support import wait_for

SECONDS = 60.0


class Plain(Actor):
    """Sends what is never waited for."""

    @endpoint
    def broadcast(self, mesh: Any) -> None:
        mesh.append.broadcast("lost")

    @endpoint
    def send(self, port: Port[Any], wants: bool = True) -> None:
        port.return_undeliverable = wants
        port.send("lost")

    @endpoint
    def call(self, mesh: Any) -> str:
        try:
            return str(mesh.echo.call(1).get(timeout=SECONDS))
        except SupervisionError as error:
            return f"raised {error}"


class Hears(Plain):
    """Says what to do with what was not delivered."""

    def __init__(self, answer: bool | None = True) -> None:
        self.heard: list[tuple[str, str, str]] = []
        self.answer = answer

    @endpoint
    def read(self) -> list[tuple[str, str, str]]:
        return self.heard

    def _handle_undeliverable_message(self, message: Any) -> bool:
        self.heard.append((message.sender(), message.dest(), message.error_msg()))
        if self.answer is None:
            raise ValueError("no idea what to do")
        return self.answer


class Opens(Echo):
    def __init__(self) -> None:
        super().__init__()
        self.ends: tuple[Port[Any], PortReceiver[Any]] = Channel[Any].open()

    @endpoint
    def port(self) -> Port[Any]:
        return self.ends[0]


@pytest.fixture
def procs(faults: Any) -> ProcMesh:
    return this_host().spawn_procs({"gpus": 2}, name="workers")


def receiver(procs: ProcMesh, end: str) -> Any:
    """Two actors, of which the second is not there any more."""
    mesh = procs.spawn("receiver", Echo)
    pid = mesh.pid.call().get(timeout=SECONDS).item(gpus=1)
    last = mesh.slice(gpus=1)
    if end == "stopped":
        last.stop().get(timeout=SECONDS)
    elif end == "failed":
        last.fail.broadcast()
    else:
        os.kill(pid, signal.SIGKILL)
    if end != "stopped":
        with pytest.raises(SupervisionError):
            last.wait_for_file.call_one("/never").get(timeout=SECONDS)
    return mesh


@pytest.mark.long_but(1)
@pytest.mark.parametrize("end", ["stopped", "failed", "killed"])
def test_an_actor_that_wants_to_know_is_told(procs: ProcMesh, end: str) -> None:
    mesh = receiver(procs, end)
    hears = this_host().spawn_procs().spawn("hears", Hears)
    # It has met the receiver before, and knows of its end.
    assert hears.call.call_one(mesh).get(timeout=SECONDS).startswith("raised")
    hears.broadcast.call_one(mesh).get(timeout=SECONDS)
    ((sender, target, why),) = wait_for(lambda: hears.read.call_one().get(timeout=SECONDS))
    assert "hears" in sender
    assert "receiver" in target
    assert {"stopped": "stopped", "failed": "rank 1", "killed": "SIGKILL"}[end] in why
    living = mesh.slice(gpus=0)
    wait_for(lambda: living.read.call_one().get(timeout=SECONDS) == ["lost"])


@pytest.mark.long_but(1)
@pytest.mark.parametrize("answer", [False, None], ids=["refuses", "raises"])
def test_one_that_does_not_handle_it_fails(
    procs: ProcMesh, faults: list[MeshFailure], answer: bool | None
) -> None:
    mesh = receiver(procs, "stopped")
    hears = procs.slice(gpus=0).spawn("hears", Hears, answer)
    hears.broadcast.call_one(mesh).get(timeout=SECONDS)
    (fault,) = wait_for(lambda: list(faults))
    assert fault.mesh_name == "hears"
    assert ("was not delivered" if answer is False else "no idea what to do") in fault.report()


@pytest.mark.long_but(1)
@pytest.mark.parametrize("end", ["stopped", "failed", "killed"])
def test_without_a_hook_nothing_comes_of_it(
    procs: ProcMesh, faults: list[MeshFailure], end: str
) -> None:
    mesh = receiver(procs, end)
    wait_for(lambda: len(faults) == (end != "stopped"))
    plain = this_host().spawn_procs().spawn("plain", Plain)
    assert plain.call.call_one(mesh).get(timeout=SECONDS).startswith("raised")
    for _ in range(2):
        plain.broadcast.call_one(mesh).get(timeout=SECONDS)
    mesh.append.broadcast("from the root")
    living = mesh.slice(gpus=0)
    wait_for(lambda: len(living.read.call_one().get(timeout=SECONDS)) == 3)
    assert plain.call.call_one(mesh).get(timeout=SECONDS).startswith("raised")
    assert len(faults) == (end != "stopped")


@pytest.mark.long_but(1)
@pytest.mark.parametrize("wants", [True, False])
def test_a_value_for_the_port_of_a_dead_process(procs: ProcMesh, faults: Any, wants: bool) -> None:
    opens = procs.slice(gpus=1).spawn("opens", Opens)
    port = opens.port.call_one().get(timeout=SECONDS)
    hears = procs.slice(gpus=0).spawn("hears", Hears)
    hears.send.call_one(port).get(timeout=SECONDS)
    os.kill(procs.slice(gpus=1).spawn("echo", Echo).pid.call_one().get(), signal.SIGKILL)
    assert hears.call.call_one(opens).get(timeout=SECONDS).startswith("raised")
    hears.send.call_one(port, wants).get(timeout=SECONDS)
    reasons = [why for _, _, why in hears.read.call_one().get(timeout=SECONDS)]
    assert len(reasons) == wants
    assert all("SIGKILL" in why for why in reasons)
