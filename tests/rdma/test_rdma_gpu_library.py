"""What a GPU's library does: one suite for the fake and, where there is a GPU, for torch's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from monarch.actor import this_host
from monarch.rdma.memory.gpu import TorchGpu, gpu, use_gpu
from monarch.rdma.memory.layout import Layout, StoragePlace
from monarch.rdma.memory.memory import memory_of
from tests.rdma.gpu_sharer import Sharer, get, place_of, put, use

SECONDS = 120
DATA = bytes(range(256)) * 16


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.gpu)])
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    before = gpu()
    use(request.param)
    assert isinstance(gpu(), TorchGpu) == (request.param == "real")
    yield request.param
    use_gpu(before)


def test_bytes_go_there_and_back_and_across(kind: str) -> None:
    first, second = (place_of(gpu().allocate(len(DATA), 0)) for _ in range(2))
    put(first, DATA)
    stream = gpu().stream(0)
    stream.copy(first, second)
    stream.mark().wait()
    assert get(second) == DATA
    # Every second byte to the beginning, and pieces of four to every eighth.
    halves = StoragePlace(first.storage, first.address, Layout(1, (1024,), (2,)))
    pieces = StoragePlace(second.storage, second.address, Layout(4, (256,), (8,)))
    stream.copy(halves, StoragePlace(second.storage, second.address, Layout(1024)))
    stream.copy(halves, pieces)
    stream.mark().wait()
    assert get(pieces) == DATA[:2048:2]


def test_only_pinned_memory_of_the_host_is_taken(kind: str) -> None:
    into = bytearray(8 * 4096)
    memory = memory_of(into)
    address = memory.address + -memory.address % 4096
    assert gpu().pinned_at(address, len(DATA)) is None
    assert gpu().pin(address, 4096)
    try:
        storage = gpu().pinned_at(address, len(DATA))
        place = place_of(gpu().allocate(len(DATA), 0))
        put(place, DATA)
        stream = gpu().stream(0)
        stream.copy(place, StoragePlace(storage, address, Layout(len(DATA))))
        stream.mark().wait()
        assert DATA in into
    finally:
        gpu().unpin(address)
    assert gpu().pinned_at(address, len(DATA)) is None


def test_devices_have_names_and_no_others_can_be_used(kind: str) -> None:
    names = list(gpu().devices())
    assert len(set(names)) == len(names) > 0
    assert gpu().free_bytes(0) > 0
    with pytest.raises(RuntimeError):
        gpu().allocate(10, len(names))


def test_another_process_maps_it_and_follows_its_fence(kind: str) -> None:
    sharer = this_host().spawn_procs({"gpus": 1}).spawn("sharer", Sharer, kind)
    handle, offset, name, fence = sharer.share.call_one(DATA).get(timeout=SECONDS)
    device = list(gpu().devices()).index(name)
    storage = gpu().open(handle, device)
    there = StoragePlace(storage, gpu().address_of(storage) + offset, Layout(len(DATA)))
    mark = gpu().open_fence(fence, device)
    for data in (DATA[::-1], DATA[1:] + DATA[:1]):
        sharer.write.call_one(data).get(timeout=SECONDS)
        gpu().stream(device).follow(mark)
        assert get(there) == data
    put(there, DATA)
    assert sharer.content.call_one().get(timeout=SECONDS) == DATA
