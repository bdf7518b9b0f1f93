"""The way by RDMA devices where these fail: on a fake that does as it is told."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from monarch.rdma import RDMABuffer, RemoteMemoryError
from monarch.rdma.memory.memory import memory_of
from monarch.rdma.ways.backend import BackendUnavailable
from monarch.rdma.ways.verbs import devices
from monarch.rdma.ways.verbs.devices import register_gpu
from monarch.rdma.ways.verbs.library import READ, GuardedPair, VerbsFailed, WorkRequest
from monarch.rdma.ways.verbs.verbs_backend import Verbs
from monarch.runtime.links.network import Gone
from monarch.testing.fake_verbs import FakeVerbs
from tests.support import wait_for

SIZE = 5 * 2**20


class Wire:
    """A buffer of this process, and a reader of it by the fake."""

    def __init__(self) -> None:
        self.fake = FakeVerbs()
        self.verbs = Verbs(self.fake)
        self.data = bytearray(os.urandom(SIZE))
        self.buffer = RDMABuffer(self.data)

    def read(self, size: int = SIZE, seconds: float = 10.0) -> bytes:
        into = bytearray(size)
        part = self.buffer[:size].part
        self.verbs.read(part, memory_of(into).runs(), time.monotonic() + seconds)
        return bytes(into)

    def is_at_rest(self) -> bool:
        """What the owner's table says before a read of the first byte."""
        into = bytearray(1)  # Held to the end: runs are addresses, which hold nothing.
        part, runs = self.buffer[:1].part, memory_of(into).runs()
        before, _ = self.verbs.read(part, runs, time.monotonic() + 10.0)
        return before.is_at_rest

    def write(self, data: bytes) -> None:
        part = self.buffer[: len(data)].part
        self.verbs.write(part, memory_of(data).runs(), time.monotonic() + 10.0)


@pytest.fixture
def wire() -> Iterator[Wire]:
    found = Wire()
    yield found
    found.buffer.drop().get()
    was_used = found.fake.num_registrations_left < 2**31
    found.verbs.close()
    assert found.fake.num_closed >= was_used


def test_completions_may_come_one_by_one(wire: Wire) -> None:
    wire.fake.most_polled = 1
    assert wire.read() == wire.data
    wire.write(b"x" * 3 * 2**20)
    assert wire.data[: 3 * 2**20] == b"x" * 3 * 2**20


@pytest.mark.parametrize("place", [0, 1, 3, 6])
def test_after_an_error_a_new_queue_pair_does_it_again(wire: Wire, place: int) -> None:
    assert wire.read(100) == wire.data[:100]
    before = set(wire.fake.pairs)
    wire.fake.statuses.extend([0] * place + [12])
    assert wire.read() == wire.data
    assert not before & set(wire.fake.pairs), "what failed is not used again"


def test_an_error_that_stays_is_told_with_the_buffer(wire: Wire) -> None:
    wire.fake.statuses.extend([12, 12])
    with pytest.raises(RemoteMemoryError, match="status 12") as caught:
        wire.read()
    assert caught.value.owner == wire.buffer.owner
    assert wire.read() == wire.data


def test_a_dropped_buffer_is_told_as_that_though_the_device_says_access_error(wire: Wire) -> None:
    assert wire.read(10) == wire.data[:10]
    wire.buffer.drop().get()
    with pytest.raises(RemoteMemoryError, match="was dropped"):
        wire.read(10)
    with pytest.raises(RemoteMemoryError, match="was dropped"):
        wire.write(b"x")


def test_its_key_is_given_back_with_the_registration(wire: Wire) -> None:
    wire.read(10)
    place = memory_of(wire.data).address
    assert place in {address for address, _ in wire.fake.registered.values()}
    wire.buffer.drop().get()
    assert place not in {address for address, _ in wire.fake.registered.values()}


def test_without_memory_to_lock_bytes_go_through_what_is_registered(wire: Wire) -> None:
    wire.read(10)
    wire.fake.num_registrations_left = 0
    assert wire.read() == wire.data
    wire.write(b"y" * SIZE)
    assert wire.data == b"y" * SIZE


def test_where_nothing_can_be_registered_another_way_is_taken(wire: Wire) -> None:
    wire.fake.num_registrations_left = 0
    with pytest.raises(BackendUnavailable, match="Cannot allocate memory"):
        wire.read()


def test_where_the_port_is_down_another_way_is_taken(wire: Wire) -> None:
    wire.fake.is_port_up = False
    with pytest.raises(BackendUnavailable, match="port is down"):
        wire.read()


def test_where_there_is_no_device_another_way_is_taken(wire: Wire) -> None:
    wire.fake.devices.clear()
    with pytest.raises(BackendUnavailable, match="no RDMA device"):
        wire.read()


def test_a_device_that_says_nothing_is_waited_for_until_the_deadline(wire: Wire) -> None:
    wire.read(10)
    wire.fake.most_polled = 0
    with pytest.raises(TimeoutError, match="has not answered"):
        wire.read(seconds=0.1)
    wire.fake.most_polled = 100
    assert wire.read() == wire.data


