"""What ends, dies or is passed around on meshes whose messages go along a tree."""

from __future__ import annotations

import logging
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from monarch.actor import (
    Actor,
    ActorError,
    HostMesh,
    MeshFailure,
    SupervisionError,
    attach_to_workers,
    current_rank,
    endpoint,
    shutdown_context,
    this_host,
)
from monarch.config import configured
from monarch.errors import WireError
from monarch.runtime import process
from monarch.wire.host_url import HostUrl
from monarch.wire.message import Cast, Replies
from tests.actors import Answers, BadInit, Echo
from tests.support import Program, is_running, wait_for

SECONDS = 60.0
NUM_HOSTS = 4

SERVE = """
from monarch.actor import run_worker_loop_forever
run_worker_loop_forever(ca="trust_all_connections", address={url!r})
"""


class Caller(Actor):
    """Somebody else than the owner who holds a reference."""

    def __init__(self, mesh: Any) -> None:
        self.mesh = mesh

    @endpoint
    def call(self, value: Any) -> list[Any]:
        return list(self.mesh.echo.call(value).get(timeout=SECONDS).values())

    @endpoint
    def wait_for_file(self, path: str) -> str:
        try:
            self.mesh.wait_for_file.call(path).get(timeout=SECONDS)
        except SupervisionError as error:
            return str(error)
        return ""


