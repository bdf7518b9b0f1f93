"""Owners that die or stand still in the middle, strangers at the port, no descriptors, forks."""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import this_host
from monarch.config import configured
from monarch.rdma import RDMABuffer, RemoteMemoryError
from monarch.rdma.memory import table as tables
from monarch.rdma.memory.byte_locks import ALONE, lock
from monarch.rdma.memory.registry import registry
from monarch.rdma.ways import process_vm
from monarch.rdma.ways.choice import _of_agents, _say_once, ways
from monarch.rdma.ways.streams import Ticket, prove_to_owner
from monarch.rdma.ways.tcp import Tcp
from monarch.rdma.ways.tcp_server import StreamServer
from monarch.rdma.weights.slab import Slab
from tests.rdma.owners import Owner, Reader
from tests.support import wait_for

SECONDS = 60
MIB = 2**20

pytestmark = pytest.mark.filterwarnings("ignore:no RDMA device leads")

WAYS: dict[str, dict[str, Any]] = {
    "process_vm": {},
    "tcp": {"rdma_same_host": False},
    "tcp_encrypted": {"rdma_same_host": False, "rdma_tcp_encrypted": True},
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    with configured(**WAYS[request.param]):
        yield request.param


@pytest.fixture
def owner() -> Any:
    return this_host().spawn_procs({"gpus": 1}).spawn("owner", Owner)


def make(owner: Any, data: bytes, name: str = "one") -> RDMABuffer:
    buffer: RDMABuffer = owner.make.call_one(name, data).get(timeout=SECONDS)
    return buffer


@pytest.mark.parametrize("kind", ["read", "write"])
def test_an_owner_that_is_killed_in_the_middle_is_told(
    way: str, kind: str, owner: Any, faults: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # However late the news of its death comes after the end of its connections.
    monkeypatch.setattr(Tcp, "news_seconds", SECONDS)
    buffer = make(owner, bytes(32 * MIB))
    pid = owner.pid.call_one().get(timeout=SECONDS)
    here = bytearray(buffer.size())
    move = buffer.read_into if kind == "read" else buffer.write_from
    move(here, timeout=SECONDS).get()
    if way == "process_vm":
        # Whoever it is, the kernel copies: it is killed under a stream of transfers.
        started = move(here, timeout=SECONDS)
        os.kill(pid, signal.SIGKILL)
    else:
        # It stands still, so that what has begun cannot have ended before it is killed.
        os.kill(pid, signal.SIGSTOP)
        started = move(here, timeout=SECONDS)
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(RemoteMemoryError) as caught:
        until_it_fails(started, lambda: move(here, timeout=SECONDS))
    assert caught.value.owner == buffer.owner
    assert "ended" in str(caught.value) or "gone" in str(caught.value), caught.value


def until_it_fails(started: Any, again: Callable[[], Any]) -> None:
    while True:
        started.get()
        started = again()


@pytest.mark.long_but(1)
def test_an_owner_that_stands_still_is_waited_for_until_the_timeout(way: str, owner: Any) -> None:
    data = os.urandom(16 * MIB)
    buffer = make(owner, data)
    pid = owner.pid.call_one().get(timeout=SECONDS)
    into = bytearray(buffer.size())
    buffer.read_into(into, timeout=SECONDS).get()
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: "State:\tT" in Path(f"/proc/{pid}/status").read_text())
    try:
        if way == "process_vm":  # The kernel needs nothing of the owner.
            buffer.read_into(into, timeout=SECONDS).get()
            buffer.write_from(data[::-1], timeout=SECONDS).get()
        else:
            for use in (lambda: buffer.read_into(into, timeout=0.3),
                        lambda: buffer.write_from(data, timeout=0.3),
                        lambda: buffer.fetch_add(0, timeout=0.3)):  # fmt: skip
                started = time.monotonic()
                with pytest.raises(TimeoutError, match="has not answered in time"):
                    use().get()
                assert time.monotonic() - started < 20
    finally:
        os.kill(pid, signal.SIGCONT)
    buffer.write_from(data, timeout=SECONDS).get()
    buffer.read_into(into, timeout=SECONDS, consistent=True).get()
    assert into == data


def test_strangers_at_the_port_get_nothing_and_keep_nobody_out(owner: Any) -> None:
    data = os.urandom(1000)
    buffer = make(owner, data)
    pid = owner.pid.call_one().get(timeout=SECONDS)
    strangers = []
    with configured(rdma_same_host=False):
        into = bytearray(1000)
        buffer.read_into(into, timeout=SECONDS).get()
        (known,) = ways()._tcp._idle[buffer.part.region.owner.uid]
        place = known.getpeername()
        try:
            with socket.create_connection(place, timeout=SECONDS) as liar:
                liar.sendall(b"a number that was not given out" * 10)
                assert answer(liar) == b""
            for _ in range(200):  # They connect, and say nothing.
                strangers.append(socket.create_connection(place, timeout=SECONDS))
            # Sooner than the ten seconds after which any of them would have to go.
            wait_for(lambda: len(os.listdir(f"/proc/{pid}/task")) < 100, timeout=7.0)
            # The one before is closed, so that the next read has to get in among them.
            ways()._tcp.close()
            buffer.read_into(into, timeout=SECONDS).get()
            assert into == data
            assert answer(strangers[0]) == b"", "the oldest have had to go"
        finally:
            for one in strangers:
                one.close()
    # What waits for nobody any longer ends.
    wait_for(lambda: len(os.listdir(f"/proc/{pid}/task")) < 20)


def answer(sock: socket.socket) -> bytes:
    try:
        return sock.recv(100)
    except ConnectionError:
        return b""


def test_who_knows_a_number_and_not_its_secret_gets_nothing() -> None:
    server = StreamServer("127.0.0.1", encrypted=False)
    try:
        ticket = server.issue()
        # A ticket is good for one connection, whoever shows it.
        for shown in (Ticket(ticket.number, bytes(32)), ticket):
            sock = socket.create_connection(("127.0.0.1", server.port), timeout=SECONDS)
            with sock, pytest.raises(OSError):
                prove_to_owner(sock, shown, encrypted=False)
    finally:
        server.close()


def test_without_descriptors_one_is_told_of_that_and_not_of_a_death(way: str, owner: Any) -> None:
    buffer = make(owner, b"abcdefgh")
    reader: Any = this_host().spawn_procs({"gpus": 1}).spawn("reader", Reader)
    assert reader.read.call_one(buffer).get(timeout=SECONDS) == b"abcdefgh"
    read, write, add, drop = reader.use_without_descriptors.call_one(buffer).get(timeout=SECONDS)
    assert read == "done", "neither way needs one more for it"
    if way == "process_vm":
        for said in (write, add):
            assert "Too many open files" in said
    else:
        assert (write, add) == ("done", "done")
    assert drop == "done", "memory that is given up is waited for without one"
    reader.write.call_one(buffer, b"hgfedcba").get(timeout=SECONDS)


def test_a_way_that_the_kernel_refuses_is_left_for_the_next_and_that_is_said_once(
    owner: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(*arguments: Any) -> int:
        ctypes.set_errno(errno.EPERM)
        return -1

    one, two = make(owner, b"one"), make(owner, b"two", "two")
    _say_once.cache_clear()
    monkeypatch.setattr(process_vm, "_readv", refused)
    into = bytearray(3)
    with caplog.at_level(logging.WARNING, "monarch.rdma"):
        for buffer in (one, two, one):
            buffer.read_into(into, timeout=SECONDS).get()
    assert into == b"one"
    assert one.backend == "tcp"
    (said,) = [record.getMessage() for record in caplog.records]
    assert "process_vm" in said
    assert "Operation not permitted" in said
    # What was found out is of that owner: forget it with it.
    ways()._refused.clear()


def test_a_lock_does_not_outlive_its_holder_in_a_child_that_was_forked_meanwhile() -> None:
    slab = Slab.create(100, "here")
    buffer = RDMABuffer(bytearray(8))
    slot = buffer.part.region.slot
    using = registry().table.open()
    tables.use(using, slot, time.monotonic() + 1)
    end, other = os.pipe()
    with slab.filling(0, 1), slab.reading(1, 0, time.monotonic() + 1):
        child = os.fork()
        if child == 0:
            os.close(other)
            os.read(end, 1)
            os._exit(0)
    try:
        tables.stop_using(using, slot)
        fd = os.open(f"/proc/self/fd/{slab.fd}", os.O_RDWR)
        for half in (0, 1):
            lock(fd, half, ALONE, time.monotonic())
        os.close(fd)
        registry().table.wait_until_unused(slot, time.monotonic())
    finally:
        os.close(other)
        os.close(end)
        os.waitpid(child, 0)
    slab.close()


@pytest.mark.long_but(1)
def test_what_a_forked_child_registers_is_the_childs(way: str, owner: Any) -> None:
    """The child has copies of all that its parent has: connections, threads that do not run, and
    the names of both."""
    of_parent = make(owner, b"of the parent")
    into = bytearray(of_parent.size())
    of_parent.read_into(into, timeout=SECONDS).get()
    made = owner.fork_and_make.call_one(b"child").get(timeout=SECONDS)
    buffer, pid = made
    assert buffer.part.region.table.pid == pid
    assert buffer.part.region.owner != of_parent.part.region.owner
    reader: Any = this_host().spawn_procs({"gpus": 1}).spawn("reader", Reader)
    assert reader.read.call_one(buffer).get(timeout=SECONDS) == b"child"
    buffer.write_from(b"CH", timeout=SECONDS).get()
    assert reader.read.call_one(buffer).get(timeout=SECONDS) == b"CHild"
    assert owner.content.call_one("one").get(timeout=SECONDS) == b"of the parent"
    owner.end_child.call_one().get(timeout=SECONDS)
    with pytest.raises(RemoteMemoryError, match=r"ended|gone|broke") as caught:
        buffer.read_into(bytearray(5), timeout=SECONDS).get()
    assert caught.value.owner == buffer.owner
    of_parent.read_into(into, timeout=SECONDS).get()
    assert into == b"of the parent"


def test_a_forked_child_takes_no_way_of_its_parents() -> None:
    """Their threads do not run there, and a new agent may lie where the parent's has lain."""
    before = ways()
    child = os.fork()
    if child == 0:
        os._exit(bool(_of_agents) or ways() is before)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert ways() is before


@pytest.mark.long
def test_ten_thousand_buffers_are_as_good_as_one(way: str, owner: Any) -> None:
    num = 10_000
    buffers = owner.make_many.call_one(num).get(timeout=SECONDS)
    assert owner.num_registered.call_one().get(timeout=SECONDS) == num
    before = owner.num_descriptors.call_one().get(timeout=SECONDS)
    into = bytearray(8)
    for number in range(0, num, 37):
        buffers[number].read_into(into, timeout=SECONDS).get()
        assert int.from_bytes(into, "little") == number
    assert owner.num_descriptors.call_one().get(timeout=SECONDS) <= before + 4
    owner.free_all.call_one().get(timeout=SECONDS)
    assert owner.num_registered.call_one().get(timeout=SECONDS) == 0
    for number in range(0, num, 997):
        with pytest.raises(RemoteMemoryError, match="freed"):
            buffers[number].read_into(into, timeout=SECONDS).get()


def test_nothing_of_it_lies_in_dev_shm(owner: Any) -> None:
    """So it does not matter how small that is: containers have 64 MiB."""
    slab = Slab.create(MIB, "here")
    make(owner, b"x")
    pid = owner.pid.call_one().get(timeout=SECONDS)
    for process in ("self", str(pid)):
        places = [
            os.readlink(one) for one in Path(f"/proc/{process}/fd").iterdir() if one.is_symlink()
        ]
        assert any("memfd:monarch-rdma" in place for place in places)
        assert not any(place.startswith("/dev/shm/") and "rdma" in place for place in places)
    slab.close()
