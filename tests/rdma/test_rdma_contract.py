"""What every way to the memory of another process does: one suite for all of them."""

from __future__ import annotations

import os
import random
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from monarch.actor import attach_to_workers, this_host, this_proc
from monarch.config import configured
from monarch.rdma import RDMAAction, RDMABuffer, RemoteMemoryError, is_ibverbs_available
from monarch.rdma.memory.gpu import gpu, use_gpu
from monarch.rdma.ways.choice import Ways
from monarch.rdma.ways.verbs.verbs_backend import Verbs
from monarch.testing.fake_gpu import gpu_of_tests
from monarch.testing.fake_verbs import FakeVerbs
from tests.rdma.owners import Owner, Reader
from tests.support import wait_for

# A guest machine that is emulated needs longer.
SECONDS = float(os.environ.get("RDMA_TEST_SECONDS", "30"))
PATTERN = bytes(range(256)) * 64

# What is configured, so that this way and no other is taken.
WAYS: dict[str, dict[str, Any]] = {
    "local": {},
    "ibverbs_fake": {},
    "ibverbs_fake_gpu": {},
    "process_vm": {"rdma_allow_tcp_fallback": False},
    "cuda_ipc_gpu": {"rdma_allow_tcp_fallback": False},
    "ibverbs": {"rdma_same_host": False, "rdma_allow_tcp_fallback": False},
    "tcp": {"rdma_same_host": False},
    "tcp_gpu": {"rdma_same_host": False},
    "tcp_encrypted": {"rdma_same_host": False, "rdma_tcp_encrypted": True},
}
# The owner is on another host, whose agent is there: `test_rdma_hosts.py` runs this so.
OTHER_HOST = os.environ.get("RDMA_TEST_HOST", "")
if OTHER_HOST:
    WAYS = {"tcp_hosts": {}, "tcp_hosts_encrypted": {"rdma_tcp_encrypted": True}}


def owners_host() -> Any:
    if not OTHER_HOST:
        return this_host()
    return attach_to_workers(ca="trust_all_connections", workers=[OTHER_HOST])


class World:
    """An owner, reached by one way, and a reader beside this process."""

    def __init__(self, way: str) -> None:
        self.way = way
        self.is_here = way == "local" or way.startswith("ibverbs_fake")
        self.on_gpu = way.endswith("_gpu")
        procs = this_proc() if self.is_here else owners_host().spawn_procs({"gpus": 1})
        self.owner: Any = procs.spawn("owner", Owner, self.on_gpu)

    def make(self, data: bytes = PATTERN, name: str = "one") -> RDMABuffer:
        buffer: RDMABuffer = self.owner.make.call_one(name, data).get(timeout=SECONDS)
        assert buffer.backend == re.sub("_(encrypted|fake|gpu|hosts)", "", self.way)
        assert buffer.part.region.is_on_cpu != self.on_gpu
        return buffer

    def make_tensor(self, values: Any, view: str = "") -> RDMABuffer:
        if self.on_gpu:
            pytest.skip("torch's tensors are not the fake's: its arrays stand for them")
        made = self.owner.make_tensor.call_one("t", values, view)
        buffer: RDMABuffer = made.get(timeout=SECONDS)
        return buffer

    def spawn_readers(self, num: int = 1) -> Any:
        return this_host().spawn_procs({"gpus": num}).spawn("reader", Reader, self.on_gpu)

    def content(self, name: str = "one") -> bytes:
        found: bytes = self.owner.content.call_one(name).get(timeout=SECONDS)
        return found


@pytest.fixture(params=WAYS)
def world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    before = gpu()
    if request.param.endswith("_gpu"):
        gpu_of_tests()
    if request.param.startswith("ibverbs_fake"):
        verbs: Any = Verbs(FakeVerbs())
        monkeypatch.setattr(Ways, "to", lambda self, region: [verbs])
    if request.param == "ibverbs" and not is_ibverbs_available():
        pytest.skip("there is no RDMA device here")
    with configured(**WAYS[request.param]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "no RDMA device leads")
        yield World(request.param)
    use_gpu(before)


