"""Memory of GPUs: on a fake whose addresses nobody can touch, and torch's part on a CPU."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import this_host
from monarch.config import configured
from monarch.rdma import (
    RDMAAction,
    RDMABuffer,
    RDMAReadTransferWarning,
    RDMAWriteTransferWarning,
    RemoteMemoryError,
)
from monarch.rdma.memory.device_memory import part_of
from monarch.rdma.memory.gpu import TorchGpu, copy_places, gpu, use_gpu
from monarch.rdma.memory.layout import paired
from monarch.rdma.memory.memory import memory_of
from monarch.testing.fake_gpu import FakeGpuArray, gpu_of_tests
from tests.rdma.owners import Owner, Reader
from tests.support import wait_for

SECONDS = 60.0
DATA = bytes(range(256)) * 40


@pytest.fixture
def fake() -> Iterator[None]:
    """This process has a fake GPU; nobody holds it afterwards."""
    before = gpu()
    gpu_of_tests()
    yield
    use_gpu(before)


@pytest.fixture
def owner() -> Any:
    return this_host().spawn_procs({"gpus": 1}).spawn("owner", Owner, True)


def read(buffer: RDMABuffer) -> bytes:
    into = bytearray(buffer.size())
    buffer.read_into(into, timeout=SECONDS).get()
    return bytes(into)


def test_every_second_byte_of_a_gpu_is_read_and_written_here_and_elsewhere(
    fake: None, owner: Any
) -> None:
    there = owner.make_strided.call_one("one", DATA, 2).get(timeout=SECONDS)
    array = FakeGpuArray(DATA)
    own = RDMABuffer(array.strided(2))
    for buffer in (own, there):
        assert read(buffer) == DATA[::2]
        assert read(buffer[5:9]) == DATA[10:18:2]
        buffer[1:3].write_from(b"xy").get()
    expected = bytearray(DATA)
    expected[2:6:2] = b"xy"
    assert bytes(array) == expected
    assert owner.content.call_one("one").get(timeout=SECONDS) == expected


def test_from_gpu_to_gpu_it_goes_by_the_mapping_alone(fake: None, owner: Any) -> None:
    buffer = owner.make.call_one("one", DATA).get(timeout=SECONDS)
    here, world = FakeGpuArray(bytes(len(DATA))), gpu_of_tests()
    for _ in range(3):
        buffer.read_into(here, timeout=SECONDS).get()
    assert bytes(here) == DATA
    here[:3] = b"new"
    buffer.write_from(here, timeout=SECONDS).get()
    assert owner.content.call_one("one").get(timeout=SECONDS) == b"new" + DATA[3:]
    assert (world.copies, world.num_opens) == ({"within": 4}, 1)
    buffer[10:20].read_into(here.strided(3), timeout=SECONDS).get()
    assert bytes(here)[:30:3] == DATA[10:20]


def test_strided_tensors_of_both_go_across(fake: None, owner: Any) -> None:
    buffer = owner.make_strided.call_one("one", DATA, 3).get(timeout=SECONDS)
    here = FakeGpuArray(bytes(2 * len(DATA)))
    buffer.read_into(here.strided(2), timeout=SECONDS).get()
    assert bytes(here)[: 2 * len(DATA[::3]) : 2] == DATA[::3]
    here[:] = bytes(2 * len(DATA))
    buffer.write_from(FakeGpuArray(b"abcdef").strided(2), timeout=SECONDS).get()
    written = owner.content.call_one("one").get(timeout=SECONDS)
    assert written == b"a" + DATA[1:3] + b"c" + DATA[4:6] + b"e" + DATA[7:]
    assert set(gpu_of_tests().copies) == {"within"}


def test_within_a_process_too(fake: None) -> None:
    source, target = FakeGpuArray(DATA), FakeGpuArray(bytes(len(DATA)))
    RDMABuffer(source).read_into(target).get()
    assert bytes(target) == DATA
    RDMABuffer(source)[:2].write_from(FakeGpuArray(b"xy")).get()
    assert bytes(source) == b"xy" + DATA[2:]
    assert gpu_of_tests().copies == {"within": 2}


def test_to_the_host_it_goes_in_chunks_beside_each_other(fake: None, owner: Any) -> None:
    data = bytes(range(256)) * 4096 * 24
    buffer = owner.make.call_one("one", data).get(timeout=SECONDS)
    assert read(buffer) == data
    assert gpu_of_tests().copies == {"to_host": 3}
    buffer.write_from(data[::-1], timeout=SECONDS).get()
    assert owner.content.call_one("one").get(timeout=SECONDS) == data[::-1]
    assert gpu_of_tests().copies == {"to_host": 3, "from_host": 3}


def test_memory_of_the_host_that_is_pinned_is_copied_to_at_once(fake: None, owner: Any) -> None:
    data = bytes(range(256)) * 4096 * 3
    buffer = owner.make.call_one("one", data).get(timeout=SECONDS)
    into = bytearray(len(data))
    address = memory_of(into).address
    gpu_of_tests().pin(address, len(data))
    buffer.read_into(into, timeout=SECONDS).get()
    gpu_of_tests().unpin(address)
    assert into == data
    assert gpu_of_tests().copies == {"to_host": 1}


def test_memory_of_the_host_comes_to_a_gpu_in_chunks_and_that_is_said(fake: None) -> None:
    data = bytes(range(256)) * 4096 * 24
    host = this_host().spawn_procs({"gpus": 1}).spawn("owner", Owner)
    buffer = host.make.call_one("one", data).get(timeout=SECONDS)
    here = FakeGpuArray(bytes(len(data)))
    with pytest.warns(RDMAReadTransferWarning, match="pinned memory"):
        buffer.read_into(here, timeout=SECONDS).get()
    assert bytes(here) == data
    assert gpu_of_tests().copies == {"from_host": 3}
    with pytest.warns(RDMAWriteTransferWarning, match="pinned memory"):
        buffer.write_from(FakeGpuArray(data[::-1]), timeout=SECONDS).get()
    assert host.content.call_one("one").get(timeout=SECONDS) == data[::-1]


def test_what_the_owners_gpu_still_writes_is_waited_for(
    fake: None, owner: Any, tmp_path: Path
) -> None:
    """Also when it began after the mapping was made: the owner is not asked again."""
    buffer = owner.make.call_one("one", DATA).get(timeout=SECONDS)

    def read_behind(number: int) -> None:
        flag, new = tmp_path / str(number), bytes([number]) * len(DATA)
        owner.begin.call_one("one", new, str(flag)).get(timeout=SECONDS)
        found: list[bytes] = []
        reader = threading.Thread(target=lambda: found.append(read(buffer)))
        before = gpu_of_tests().num_followed
        reader.start()
        if number:  # At first the owner itself waits, before it gives the mapping.
            wait_for(lambda: gpu_of_tests().num_followed > before or found)
        flag.touch()
        reader.join()
        assert found == [new]

    for number in range(3):
        read_behind(number)
    assert gpu_of_tests().num_opens == 1


def test_what_the_readers_gpu_still_does_with_the_memory_is_waited_for(
    fake: None, owner: Any
) -> None:
    buffer = owner.make.call_one("one", DATA).get(timeout=SECONDS)
    here, world = FakeGpuArray(bytes(len(DATA))), gpu_of_tests()
    world.stop_kernels()
    here.fill_later(b"old" * 100)
    reading = threading.Thread(target=lambda: buffer.read_into(here, timeout=SECONDS).get())
    reading.start()
    wait_for(lambda: world.num_followed)
    world.go_on()
    reading.join()
    assert bytes(here) == DATA


def test_devices_are_known_by_name_as_each_process_numbers_its_own() -> None:
    procs = this_host().spawn_procs({"gpus": 3})
    owner = procs.slice(gpus=0).spawn("owner", Owner, True, ("GPU-a", "GPU-b"))
    same, blind = (
        procs.slice(gpus=rank).spawn(f"reader{rank}", Reader, True, devices)
        for rank, devices in ((1, ("GPU-c", "GPU-b")), (2, ("GPU-c",)))
    )
    buffer = owner.make_on.call_one("one", DATA, 1).get(timeout=SECONDS)
    # Its own array lies on its first device.
    got = same.read_to_gpu.call_one(buffer).get(timeout=SECONDS)
    assert got == (DATA, {"across": 1}, 1, "cuda_ipc")
    data, copies, num_opens, way = blind.read_to_gpu.call_one(buffer).get(timeout=SECONDS)
    assert (data, num_opens, way) == (DATA, 0, "tcp")
    assert set(copies) == {"from_host"}


@pytest.mark.parametrize("what", ["is_expandable", "has_no_fences"])
@pytest.mark.filterwarnings("ignore:no RDMA device leads")
def test_what_cuda_cannot_share_goes_another_way_and_says_why(
    fake: None, owner: Any, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    owner.set_up.call_one(**{what: True}).get(timeout=SECONDS)
    buffer = owner.make.call_one("one", DATA).get(timeout=SECONDS)
    assert read(buffer) == DATA
    here = FakeGpuArray(bytes(len(DATA)))
    with pytest.warns(RDMAReadTransferWarning, match="pinned memory"):
        buffer.read_into(here, timeout=SECONDS).get()
    assert bytes(here) == DATA
    assert buffer.backend == "tcp"
    with configured(rdma_allow_tcp_fallback=False), pytest.raises(RemoteMemoryError, match="CUDA"):
        read(buffer)


def test_threads_that_want_a_mapping_at_once_open_it_once(fake: None, owner: Any) -> None:
    buffer = owner.make.call_one("one", DATA).get(timeout=SECONDS)
    action, into = RDMAAction(), [FakeGpuArray(bytes(len(DATA))) for _ in range(8)]
    for array in into:
        action.read_remote(array, buffer)
    action.submit(timeout=SECONDS).get()
    assert [bytes(array) for array in into] == [DATA] * 8
    assert gpu_of_tests().num_opens == 1
    again = owner.register_again.call_one("one").get(timeout=SECONDS)
    assert read(again) == DATA
    assert gpu_of_tests().num_opens == 2


def test_what_was_opened_of_another_process_is_let_go_of_when_it_ends(
    fake: None, owner: Any, faults: list[Any]
) -> None:
    for number in range(5):
        buffer = owner.make.call_one("one", DATA).get(timeout=SECONDS)
        assert read(buffer) == DATA
        if number % 2:
            owner.drop.call_one("one").get(timeout=SECONDS)
        else:
            owner.free.call_one("one").get(timeout=SECONDS)
        with pytest.raises(RemoteMemoryError, match=r"dropped|freed"):
            read(buffer)
    wait_for(lambda: gc.collect() >= 0 and gpu_of_tests().num_opened <= 1)
    wait_for(lambda: owner.num_in_limbo.call_one().get(timeout=SECONDS) == 0)
    last = owner.make.call_one("one", DATA).get(timeout=SECONDS)
    assert read(last) == DATA
    with pytest.raises(Exception, match="failed"):
        owner.die.call_one().get(timeout=SECONDS)
    # What an error was raised from holds the mapping, until the error is collected.
    wait_for(lambda: gc.collect() >= 0 and gpu_of_tests().num_opened == 0)


def test_freed_memory_of_a_gpu_that_is_given_out_again_is_never_read(
    fake: None, owner: Any
) -> None:
    first = owner.make.call_one("one", DATA).get(timeout=SECONDS)
    assert read(first) == DATA
    owner.free.call_one("one").get(timeout=SECONDS)
    # While it is mapped here, it is not given out.
    wait_for(lambda: gc.collect() >= 0 and gpu_of_tests().num_opened == 0)
    second = owner.make.call_one("one", DATA[::-1]).get(timeout=SECONDS)
    assert second.part.region.address == first.part.region.address
    with pytest.raises(RemoteMemoryError, match="freed"):
        read(first)
    with pytest.raises(RemoteMemoryError, match="freed"):
        first.write_from(b"never").get()
    assert read(second) == DATA[::-1]


@pytest.mark.filterwarnings("ignore:no RDMA device leads")
def test_a_process_without_a_gpu_reads_one_over_tcp(owner: Any) -> None:
    buffer = owner.make.call_one("one", DATA).get(timeout=SECONDS)
    assert buffer.backend == "cuda_ipc"
    assert read(buffer) == DATA
    assert buffer.backend == "tcp"
    with (
        configured(rdma_allow_tcp_fallback=False),
        pytest.raises(RemoteMemoryError, match="this process has no GPU"),
    ):
        read(buffer)


def test_arrays_of_a_gpu_that_are_no_tensors_are_asked_for_as_tensors() -> None:
    class Array:
        __cuda_array_interface__ = {"version": 3}  # noqa: RUF012  # as CuPy's arrays have it

    with pytest.raises(TypeError, match=r"torch\.as_tensor"):
        RDMABuffer(Array())


def test_torch_copies_what_is_strided_as_one_copy() -> None:
    """What TorchGpu does with storages of a GPU, with those of this host."""
    torch = pytest.importorskip("torch")
    assert isinstance(gpu(), TorchGpu)
    for kind in (torch.uint8, torch.bfloat16, torch.float64):
        source = torch.arange(96).reshape(8, 12).to(kind)
        for given in (source, source.t(), source[::2, 3:], source.t()[1:5, ::3], source[3:4, 5]):
            target = torch.zeros(400, dtype=kind)
            for wanted in (target[7:], target[1::3]):
                target.zero_()
                wanted = wanted[: given.numel()]
                places = (part_of(memory_of(one)).places for one in (given, wanted))
                for one, other in paired(*places):
                    copy_places(one, other)
                assert torch.equal(wanted, given.flatten())
                assert target.count_nonzero() == given.count_nonzero()
