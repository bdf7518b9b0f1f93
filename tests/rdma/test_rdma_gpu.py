"""Memory of GPUs: on a fake whose addresses nobody can touch, and torch's part on a CPU."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from typing import Any

import pytest

from monarch.actor import this_host
from monarch.config import configured
from monarch.rdma import (
    RDMABuffer,
    RDMAReadTransferWarning,
    RDMAWriteTransferWarning,
    RemoteMemoryError,
)
from monarch.rdma.device_memory import staged
from monarch.rdma.gpu import TorchGpu, gpu, use_gpu
from monarch.rdma.own_process import copy_runs
from monarch.testing.fake_gpu import FakeGpuArray, gpu_of_tests
from tests.rdma.owners import Owner
from tests.support import wait_for

SECONDS = 30
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


def test_from_gpu_to_gpu_it_goes_by_pinned_memory_and_says_so(fake: None, owner: Any) -> None:
    buffer = owner.make.call_one("one", DATA).get(timeout=SECONDS)
    here = FakeGpuArray(bytes(len(DATA)))
    with pytest.warns(RDMAReadTransferWarning, match="pinned memory"):
        buffer.read_into(here).get()
    assert bytes(here) == DATA
    here[:3] = b"new"
    with pytest.warns(RDMAWriteTransferWarning, match="pinned memory"):
        buffer.write_from(here.strided(1)).get()
    assert owner.content.call_one("one").get(timeout=SECONDS) == b"new" + DATA[3:]


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
    wait_for(lambda: gc.collect() >= 0 and gpu_of_tests().num_opened == 1)
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


def test_torch_copies_runs_to_where_they_are_staged_and_back() -> None:
    """What TorchGpu does with a storage of a GPU, with one of this host."""
    torch = pytest.importorskip("torch")
    assert isinstance(gpu(), TorchGpu)
    tensor = torch.arange(64, dtype=torch.uint8)
    base = tensor.data_ptr()
    runs = [(base + 3, 4), (base + 40, 2)]
    into = bytearray(6)
    target = [(torch.frombuffer(into, dtype=torch.uint8).data_ptr(), 6)]
    with staged(tensor.untyped_storage(), runs, is_read=True, is_written=False) as here:
        copy_runs(here, target)
    assert into == bytes([3, 4, 5, 6, 40, 41])
    into[:] = bytes(range(200, 206))
    with staged(tensor.untyped_storage(), runs, is_read=False, is_written=True) as here:
        copy_runs(target, here)
    assert tensor.tolist()[3:7] == [200, 201, 202, 203]
    assert tensor.tolist()[40:43] == [204, 205, 42]
    assert gpu().address_of(tensor.untyped_storage()) == base
    assert gpu().is_there() == torch.cuda.is_available()
    assert os.path.exists("/dev/nvidia0") >= gpu().is_there()