def read(buffer: RDMABuffer, **options: Any) -> bytes:
    into = bytearray(buffer.size())
    buffer.read_into(into, timeout=SECONDS, **options).get()
    return bytes(into)


def uses_of(buffer: RDMABuffer) -> list[Callable[[], Any]]:
    return [
        lambda: buffer.read_into(bytearray(buffer.size())),
        lambda: buffer.write_from(b"x"),
        lambda: buffer.fetch_add(1),
    ]


def test_a_read_gives_what_the_owner_has_at_that_moment(world: World) -> None:
    buffer = world.make()
    assert read(buffer) == PATTERN
    world.owner.put.call_one("one", b"later").get(timeout=SECONDS)
    assert read(buffer) == b"later" + PATTERN[5:]
    assert read(buffer, consistent=True) == b"later" + PATTERN[5:]


def test_a_write_is_seen_by_the_owner(world: World) -> None:
    buffer = world.make()
    buffer.write_from(b"hello", timeout=SECONDS).get()
    assert world.content() == b"hello" + PATTERN[5:]
    buffer.write_from(PATTERN[::-1]).get()
    assert world.content() == PATTERN[::-1]


def test_large_memory_moves_in_pieces(world: World) -> None:
    data = random.Random(1).randbytes(5 * 2**20 + 17)
    with configured(rdma_max_chunk_size_mb=1):
        buffer = world.make(data)
        assert read(buffer) == data
        buffer.write_from(data[::-1], timeout=SECONDS).get()
        assert world.content() == data[::-1]


def test_slices_are_views_of_bytes(world: World) -> None:
    buffer = world.make()
    part = buffer[1000:-1000]
    assert part.size() == len(PATTERN) - 2000
    assert read(part) == PATTERN[1000:-1000]
    assert read(part[5:9]) == PATTERN[1005:1009]
    part[5:9].write_from(b"abcd").get()
    assert world.content()[1005:1009] == b"abcd"
    with pytest.raises(ValueError, match="empty"):
        buffer[10:10]
    with pytest.raises(ValueError, match="drop the whole"):
        part.drop()


def test_sizes_are_checked_before_a_byte_moves(world: World) -> None:
    buffer = world.make()
    with pytest.raises(ValueError, match="destination has 5 bytes"):
        buffer.read_into(bytearray(5))
    with pytest.raises(ValueError, match="source has"):
        buffer.write_from(PATTERN + b"x")
    larger = bytearray(len(PATTERN) + 3)
    buffer.read_into(larger, timeout=SECONDS).get()
    assert larger == PATTERN + b"\0\0\0"


def test_a_destination_may_have_gaps(world: World) -> None:
    buffer = world.make()[:100]
    into = bytearray(400)
    buffer.read_into(memoryview(into)[::4], timeout=SECONDS).get()
    assert into[::4] == PATTERN[:100]
    assert not any(into[1::4])
    buffer.write_from(memoryview(into)[396::-4]).get()
    assert world.content()[:100] == PATTERN[99::-1]


@pytest.mark.long_but(1)
def test_a_tensor_may_have_any_strides(world: World) -> None:
    torch = pytest.importorskip("torch")
    values = torch.arange(24, dtype=torch.int64).reshape(4, 6)
    buffer = world.make_tensor(values.tolist(), ".t()[1:5]")
    into = torch.empty(4, 4, dtype=torch.int64)
    buffer.read_into(into).get()
    assert torch.equal(into, values.t()[1:5])
    buffer.write_from(-into).get()
    values.t()[1:5] *= -1
    assert world.owner.values.call_one("t").get(SECONDS) == values.tolist()
    across = torch.empty(4, 4, dtype=torch.int64).t()
    buffer.read_into(across).get()
    assert torch.equal(across, values.t()[1:5])


def test_atomic_operations_give_what_was_there(world: World) -> None:
    buffer = world.make(bytes(16))
    assert buffer.fetch_add(5, 8, timeout=SECONDS).get() == 0
    assert buffer.fetch_add(-7, 8).get() == 5
    assert buffer.compare_and_swap(-2, 40, 8).get() == -2
    assert buffer.compare_and_swap(-2, 50, 8).get() == 40
    assert world.content() == bytes(8) + (40).to_bytes(8, "little")
    with pytest.raises(ValueError, match="no 64-bit word"):
        buffer.fetch_add(1, 9)
    with pytest.raises(ValueError, match="not where"):
        buffer[1:].fetch_add(1)


