"""A program that spawns and stops for days keeps nothing of what is gone."""

from __future__ import annotations

import asyncio
import gc
import types
import weakref
from typing import Any

import pytest

from monarch.actor import (
    Actor,
    Channel,
    MeshFailure,
    Port,
    SupervisionError,
    endpoint,
    shutdown_context,
    this_host,
)
from monarch.config import configured
from monarch.runtime import process
from monarch.runtime.cells.cell_answers import CellAnswers
from monarch.runtime.cells.cell_table import CellTable
from monarch.runtime.context import ActorRecord
from monarch.runtime.hosts.relay import Relay
from monarch.runtime.links.trees import Trees
from monarch.testing import in_process
from monarch.wire.address import ProcAddress, Uid
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
        node = process.current().node
        node.outboxes.max_boxes = most
        return max(map(len, node.outboxes._boxes.values()), default=0)


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
    monkeypatch.setattr(process.current().node.outboxes, "max_boxes", 16)
    procs = this_host().spawn_procs({"gpus": 1})
    for number in range(20):
        actors = procs.spawn(f"n{number}", Echo)
        assert actors.echo.call_one(number).get(timeout=30) == number
        actors.stop().get(timeout=30)
    [lanes] = process.current().node.outboxes._boxes.values()
    assert len(lanes) == 16


def test_whose_lines_were_aggregated_is_forgotten_with_the_procs() -> None:
    windows = process.current().printer._windows._length  # type: ignore[attr-defined]
    before = len(windows)
    procs = this_host().spawn_procs({"gpus": 2})
    asyncio.run(procs.logging_option(aggregate_window_sec=1))
    wait_for(lambda: len(windows) == before + 2)
    procs.stop().get(timeout=30)
    wait_for(lambda: len(windows) == before, what=f"{before} windows, and not {windows}")


class Heavy(Actor):
    """Holds something large; fails on request, with its clean-up or without."""

    @endpoint
    def num_alive(self) -> int:
        gc.collect()
        return len(_weights)

    @endpoint
    def hold(self) -> None:
        self.weights = _Weights()
        _weights.add(self.weights)

    @endpoint
    def fail(self) -> None:
        raise SystemExit("failed")


class Tidy(Heavy):
    def __cleanup__(self, error: BaseException | None) -> None:
        assert self.weights


class AsyncHeavy(Actor):
    @endpoint
    async def hold(self) -> None:
        self.weights = _Weights()
        _weights.add(self.weights)

    @endpoint
    async def fail(self) -> None:
        raise SystemExit("failed")


class _Weights:
    pass


_weights: weakref.WeakSet[_Weights] = weakref.WeakSet()


@pytest.mark.long_but(1)
@pytest.mark.parametrize("kind", [Heavy, Tidy, AsyncHeavy])
def test_what_a_failed_actor_holds_is_freed_at_once(
    kind: type[Any], faults: list[MeshFailure]
) -> None:
    procs = this_host().spawn_procs()
    other = procs.spawn("other", Heavy)
    heavy = procs.spawn("heavy", kind)
    heavy.hold.call().get(timeout=30)
    assert other.num_alive.call_one().get(timeout=30) == 1
    with pytest.raises(SupervisionError):
        heavy.fail.call().get(timeout=30)
    wait_for(lambda: faults)
    wait_for(lambda: other.num_alive.call_one().get(timeout=30) == 0)


def test_of_a_stopped_actor_only_its_names_are_kept() -> None:
    """They are, as long as the process lives, so that calls that come late are refused."""
    host: Any = None
    table = CellTable(host)

    def stop(actor: Uid) -> weakref.ref[CellAnswers]:
        cell: Any = types.SimpleNamespace()
        cell.record = ActorRecord(
            uid=actor,
            name=f"name {1}",
            class_name="module.Class",
            rank=0,
            labels=(),
            sizes=(),
            owner=ProcAddress("owner"),
            owner_actor="owner",
        )
        cell.answers = CellAnswers(cell.record, host)
        table.remove(cell)
        return weakref.ref(cell.answers)

    gone = [stop("one"), stop("another")]
    gc.collect()
    assert [answers() for answers in gone] == [None, None]
    [one, another] = table._ended.values()
    assert one.name is another.name
    assert one.title is another.title


def test_a_call_that_cannot_be_sent_leaves_no_port_open() -> None:
    shutdown_context().get(timeout=20)  # The limit is one of a client's whole life.
    with configured(max_message_bytes=2**20):
        echo = this_host().spawn_procs().spawn("echo", Echo)
        echo.echo.call_one(1).get(timeout=30)
        ports = process.current().node.calls
        before = len(ports)
        for adverb in (echo.echo.call, echo.echo.call_one, echo.echo.stream):
            with pytest.raises(ValueError, match="beyond the limit"):
                adverb(bytes(2**21))
        assert len(ports) == before
        shutdown_context().get(timeout=20)


class Caller(Actor):
    """Calls through a reference that it was given."""

    @endpoint
    def call(self, echo: Any) -> list[int]:
        return list(echo.echo.call(1).get(timeout=30).values())


def test_the_tree_of_a_mesh_is_forgotten_with_its_last_proc() -> None:
    """By all that send along it, and by the hosts that hand on for them."""

    def num_known() -> list[int]:
        found = gc.get_objects()
        relays = [one for one in found if isinstance(one, Relay)]
        trees = [one for one in found if isinstance(one, Trees)]
        return [
            sum(mesh == procs._uid for relay in relays for _, mesh in relay._trees),
            sum(procs._uid in one._routes for one in trees),
            procs._uid in process.current().node.outboxes._boxes,
        ]

    with configured(tree_min_hosts=2, tree_degree=2), in_process() as world:
        hosts = world.hosts(4)
        procs = hosts.spawn_procs({"gpus": 2})
        echo = procs.spawn("echo", Echo)
        assert echo.echo.call(1).get(timeout=30).values() == [1] * 8
        caller = hosts.slice(hosts=0).spawn_procs().spawn("caller", Caller)
        assert caller.call.call_one(echo).get(timeout=30) == [1] * 8
        # All four hosts know it, for two who send.
        assert num_known() == [8, 2, True]
        procs.stop().get(timeout=30)
        wait_for(lambda: num_known() == [0, 0, False])
        with pytest.raises(SupervisionError, match="stopped"):
            echo.echo.call(1).get(timeout=30)
        assert num_known() == [0, 0, False]