class Ranked(Actor):
    """Changes the arrays that it gets."""

    def __init__(self, made_with: np.ndarray[Any, Any]) -> None:
        self.made_with = made_with
        self.kept: list[np.ndarray[Any, Any]] = []

    @endpoint
    def add_rank(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        array += current_rank().rank
        self.kept.append(array)
        return np.stack(self.kept)

    @endpoint
    def is_as_made(self, expected: np.ndarray[Any, Any]) -> bool:
        return bool((self.made_with == expected).all())


class Sizes(Actor):
    """Takes and gives what is large."""

    @endpoint
    def size_of(self, array: np.ndarray[Any, Any]) -> int:
        return array.size

    @endpoint
    def zeros(self, size: int) -> np.ndarray[Any, Any]:
        return np.zeros(size, np.uint8)


@pytest.fixture
def agents(program: Callable[..., Program], faults: object) -> Iterator[list[Program]]:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        started = []
        for number in range(NUM_HOSTS):
            url = f"ipc://{Path(name)}/host{number}"
            started.append(program(SERVE.format(url=url)))
            started[-1].url = url  # type: ignore[attr-defined]
        yield started
        shutdown_context().get(timeout=SECONDS)


@pytest.fixture
def hosts(agents: list[Any]) -> Iterator[HostMesh]:
    # Hosts 0 and 2 get what is sent; 0 hands on to 1, and 2 to 3.
    with configured(tree_min_hosts=2, tree_degree=2):
        yield attach_to_workers(ca="trust_all_connections", workers=[agent.url for agent in agents])


def test_every_way_to_call_works_along_a_tree(hosts: HostMesh) -> None:
    procs = hosts.spawn_procs({"gpus": 2})
    echo: Any = procs.spawn("echo", Echo)
    assert echo.echo.call(3).get(timeout=SECONDS).values() == [3] * 8
    ranks = [rank for rank, *_ in echo.ranks.call().get(timeout=SECONDS).values()]
    assert ranks == list(range(8))
    part = echo.slice(gpus=1).slice(hosts=slice(1, 4, 2))
    told = part.ranks.call().get(timeout=SECONDS).values()
    assert [(rank, spawned) for rank, spawned, *_ in told] == [(0, 3), (1, 7)]
    chosen = {echo.ranks.choose().get(timeout=SECONDS)[:2] for _ in range(20)}
    assert all(rank == spawned for rank, spawned in chosen)
    assert len(chosen) > 1
    streamed = echo.slice(hosts=3).ranks.stream()
    assert sorted(future.get(timeout=SECONDS)[1] for future in streamed) == [6, 7]
    flat = echo.flatten("all").slice(all=slice(3, 6)).ranks.call().get(timeout=SECONDS)
    assert [spawned for _, spawned, *_ in flat.values()] == [3, 4, 5]
    with pytest.raises(ActorError, match="rank 5 does not like it"):
        echo.fail.call(5, 6).get(timeout=SECONDS)
    answers: Any = procs.spawn("answers", Answers)
    assert answers.now.call(1).get(timeout=SECONDS).values() == [1] * 8
    assert answers.slice(hosts=1, gpus=0).from_a_thread.call_one(2).get(timeout=SECONDS) == 2


def test_actors_on_a_part_of_the_procs_have_ranks_of_their_own(hosts: HostMesh) -> None:
    procs = hosts.spawn_procs({"gpus": 2})
    part: Any = procs.slice(hosts=slice(1, 4), gpus=1).spawn("part", Echo)
    ranks = part.ranks.call().get(timeout=SECONDS).values()
    assert [(rank, spawned, born) for rank, spawned, born, _ in ranks] == [
        (0, 0, 0), (1, 1, 1), (2, 2, 2)
    ]  # fmt: skip
    part.stop().get(timeout=SECONDS)
    with pytest.raises(SupervisionError, match="stopped"):
        part.echo.call(1).get(timeout=SECONDS)
    assert procs.initialized.get(timeout=SECONDS)


def test_the_client_sends_to_few_and_answers_come_folded(
    hosts: HostMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    echo: Any = hosts.spawn_procs({"gpus": 2}).spawn("echo", Echo)
    echo.echo.call(0).get(timeout=SECONDS)
    node = process.current().node
    sent: list[Any] = []
    received: list[Any] = []
    transmit, dispatch = node.transmit, node.dispatch

    def noted_transmit(to: Any, envelope: Any) -> None:
        sent.append(envelope.message)
        transmit(to, envelope)

    def noted_dispatch(envelope: Any) -> None:
        received.append(envelope.message)
        dispatch(envelope)

    monkeypatch.setattr(node, "transmit", noted_transmit)
    monkeypatch.setattr(node, "dispatch", noted_dispatch)
    echo.echo.call(1).get(timeout=SECONDS)
    echo.slice(hosts=3).echo.call(1).get(timeout=SECONDS)
    assert [type(message) for message in sent] == [Cast] * 3
    assert {type(message) for message in received} == {Replies}
    assert len(received) <= 10
    assert sum(len(message.items) for message in received) == 10


@pytest.mark.long
def test_a_reference_may_be_used_by_others(hosts: HostMesh) -> None:
    procs = hosts.spawn_procs({"gpus": 1})
    echo = procs.spawn("echo", Echo)
    outside: Any = this_host().spawn_procs({"gpus": 1}).spawn("outside", Caller, echo)
    inside: Any = procs.spawn("inside", Caller, echo.slice(hosts=slice(0, 4, 3)))
    assert outside.call.call_one("a").get(timeout=SECONDS) == ["a"] * 4
    assert inside.call.call("b").get(timeout=SECONDS).values() == [["b"] * 2] * 4


@pytest.mark.long
@pytest.mark.parametrize("size", [10, 2000, 300_000])
def test_arrays_travel_along_a_tree_and_each_receiver_has_its_own(
    hosts: HostMesh, size: int
) -> None:
    keeper: Any = hosts.spawn_procs({"gpus": 2}).spawn("keeper", Ranked, np.arange(size))
    array = np.arange(size)
    for number in range(5):
        array[:] = number
        keeper.add_rank.broadcast(array)
    # Replies of all sizes come back folded, and what was sent before comes before.
    array[:] = 5
    answers = keeper.add_rank.call(array).get(timeout=SECONDS).values()
    assert [answer.shape for answer in answers] == [(6, size)] * 8
    for rank, answer in enumerate(answers):
        assert (answer == np.arange(6)[:, None] + rank).all()
        answer += 1
    assert keeper.is_as_made.call(np.arange(size)).get(timeout=SECONDS).values() == [True] * 8


@pytest.mark.long
def test_a_proc_that_dies_fails_the_calls_that_wait_for_it(
    hosts: HostMesh, faults: list[MeshFailure], tmp_path: Path
) -> None:
    procs = hosts.spawn_procs({"gpus": 1})
    echo: Any = procs.spawn("echo", Echo)
    pids = echo.pid.call().get(timeout=SECONDS).values()
    outside: Any = this_host().spawn_procs({"gpus": 1}).spawn("outside", Caller, echo)
    outside.call.call_one(1).get(timeout=SECONDS)
    theirs = outside.wait_for_file.call_one(str(tmp_path / "never"))
    ours = echo.slice(hosts=slice(2, 4)).wait_for_file.call(str(tmp_path / "never"))
    os.kill(pids[3], signal.SIGKILL)
    with pytest.raises(SupervisionError, match="SIGKILL"):
        ours.get(timeout=SECONDS)
    assert "SIGKILL" in theirs.get(timeout=SECONDS)
    (fault,) = wait_for(lambda: list(faults))
    assert fault.crashed_ranks == (3,)
    (tmp_path / "never").touch()
    assert echo.slice(hosts=slice(0, 3)).echo.call(1).get(timeout=SECONDS).values() == [1] * 3
    with pytest.raises(SupervisionError):
        echo.echo.call(1).get(timeout=SECONDS)
    procs.stop().get(timeout=SECONDS)
    wait_for(lambda: not any(map(is_running, pids)))


def test_messages_go_around_a_host_that_is_lost(
    hosts: HostMesh, agents: list[Program], faults: list[MeshFailure], tmp_path: Path
) -> None:
    echo: Any = hosts.spawn_procs({"gpus": 1}).spawn("echo", Echo)
    last, others = echo.slice(hosts=3), echo.slice(hosts=slice(0, 2))
    for number in range(10):
        last.append.broadcast(number)
    assert last.read.call_one().get(timeout=SECONDS) == list(range(10))
    through = last.wait_for_file.call_one(str(tmp_path / "file"))
    beside = others.wait_for_file.call(str(tmp_path / "file"))
    agents[2].send_signal(signal.SIGKILL)
    with pytest.raises(SupervisionError, match="hands its messages on was lost"):
        through.get(timeout=SECONDS)
    (tmp_path / "file").touch()
    assert beside.get(timeout=SECONDS).values() == [0, 1]
    for number in range(10, 20):
        last.append.broadcast(number)
    assert last.read.call_one().get(timeout=SECONDS) == list(range(20))
    rest = echo.slice(hosts=slice(0, 4, 3))
    assert rest.echo.call(5).get(timeout=SECONDS).values() == [5, 5]
    with pytest.raises(SupervisionError):
        echo.echo.call(1).get(timeout=SECONDS)
    assert wait_for(lambda: list(faults))


def test_broadcasts_that_a_lost_host_had_in_hand_are_told_of_once(
    hosts: HostMesh,
    agents: list[Any],
    faults: list[MeshFailure],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nobody waits for them, so nothing else would say that those below have not got them."""
    meshes = [hosts.spawn_procs({"gpus": 1}).spawn(name, Echo) for name in ("one", "two")]
    for mesh in meshes:
        mesh.echo.call(1).get(timeout=SECONDS)
        mesh.append.broadcast(1)
    node = process.current().node
    with caplog.at_level(logging.WARNING, "monarch.node"):
        # Below 3 there is nobody, and so below 2, once 3 is lost.
        agents[3].send_signal(signal.SIGKILL)
        wait_for(lambda: node.failure_of(HostUrl.parse(agents[3].url).uid))
        agents[2].send_signal(signal.SIGKILL)
        wait_for(lambda: node.failure_of(HostUrl.parse(agents[2].url).uid))
        agents[0].send_signal(signal.SIGKILL)
        wait_for(lambda: [r for r in caplog.records if agents[0].url in r.getMessage()])
    told = [r.getMessage() for r in caplog.records if "broadcasts" in r.getMessage()]
    assert len(told) == 1, told
    assert "others (1)" in told[0]


@pytest.mark.long
@pytest.mark.parametrize("narrow", [0, 1])
def test_a_host_that_may_pass_on_less_than_others_send_says_so_to_the_caller(
    program: Callable[..., Program], tmp_path: Path, faults: object, narrow: int
) -> None:
    """Host 0 hands on to 1. What one of them may not send, be it call or answer, is an error at
    whoever waits for it; and what comes after it gets through."""
    urls = [f"ipc://{tmp_path}/h{number}" for number in range(2)]
    for number, url in enumerate(urls):
        limit = str(2**20) if number == narrow else str(2**30)
        program(SERVE.format(url=url), MONARCH_MAX_MESSAGE_BYTES=limit)
    with configured(tree_min_hosts=2, tree_degree=1, max_message_bytes=2**30):
        hosts = attach_to_workers(ca="trust_all_connections", workers=urls)
        sizes: Any = hosts.spawn_procs({"gpus": 1}).spawn("sizes", Sizes)
        large = np.zeros(3 * 2**20, np.uint8)
        # What comes while a host is not up yet comes in chunks, and is refused on its way in.
        assert sizes.size_of.call(large[:5]).get(timeout=SECONDS).values() == [5] * 2
        with pytest.raises((WireError, ActorError), match="MONARCH_MAX_MESSAGE_BYTES"):
            sizes.size_of.call(large).get(timeout=SECONDS)
        with pytest.raises(WireError, match="MONARCH_MAX_MESSAGE_BYTES"):
            sizes.zeros.call(3 * 2**20).get(timeout=SECONDS).values()
        assert sizes.size_of.call(large[:100_000]).get(timeout=SECONDS).values() == [100_000] * 2
        shutdown_context().get(timeout=SECONDS)


@pytest.mark.long
def test_others_than_the_owner_hear_of_a_host_that_is_lost(
    hosts: HostMesh, agents: list[Program], faults: list[MeshFailure], tmp_path: Path
) -> None:
    procs = hosts.spawn_procs({"gpus": 1})
    echo: Any = procs.spawn("echo", Echo)
    outside: Any = this_host().spawn_procs({"gpus": 1}).spawn("outside", Caller, echo)
    inside: Any = procs.spawn("inside", Caller, echo).slice(hosts=1)
    callers = [outside, inside]
    for caller in callers:
        assert caller.call.call_one(1).get(timeout=SECONDS) == [1] * NUM_HOSTS
    pending = [caller.wait_for_file.call_one(str(tmp_path / "never")) for caller in callers]
    agents[3].send_signal(signal.SIGKILL)
    for told in pending:
        assert "was lost" in told.get(timeout=SECONDS)
    for caller in callers:
        again = caller.wait_for_file.call_one(str(tmp_path / "never"))
        assert "was lost" in again.get(timeout=SECONDS)
    (tmp_path / "never").touch()
    assert wait_for(lambda: list(faults))


def test_an_actor_that_cannot_be_made_is_reported_with_its_rank(
    hosts: HostMesh, faults: list[MeshFailure]
) -> None:
    bad: Any = hosts.spawn_procs({"gpus": 1}).spawn("bad", BadInit, 2)
    with pytest.raises(SupervisionError, match="cannot be made"):
        bad.echo.call(1).get(timeout=SECONDS)
    (fault,) = wait_for(lambda: list(faults))
    assert fault.crashed_ranks == (2,)


def test_procs_that_are_stopped_at_once_do_not_stay(hosts: HostMesh, agents: list[Program]) -> None:
    hosts.spawn_procs({"gpus": 1}).spawn("echo", Echo)
    procs = hosts.spawn_procs({"gpus": 2})
    procs.stop().get(timeout=SECONDS)
    hosts.stop().get(timeout=SECONDS)

    def grandchildren() -> list[Any]:
        templates = [t for agent in agents for t in psutil.Process(agent.pid).children()]
        return [proc for template in templates for proc in template.children()]

    wait_for(lambda: not grandchildren())