def test_atomic_operations_of_several_processes_lose_nothing(world: World) -> None:
    buffer = world.make(bytes(8))
    readers = world.spawn_readers(2)
    added = readers.add.call(buffer, 3, 50)
    for _ in range(50):
        buffer.fetch_add(1).get()
    added.get(timeout=SECONDS)
    assert world.content() == (2 * 50 * 3 + 50).to_bytes(8, "little")
    swapped = world.make(bytes(8), "swapped")
    counted = readers.count_by_swaps.call(swapped, 20)
    for _ in range(20):
        swapped.fetch_add(1).get()
    counted.get(timeout=SECONDS)
    assert world.content("swapped") == (3 * 20).to_bytes(8, "little")


def test_a_consistent_read_sees_one_version(world: World) -> None:
    size = 300_000
    buffer = world.make(bytes(size))
    # The owner writes beside the reads; where it is this process, on an actor's own thread.
    changed = world.owner.change.call_one("one", 100)
    for _ in range(20):
        data = read(buffer, consistent=True)
        assert data == data[:1] * size
    changed.get(timeout=SECONDS)


def test_what_a_writer_left_half_done_is_told(world: World, faults: list[Any]) -> None:
    buffer = world.make()
    writer = world.spawn_readers()
    with pytest.raises(Exception, match="failed"):
        writer.write_and_die.call_one(buffer, 100).get(timeout=SECONDS)
    # A software device in a guest machine is slow.
    seconds = 20.0 if world.way == "ibverbs" else 0.3

    def is_told() -> bool:
        with pytest.raises(TimeoutError) as caught:
            buffer.read_into(bytearray(buffer.size()), timeout=seconds, consistent=True).get()
        # An owner that is slow for a moment has not answered at all.
        return "ended before it was done" in str(caught.value)

    wait_for(is_told, timeout=4 * SECONDS)
    assert read(buffer) == PATTERN
    buffer.write_from(PATTERN[::-1]).get()
    assert read(buffer, consistent=True) == PATTERN[::-1]


def test_a_dropped_buffer_is_an_error_that_names_it(world: World) -> None:
    buffer, other = world.make(), world.make(PATTERN[::-1], "other")
    world.owner.drop.call_one("one").get(timeout=SECONDS)
    for use in uses_of(buffer):
        with pytest.raises(RemoteMemoryError, match="was dropped") as caught:
            use().get()
        assert f"{buffer.part.region.key:016x}" in str(caught.value)
        assert caught.value.owner == buffer.owner
    assert world.content() == PATTERN
    assert read(other) == PATTERN[::-1]


def test_anybody_may_drop(world: World) -> None:
    buffer = world.make()
    dropper = world.spawn_readers()
    dropper.drop.call_one(buffer).get(timeout=SECONDS)
    buffer.drop().get(timeout=SECONDS)
    with pytest.raises(RemoteMemoryError, match="was dropped"):
        read(buffer)


@pytest.mark.long_but(1)
def test_a_freed_tensor_is_an_error_and_never_other_bytes(world: World) -> None:
    pytest.importorskip("torch")
    first = world.make_tensor([1] * 1000)
    world.owner.free.call_one("t").get(SECONDS)
    # Most likely at the same address.
    second = world.make_tensor([2] * 1000)
    with pytest.raises(RemoteMemoryError, match="freed"):
        read(first)
    with pytest.raises(RemoteMemoryError, match="freed"):
        first.write_from(bytes(first.size())).get()
    assert read(second) == (2).to_bytes(8, "little") * 1000
    assert world.owner.values.call_one("t").get(SECONDS) == [2] * 1000