def test_transfers_whose_connection_is_closed_meanwhile_go_over_a_new_one(wire: Wire) -> None:
    """One of them has posted its reads, one waits for the connection; a close waits for neither."""
    wire.read(10)
    wire.fake.most_polled = 0
    num_posted = wire.fake.num_posted
    with ThreadPoolExecutor(2) as pool:
        reads = [pool.submit(wire.read), pool.submit(wire.read)]
        wait_for(lambda: wire.fake.num_posted > num_posted)
        wire.verbs.forget(wire.buffer.part.region.owner.uid, Gone.LEFT)
        wire.fake.most_polled = 100
        assert [read.result(timeout=10) for read in reads] == [wire.data, wire.data]


def test_a_queue_pair_that_is_closed_refuses(wire: Wire) -> None:
    pair = GuardedPair(wire.fake.open("fake0").queue_pair(16))
    pair.connect(pair.info)
    assert pair.poll(1) == []
    pair.close()
    pair.close()
    work = WorkRequest(number=0, kind=READ, local=0, lkey=0, remote=0, rkey=0, length=0)
    for use in (lambda: pair.connect(pair.info), lambda: pair.post(work), lambda: pair.poll(1)):
        with pytest.raises(VerbsFailed, match="is closed"):
            use()


def test_a_write_that_fails_leaves_the_memory_not_at_rest(wire: Wire) -> None:
    wire.read(10)
    wire.fake.statuses.extend([12, 12])
    with pytest.raises(RemoteMemoryError):
        wire.write(b"z" * 100)
    assert not wire.is_at_rest()
    wire.write(b"z" * 100)
    assert wire.is_at_rest()


def test_the_nearest_device_is_by_pcie_then_by_numa_node_then_by_name() -> None:
    root = "/sys/devices"
    paths = {
        "mlx5_0": f"{root}/pci0000:00/0000:01/0000:02",
        "mlx5_1": f"{root}/pci0000:80/0000:81/0000:82",
        "mlx5_2": f"{root}/pci0000:80/0000:83/0000:84",
    }
    nodes = {"mlx5_0": 0, "mlx5_1": 1, "mlx5_2": 1}
    gpu = f"{root}/pci0000:80/0000:83/0000:85"
    assert devices.nearest(paths, nodes, gpu, 0) == "mlx5_2"
    assert devices.nearest(paths, nodes, "", 1) == "mlx5_1"
    assert devices.nearest(paths, nodes, "", -1) == "mlx5_0"


def test_the_best_address_is_routed_and_of_ipv4() -> None:
    ipv4 = bytes(10) + b"\xff\xff" + bytes([192, 0, 2, 1])
    link, other = b"\xfe\x80" + bytes(14), b"\x20\x01" + bytes(14)
    gids = [
        (0, link, "IB/RoCE v1"), (1, link, "RoCE v2"), (2, other, "RoCE v2"), (3, ipv4, "RoCE v2"),
        (4, ipv4, "IB/RoCE v1"),
    ]  # fmt: skip
    assert devices.best_gid(gids) == (3, ipv4)
    assert devices.best_gid(gids[:3]) == (2, other)
    assert devices.best_gid([(0, link, "IB/RoCE v1")]) == (0, link)
    assert devices.best_gid([]) == (0, bytes(16))


def test_efa_is_left_out(tmp_path: Path) -> None:
    for name, driver in (("rdmap0", "efa"), ("mlx5_0", "mlx5_core")):
        folder = tmp_path / name / "device"
        folder.mkdir(parents=True)
        (tmp_path / driver).mkdir()
        (folder / "driver").symlink_to(tmp_path / driver)
    assert devices.usable(["rdmap0", "mlx5_0"], tmp_path) == ["mlx5_0"]


class FakeDriver:
    """CUDA's driver, with one allocation."""

    def __init__(self, base: int, size: int, fd: int, status: int = 0) -> None:
        self.base, self.size, self.fd, self.status = base, size, fd, status
        self.exported: tuple[int, int] | None = None

    def cuMemGetAddressRange_v2(self, base: Any, size: Any, at: Any) -> int:
        assert self.base <= at.value < self.base + self.size
        base._obj.value, size._obj.value = self.base, self.size
        return 0

    def cuMemGetHandleForAddressRange(
        self, fd: Any, base: Any, size: Any, kind: int, flags: Any
    ) -> int:
        assert kind == 1
        self.exported = base.value, size.value
        fd._obj.value = self.fd
        return self.status


class FakeGpuDevice:
    """Notes what is registered."""

    name = "gpu"
    seen: tuple[int, int, int, int]

    def register_dma_buf(self, fd: int, offset: int, address: int, length: int) -> Any:
        os.fstat(fd)
        self.seen = fd, offset, address, length
        return object()


def test_memory_of_a_gpu_is_registered_by_its_whole_allocation() -> None:
    fd = os.memfd_create("gpu")
    driver, device = FakeDriver(0x7000_0000, 3 * 2**20 + 5, fd), FakeGpuDevice()
    register_gpu(device, 0x7000_1234, 1000, driver)  # type: ignore[arg-type]
    assert device.seen == (fd, 0x1234, 0x7000_1234, 1000)
    assert driver.exported is not None
    assert driver.exported[1] % os.sysconf("SC_PAGE_SIZE") == 0
    with pytest.raises(OSError):
        os.fstat(fd)
    with pytest.raises(VerbsFailed, match="error 801"):
        register_gpu(device, 0x7000_0000, 1, FakeDriver(0x7000_0000, 10, -1, 801))  # type: ignore[arg-type]
