"""What a process that lives long remembers of those that have died."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.config import configured
from monarch.errors import MeshFailure
from monarch.observe.visit import MeshVisit
from monarch.runtime.links.address_book import PeerTable
from monarch.runtime.node import Node
from monarch.wire.address import ProcAddress
from monarch.wire.codec import Envelope
from monarch.wire.message import PROTOCOL_VERSION, Hello, Inspect, Message, ProcDown, Watch
from tests.support import wait_for

MAX_DEAD = 5


@pytest.fixture
def node() -> Iterator[Callable[[str], Node]]:
    nodes: list[Node] = []

    def make(uid: str) -> Node:
        nodes.append(Node(uid))
        nodes[-1].address_book.peers.max_dead = MAX_DEAD
        nodes[-1].start()
        return nodes[-1]

    yield make
    for one in nodes:
        one.close()


def die(table: PeerTable, address: ProcAddress) -> None:
    peer, _ = table.find(address)
    peer.down(MeshFailure(address.uid, (), "it was killed"))
    table.retire(address.uid)


def proc(number: int) -> ProcAddress:
    return ProcAddress(f"p{number}", (), "", "host", ("ipc:///nowhere/host",))


def test_the_last_dead_are_remembered_and_no_more() -> None:
    table = PeerTable(MAX_DEAD)
    for number in range(100):
        die(table, proc(number))
    assert len(table) == MAX_DEAD
    assert table.get("p99") is not None
    assert table.get("p94") is None


def test_the_living_and_hosts_are_not_forgotten() -> None:
    table = PeerTable(MAX_DEAD)
    table.find(proc(1000))
    die(table, ProcAddress("host", ("ipc:///nowhere/host",)))
    for number in range(100):
        die(table, proc(number))
    assert table.get("p1000") is not None
    assert table.get("host") is not None


def test_one_that_comes_again_is_not_forgotten_as_the_dead_one() -> None:
    table = PeerTable(MAX_DEAD)
    die(table, proc(0))
    alive = table.replace(proc(0))
    for number in range(1, 100):
        die(table, proc(number))
    assert table.get("p0") is alive


def test_the_living_procs_of_a_host_are_found_without_a_look_at_the_others() -> None:
    table = PeerTable(MAX_DEAD)
    for number in range(4):
        table.find(proc(number))
    elsewhere = ProcAddress("p9", (), "", "another")
    table.find(elsewhere)
    assert table.on_host("host") == ["p0", "p1", "p2", "p3"]
    die(table, proc(1))
    table.pop("p2")
    table.replace(ProcAddress("p3", (), "", "another"))
    assert table.on_host("host") == ["p0"]
    assert table.on_host("another") == ["p9", "p3"]
    assert table.on_host("nowhere") == []
    for uid in ("p0", "p3", "p9"):
        table.pop(uid)
    assert not table._on_host


def test_a_peer_whose_host_is_learnt_later_is_lost_with_it(node: Any, tmp_path: Path) -> None:
    one, other = node("me"), node("p")
    other.listen(f"ipc://{tmp_path}/p")
    one.transmit(ProcAddress("p"), Envelope("p", Inspect()))
    assert one.address_book.peers.on_host("host") == []
    one.address_book.peer_up(
        ProcAddress("p", other.address.urls, "", "host", ("ipc:///nowhere/host",))
    )
    assert one.address_book.peers.on_host("host") == ["p"]
    one.peer_down.report(ProcDown("host", "it was switched off"))
    assert "its host" in one.failure_of("p").reason
    assert one.address_book.peers.on_host("host") == []


class Untouchable(dict[str, Any]):
    """Nobody goes through all of it."""

    def values(self) -> Any:
        raise AssertionError("a death made somebody look at all peers")

    items = __iter__ = values  # type: ignore[assignment]


def test_a_death_looks_at_those_alone_whom_it_concerns(node: Any) -> None:
    one = node("me")
    for number in range(3):
        one.address_book.expect(proc(number))
    one.address_book.peers._peers = Untouchable(one.address_book.peers._peers)
    one.address_book.peers.get = one.address_book.peers._peers.get
    one.trees._routes = Untouchable()
    one.peer_down.report(ProcDown("p1", "it was killed"))
    one.peer_down.report(ProcDown("host", "it was switched off"))
    assert all(one.failure_of(f"p{number}") for number in range(3))


def test_a_node_does_not_grow_with_those_that_die(node: Any) -> None:
    one = node("me")
    for number in range(100):
        one.address_book.expect(proc(number))
        one.peer_down.report(ProcDown(f"p{number}", "it was killed"))
    # And the host that is watched for them.
    assert len(one.address_book.peers) <= MAX_DEAD + 1
    assert not one.address_book._watched


def forgotten(one: Node, address: ProcAddress) -> None:
    one.address_book.expect(address)
    one.peer_down.report(ProcDown(address.uid, "it was killed"))
    for number in range(MAX_DEAD):
        one.peer_down.report(ProcDown(f"other{number}", "it was killed too"))
    assert one.failure_of(address.uid) is None


def num_sockets() -> int:
    num = 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # It was closed meanwhile.
            num += "socket:" in os.readlink(f"/proc/self/fd/{fd}")
    return num


def test_looks_at_a_host_and_new_agents_at_its_address_leave_one_connection(
    node: Any, tmp_path: Path
) -> None:
    """Each restart of a run once left one to each host, open at both ends."""
    host, one = node("host"), node("me")
    host.listen(f"ipc://{tmp_path}/h")
    one.listen(f"ipc://{tmp_path}/me")
    there = ProcAddress("host", host.address.urls)
    one.address_book.reach(there)
    peer = one.address_book.peers.get("host")
    wait_for(lambda: peer.is_up)
    # The test's own process has other sockets, too, which come and go.
    most = num_sockets() + 5
    for _ in range(20):
        one.address_book.reach(there)
        MeshVisit(one, {"host": there})
    assert one.address_book.peers.get("host") is peer, "the connection that there is serves"
    assert num_sockets() <= most
    for _ in range(20):
        one.address_book.expect(there)
        one.address_book.peer_up(there)
    wait_for(lambda: num_sockets() <= most)
    one.peer_down.report(ProcDown("host", "it was killed"))
    one.address_book.reach(there)
    assert one.failure_of("host") is None, "it may be back"


@pytest.mark.parametrize("late_hello", [False, True])
def test_who_asks_a_forgotten_one_hears_of_its_end_from_its_host(
    node: Any, tmp_path: Path, late_hello: bool
) -> None:
    """A late Hello does not revive it either."""
    host, one = node("host"), node("me")
    host.listen(f"ipc://{tmp_path}/h")
    one.listen(f"ipc://{tmp_path}/me")

    def tell(envelope: Envelope[Message]) -> None:
        watch: Any = envelope.message
        host.send(watch.watcher, ProcDown(watch.uid, "it had ended"))

    host.handle(Watch, tell)
    dead = ProcAddress(
        "p", (f"ipc://{tmp_path}/p",), one.address.machine, "host", host.address.urls
    )
    forgotten(one, dead)
    if late_hello:
        one.dispatch(Envelope("me", Hello(dead, PROTOCOL_VERSION)))
        assert one.address_book.peers.get("p") is None
    outcome = one.ask(dead, Inspect())
    assert outcome.wait(20.0), "it waits for ever"
    assert outcome.value.is_down
    assert one.failure_of("p") is not None


def test_a_forgotten_one_of_our_own_host_is_asked_about_here(node: Any) -> None:
    one = node("me")
    asked: list[str] = []

    def tell(envelope: Envelope[Message]) -> None:
        watch: Any = envelope.message
        asked.append(watch.uid)
        one.send(watch.watcher, ProcDown(watch.uid, "it had ended"))

    one.handle(Watch, tell)
    dead = ProcAddress("p", (), "", "me")
    forgotten(one, dead)
    outcome = one.ask(dead, Inspect())
    assert outcome.wait(20.0), "it waits for ever"
    assert asked == ["p"]


def test_a_forgotten_one_of_a_lost_host_is_given_up_after_a_silence(tmp_path: Path) -> None:
    with configured(heartbeat_seconds=0.02, heartbeat_timeout_seconds=0.1):
        one = Node("me")
        one.address_book.peers.max_dead = MAX_DEAD
        one.start()
        try:
            host = ProcAddress("host", (f"ipc://{tmp_path}/nobody",))
            dead = ProcAddress("p", (), "", host.uid, host.urls)
            one.address_book.expect(host)
            one.address_book.peer_up(host)
            one.peer_down.report(ProcDown("host", "it was switched off"))
            forgotten(one, dead)
            outcome = one.ask(dead, Inspect())
            assert outcome.wait(20.0), "it waits for ever"
            wait_for(lambda: one.failure_of("p") is not None)
        finally:
            one.close()