def test_memory_may_be_for_reading_only(world: World) -> None:
    buffer = world.owner.make_readonly.call_one(PATTERN).get(SECONDS)
    assert read(buffer) == PATTERN
    with pytest.raises(ValueError, match="read-only"):
        buffer.write_from(b"x")
    with pytest.raises(ValueError, match="read-only"):
        buffer.fetch_add(1)
    with pytest.raises(ValueError, match="read-only"):
        buffer.read_into(bytes(len(PATTERN)))


def test_a_dead_owner_is_an_error_that_names_it(world: World, faults: list[Any]) -> None:
    if world.is_here:
        pytest.skip("its death is ours")
    buffer = world.make()
    assert read(buffer) == PATTERN
    with pytest.raises(Exception, match="failed"):
        world.owner.die.call_one().get(timeout=SECONDS)
    for use in uses_of(buffer):
        with pytest.raises(RemoteMemoryError) as caught:
            use().get()
        assert caught.value.owner == buffer.owner
        assert "ended" in str(caught.value) or "gone" in str(caught.value)


def test_a_reader_elsewhere_gets_the_buffer_as_a_reference(world: World) -> None:
    buffer = world.make()
    reader = world.spawn_readers()
    assert reader.read.call_one(buffer).get(timeout=SECONDS) == PATTERN
    reader.write.call_one(buffer[4:8], b"1234").get(timeout=SECONDS)
    assert world.content()[:8] == PATTERN[:4] + b"1234"


def test_an_action_does_all_its_steps(world: World) -> None:
    one, two = world.make(), world.make(bytes(100), "two")
    into, old, swapped = bytearray(len(PATTERN)), bytearray(8), bytearray(8)
    action = RDMAAction().read_remote(dst=into, src=one).write_remote(dst=two[:5], src=b"hello")
    action.fetch_add(two, old, 1, offset=88).compare_and_swap(two[80:], swapped, 0, 7)
    action.fetch_add(two, None, 2, offset=64)
    action.submit(timeout=SECONDS).get()
    assert into == PATTERN
    assert world.content("two")[:5] == b"hello"
    assert (old, swapped) == (bytes(8), bytes(8))
    action.submit(timeout=SECONDS).get()
    assert old == (1).to_bytes(8, "little")
    assert swapped == (7).to_bytes(8, "little")
    assert world.content("two")[64] == 4
    with pytest.raises(ValueError, match="overlaps"):
        action.write_remote(two, memoryview(into)[10:20])
    with pytest.raises(ValueError, match="8 bytes"):
        action.fetch_add(two, bytearray(4), 1)
    with pytest.raises(ValueError, match="no 64-bit word"):
        action.fetch_add(two, None, 1, offset=99)


def test_a_step_that_fails_is_told_and_the_action_can_be_done_without_it(world: World) -> None:
    """None of the others is half done, and another action is not hindered."""
    kept = [world.make(bytes([number]) * 9000, f"b{number}") for number in range(6)]
    lost = world.make(b"lost", "lost")
    into = [bytearray(9000) for _ in kept]
    action, without = RDMAAction(), RDMAAction()
    for number, (buffer, here) in enumerate(zip(kept, into, strict=True)):
        if number == 3:
            action.read_remote(bytearray(4), lost)
        action.read_remote(here, buffer)
        without.read_remote(here, buffer)
    world.owner.drop.call_one("lost").get(timeout=SECONDS)
    with pytest.raises(RemoteMemoryError, match=f"{lost.part.region.key:016x}.*was dropped"):
        action.submit(timeout=SECONDS).get()
    for number, here in enumerate(into):
        assert here in (bytes(9000), bytes([number]) * 9000)
    without.submit(timeout=SECONDS).get()
    assert into == [bytes([number]) * 9000 for number in range(6)]


def test_nothing_may_be_written_and_memory_here_may_be_part_of_what_is_read(world: World) -> None:
    buffer = world.make()
    buffer.write_from(b"", timeout=SECONDS).get()
    assert read(buffer) == PATTERN
    own = bytearray(PATTERN)
    mine = RDMABuffer(own)
    mine[:100].read_into(memoryview(own)[50:150], timeout=SECONDS).get()
    assert own == PATTERN[:50] + PATTERN[:100] + PATTERN[150:]
