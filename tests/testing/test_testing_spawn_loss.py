"""A host that is lost in the middle of a spawn, at each of its steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from monarch.actor import HostMesh, SupervisionError
from monarch.config import configured
from monarch.runtime import process
from monarch.runtime.links.address_book import AddressBook
from monarch.runtime.node import Node
from monarch.testing import World, in_process
from monarch.wire.message import Cast, Grow, ProcDown, SpawnProcs
from tests.actors import Echo

SECONDS = 60.0


def lose(node: Node, hosts: HostMesh, rank: int) -> None:
    """What its link does when the process of the agent ends."""
    uid = hosts._hosts[rank].address.uid
    node.peer_down.report(ProcDown(uid, "the host agent's process ended"))


def at(
    monkeypatch: pytest.MonkeyPatch,
    where: type,
    name: str,
    step: Callable[..., bool],
    nth: int,
    happens: Callable[[], None],
) -> None:
    """Have something happen just before the ``nth`` call of a method for which ``step``."""
    real = getattr(where, name)
    num_seen = 0

    def scripted(self: Any, *about: Any, **named: Any) -> Any:
        nonlocal num_seen
        num_seen += step(*about)
        if num_seen == nth:
            num_seen += 1
            happens()
        return real(self, *about, **named)

    monkeypatch.setattr(where, name, scripted)


def check_told(world: World, mesh: Any, ranks: tuple[int, ...]) -> None:
    told = world.wait_for_fault()
    assert told.mesh_name == "workers"
    assert set(told.crashed_ranks) <= set(ranks)
    assert not world.faults, "one cause, one report"
    owned = {proc.uid for proc in process.current().owned_procs()}
    assert owned == {p.uid for rank, p in enumerate(mesh._procs) if rank not in ranks}
    echo = mesh.spawn("echo", Echo)
    with pytest.raises(SupervisionError):
        echo.echo.call(1).get(timeout=SECONDS)
    rest = echo.slice(hosts=0)
    assert rest.echo.call(1).get(timeout=SECONDS).values() == [1, 1]


STEPS: dict[str, tuple[type, str, Callable[..., bool], int]] = {
    "before its procs are expected": (
        AddressBook, "expect", lambda address: "." not in address.uid, 3
    ),
    "between two of them": (AddressBook, "expect", lambda address: True, 4),
    "before the order is sent": (
        Node, "send", lambda to, one, *more: isinstance(one, SpawnProcs), 2
    ),
}  # fmt: skip


@pytest.mark.parametrize("step", STEPS)
def test_a_host_lost_during_a_spawn_is_told(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    with in_process() as world:
        hosts = world.hosts(2)
        hosts.initialized.get(timeout=SECONDS)
        node = process.current().node
        where, name, step_is, nth = STEPS[step]
        at(monkeypatch, where, name, step_is, nth, lambda: lose(node, hosts, 1))
        mesh = hosts.spawn_procs({"gpus": 2}, name="workers")
        check_told(world, mesh, (2, 3))


@pytest.mark.parametrize("message", [Grow, Cast])
def test_a_host_lost_during_a_spawn_along_a_tree_is_told(
    monkeypatch: pytest.MonkeyPatch, message: type
) -> None:
    """Between the making of the route and the end of the spawn."""
    with configured(tree_min_hosts=2), in_process() as world:
        hosts = world.hosts(2)
        hosts.initialized.get(timeout=SECONDS)
        node = process.current().node
        at(
            monkeypatch,
            Node,
            "transmit",
            lambda to, envelope: isinstance(envelope.message, message),
            1,
            lambda: lose(node, hosts, 1),
        )
        mesh = hosts.spawn_procs({"gpus": 2}, name="workers")
        check_told(world, mesh, (2, 3))


def test_an_order_that_cannot_be_sent_leaves_nothing_owned() -> None:
    with configured(max_message_bytes=2**20), in_process() as world:
        hosts = world.hosts(1)
        hosts.initialized.get(timeout=SECONDS)
        ballast = bytes(2 * 2**20)
        with pytest.raises(ValueError, match="beyond the limit"):
            hosts.spawn_procs({"gpus": 1}, lambda: len(ballast))
        agent = process.current()
        assert not agent.owned_procs()
        assert not agent.supervisor._machine._meshes


def test_a_host_that_comes_back_and_is_lost_again_is_told_again() -> None:
    """Its uid is that of its address, and so the cause has the same name twice."""
    with in_process() as world:
        hosts = world.hosts(1)
        for turn in ("first", "second"):
            hosts.initialized.get(timeout=SECONDS)
            hosts.spawn_procs({"gpus": 1}, name=turn).initialized.get(timeout=SECONDS)
            lose(process.current().node, hosts, 0)
            assert world.wait_for_fault().mesh_name == turn
