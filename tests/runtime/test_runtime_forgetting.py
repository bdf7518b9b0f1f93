"""A program that spawns and stops for days keeps nothing of what is gone."""

from __future__ import annotations

from typing import Any

import pytest

from monarch.actor import Actor, Channel, Port, endpoint, this_host
from monarch.runtime import outgoing, process
from tests.actors import Echo
from tests.support import wait_for


def kept() -> dict[str, int]:
    """How many meshes the client still knows of, by what it knows of them."""
    agent = process.current()
    return {
        "origins": len(agent.spawned_on),
        "orders": len(agent.kept_spawns._spawns),
        "owned": len(agent.supervisor._machine._meshes),
        "ends": len(agent.supervisor._stops),
        "procs": len(agent.owned_procs()),
    }


def test_actors_are_forgotten_with_their_procs() -> None:
    this_host().spawn_procs({"gpus": 1}).stop().get(timeout=30)
    before = kept()
    procs = this_host().spawn_procs({"gpus": 2})
    for name in ("one", "two"):
        procs.spawn(name, Echo).pid.call().get(timeout=30)
    assert kept() != before
    procs.stop().get(timeout=30)
    wait_for(lambda: kept() == before, what=f"as before: {before}, and not {kept()}")


def test_a_host_mesh_forgets_procs_that_were_stopped() -> None:
    hosts = this_host()
    for _ in range(3):
        hosts.spawn_procs({"gpus": 1}).stop().get(timeout=30)
    assert len(hosts._spawned) == 1


class Sender(Actor):
    """Sends into channels, and counts the lanes that its process keeps for that."""

    @endpoint
    def send(self, port: Port[Any], numbers: list[int]) -> None:
        for number in numbers:
            port.send(number)

    @endpoint
    def num_lanes(self, most: int) -> int:
        outgoing._MAX_BOXES = most
        node = process.current().node
        return max(map(len, node.outgoing._boxes.values()), default=0)


def test_lanes_to_channels_that_are_over_are_forgotten_and_the_others_keep_their_order() -> None:
    sender = this_host().spawn_procs({"gpus": 1}).spawn("sender", Sender)
    most = 16
    sender.num_lanes.call_one(most).get(timeout=30)
    stays, received = Channel[int].open()
    numbers = iter(range(10_000))
    for _ in range(2 * most):
        port, receiver = Channel[int].open()
        sender.send.call_one(port, [1, 2]).get(timeout=30)
        assert [receiver.recv().get(timeout=30) for _ in range(2)] == [1, 2]
        sender.send.broadcast(stays, [next(numbers) for _ in range(50)])
    assert [received.recv().get(timeout=30) for _ in range(2 * most * 50)] == [
        *range(2 * most * 50)
    ]
    assert sender.num_lanes.call_one(most).get(timeout=30) == most


def test_lanes_to_actors_that_were_stopped_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing, "_MAX_BOXES", 16)
    procs = this_host().spawn_procs({"gpus": 1})
    for number in range(20):
        actors = procs.spawn(f"n{number}", Echo)
        assert actors.echo.call_one(number).get(timeout=30) == number
        actors.stop().get(timeout=30)
    [lanes] = process.current().node.outgoing._boxes.values()
    assert len(lanes) == 16
