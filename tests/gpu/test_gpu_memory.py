"""Memory of real GPUs, between processes."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from monarch.actor import this_host
from monarch.rdma import RemoteMemoryError
from tests.gpu.memory_actors import Follower, Owner, Publisher, Reader
from tests.gpu_here import num_gpus, why_no_gpu
from tests.support import wait_for

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:memory of cuda"),
    pytest.mark.filterwarnings("ignore:no RDMA device leads"),
]
two_gpus = pytest.mark.skipif(not why_no_gpu() and num_gpus() < 2, reason="it takes two GPUs")
SECONDS = 120
COUNT = 3_000_000


def spawn(kind: Any, *arguments: Any, **env: str) -> Any:
    procs = this_host().spawn_procs({"gpus": 1}, env=env)
    return procs.spawn(kind.__name__.lower(), kind, *arguments)


def ask(future: Any) -> Any:
    return future.get(timeout=SECONDS)


def test_values_come_across_and_go_back() -> None:
    owner, reader = spawn(Owner), spawn(Reader)
    buffer = ask(owner.make.call_one("a", COUNT))
    for where in ("cuda", "cpu"):
        values, way = ask(reader.read.call_one(buffer, COUNT, where))
        assert (values[:3], values[-1], way) == ([0, 1, 2], COUNT - 1, "cuda_ipc")
    assert ask(reader.write.call_one(buffer, 1000, 7.0)) == "cuda_ipc"
    assert ask(owner.values.call_one("a"))[998:1002] == [7, 7, 1000, 1001]


@pytest.mark.parametrize("view", [".reshape(6, -1).t()", "[::3]", ".reshape(6, -1)[1:5, 7:11]"])
def test_strided_tensors_come_across(view: str) -> None:
    owner, reader = spawn(Owner), spawn(Reader)
    buffer = ask(owner.make.call_one("a", 6000, view))
    expected = eval(f"made{view}", {"made": torch.arange(6000.0)}).flatten()
    for where in ("cuda", "cpu"):
        values, _ = ask(reader.read.call_one(buffer, expected.numel(), where))
        assert values == expected.tolist()
    ask(reader.write.call_one(buffer, expected.numel(), 5.0))
    assert torch.tensor(ask(owner.values.call_one("a"))).unique().tolist() == [5.0]


def test_what_the_owners_gpu_still_computes_is_waited_for() -> None:
    owner, reader = spawn(Owner), spawn(Reader)
    buffer = ask(owner.make.call_one("a", COUNT))
    for number in range(1, 4):
        ask(owner.compute.call_one("a", float(number)))
        values, _ = ask(reader.read.call_one(buffer, COUNT, "cuda"))
        assert set(values) == {float(number)}


def test_freed_memory_is_an_error_and_comes_back_to_its_owner() -> None:
    owner, reader = spawn(Owner), spawn(Reader)
    buffer = ask(owner.make.call_one("a", 64 * 2**20))
    ask(reader.read.call_one(buffer[:4000], 1000, "cuda"))
    before = ask(owner.free_bytes.call_one())
    ask(owner.free.call_one("a"))
    with pytest.raises(Exception, match="freed") as caught:
        ask(reader.read.call_one(buffer[:4000], 1000, "cuda"))
    assert RemoteMemoryError.__name__ in str(caught.value)
    # The reader lets go of it by itself; what is freed next gives it back to the device.
    ask(owner.make.call_one("b", 10))

    def is_back() -> bool:
        ask(owner.make.call_one("c", 10))
        ask(owner.free.call_one("c"))
        return bool(ask(owner.free_bytes.call_one()) - before > 200 * 2**20)

    wait_for(is_back, 30.0)


def test_expandable_segments_are_shared_or_go_another_way() -> None:
    setting = {
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",
    }
    owner, reader = spawn(Owner, **setting), spawn(Reader, **setting)
    buffer = ask(owner.make.call_one("a", COUNT))
    for where in ("cuda", "cpu"):
        values, way = ask(reader.read.call_one(buffer, COUNT, where))
        assert (values[1], values[-1]) == (1, COUNT - 1)
        assert way in ("cuda_ipc", "tcp")


@two_gpus
def test_processes_that_number_devices_differently_read_the_right_one() -> None:
    owner = spawn(Owner, 0, CUDA_VISIBLE_DEVICES="1,0")
    seeing, blind = spawn(Reader, 0), spawn(Reader, 0, CUDA_VISIBLE_DEVICES="0")
    buffer = ask(owner.make.call_one("a", COUNT))
    for reader, expected in ((seeing, "cuda_ipc"), (blind, "tcp")):
        values, way = ask(reader.read.call_one(buffer, COUNT, "cuda"))
        assert (values[1], values[-1], way) == (1, COUNT - 1, expected)


@two_gpus
def test_another_gpu_of_the_same_process_is_read_and_written() -> None:
    owner, reader = spawn(Owner, 1), spawn(Reader, 0)
    buffer = ask(owner.make.call_one("a", COUNT))
    values, way = ask(reader.read.call_one(buffer, COUNT, "cuda"))
    assert (values[1], values[-1], way) == (1, COUNT - 1, "cuda_ipc")
    ask(reader.write.call_one(buffer, COUNT, 2.0))
    assert set(ask(owner.values.call_one("a"))) == {2.0}


def test_weights_are_whole_on_gpus_and_on_the_host() -> None:
    name = "gpu weights"
    publisher = spawn(Publisher, name)
    followers = [
        spawn(Follower, name, where, dtype)
        for where, dtype in (("cuda", "bfloat16"), ("cuda", "float32"), ("cpu", "bfloat16"))
    ]
    for version in (1, 2, 3):
        assert ask(publisher.publish.call_one(version)) == version
        for follower in followers:
            found = ask(follower.fetch.call_one(version))
            assert found == [(version + n / 4, version + n / 4) for n in range(3)]


def test_weights_are_never_torn() -> None:
    name = "gpu weights, torn"
    publisher, follower = spawn(Publisher, name), spawn(Follower, name, "cuda")
    ask(publisher.publish.call_one(1))
    seen = follower.fetch_many.call_one(100)
    for version in range(2, 30):
        ask(publisher.publish.call_one(version))
    versions = ask(seen)
    assert versions == sorted(versions)
