"""A program that spawns and stops for days keeps nothing of what is gone."""

from __future__ import annotations

from monarch.actor import this_host
from monarch.runtime import process
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
