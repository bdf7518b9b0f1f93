"""Published state dicts: whole versions, any layout, and deaths that harm nobody."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from monarch.actor import ActorError, SupervisionError, this_host
from monarch.rdma import RDMABuffer, SharedStateDict
from monarch.spmd import setup_torch_elastic_env
from tests.rdma.weights import SHAPES, Reader, Trainer, numbered
from tests.support import wait_for

torch = pytest.importorskip("torch")

SECONDS = 90
KEYS = tuple(SHAPES)

pytestmark = pytest.mark.filterwarnings("ignore:no RDMA device leads")


def values(version: int, keys: tuple[str, ...] = KEYS) -> dict[str, Any]:
    return {key: numbered(SHAPES[key], version).tolist() for key in keys}


@pytest.fixture
def procs() -> Any:
    host = this_host()
    host.preload(["torch"]).get(timeout=SECONDS)
    return host.spawn_procs({"gpus": 3}, preload=["torch"])


def spawn_trainers(procs: Any, name: str, num: int, far: str = "") -> list[Any]:
    return [
        procs.slice(gpus=rank).spawn(f"trainer{rank}", Trainer, name, rank, num, far)
        for rank in range(num)
    ]


@pytest.mark.long
def test_a_version_is_there_when_all_ranks_have_published_it(procs: Any) -> None:
    shared = SharedStateDict("whole versions")
    first, second = spawn_trainers(procs, "whole versions", 2)
    assert first.publish.call_one(1).get(timeout=SECONDS) == 1
    with pytest.raises(TimeoutError, match="no version 1 was published"):
        shared.wait_for(1, timeout=0.1).get()
    assert second.publish.call_one(1).get(timeout=SECONDS) == 1
    assert shared.wait_for(1, timeout=SECONDS).get() == 1
    into = {key: torch.zeros(shape) for key, shape in SHAPES.items()}
    assert shared.fetch(into).get(timeout=SECONDS) == 1
    assert {key: value.tolist() for key, value in into.items()} == values(1)
    first.publish.call_one(2).get(timeout=SECONDS)
    assert shared.fetch(into).get(timeout=SECONDS) == 1, "the other half is still there"


@pytest.mark.parametrize("far", ["", "elsewhere"])
def test_a_reader_takes_the_keys_and_the_dtype_that_it_has(procs: Any, far: str) -> None:
    name = f"keys {far}"
    (trainer,) = spawn_trainers(procs, name, 1)
    reader = procs.slice(gpus=2).spawn("reader", Reader, name, far)
    fetched = reader.fetch.call_one(("layer.bias", "scale"), "float64", 2)
    for version in (1, 2):
        trainer.publish.call_one(version).get(timeout=SECONDS)
    assert fetched.get(timeout=SECONDS) == (2, values(2, ("layer.bias", "scale")))
    assert reader.fetch.call_one(KEYS).get(timeout=SECONDS) == (2, values(2))


def test_hosts_share_a_copy_and_pass_it_on(procs: Any) -> None:
    name = "spread"
    (trainer,) = spawn_trainers(procs, name, 1)
    many = this_host().spawn_procs({"gpus": 6}, preload=["torch"])
    readers = [
        many.slice(gpus=rank).spawn(f"reader{rank}", Reader, name, f"host{rank // 2}")
        for rank in range(6)
    ]
    for version in (1, 2, 3):
        trainer.publish.call_one(version).get(timeout=SECONDS)
        fetched = [reader.fetch.call_one(KEYS, "float32", version) for reader in readers]
        for one in fetched:
            assert one.get(timeout=SECONDS) == (version, values(version))


@pytest.mark.long
def test_other_meshes_and_placements_get_what_a_full_gather_gives() -> None:
    """FSDP on two ranks to tensor parallelism of two by two."""
    name = "reshard"
    host = this_host()
    trainers = host.spawn_procs({"gpus": 2}, preload=["torch", "torch.distributed"])
    setup_torch_elastic_env(trainers)
    readers = host.spawn_procs({"gpus": 4}, preload=["torch", "torch.distributed"])
    setup_torch_elastic_env(readers)
    published = [
        trainers.slice(gpus=rank).spawn(f"trainer{rank}", Trainer, name, rank, 2)
        for rank in range(2)
    ]
    fetching = readers.spawn("readers", Reader, name)
    for version in (1, 2):
        done = [one.publish_sharded.call_one(version, (2,)) for one in published]
        for one in done:
            assert one.get(timeout=SECONDS) == version
        same = fetching.fetch_sharded.call(version, (2, 2), (1, 0)).get(timeout=SECONDS)
        assert list(same.values()) == [True] * 4


@pytest.mark.long_but(1)
@pytest.mark.parametrize("far", ["", "elsewhere"])
def test_a_reader_never_sees_half_of_a_version(procs: Any, far: str) -> None:
    name = f"whole {far}"
    (trainer,) = spawn_trainers(procs, name, 1)
    reader = procs.slice(gpus=2).spawn("reader", Reader, name, far)
    published = trainer.publish_filled.call_one(30, 200_000)
    seen = reader.fetch_filled.call_one(200_000, 30).get(timeout=SECONDS)
    published.get(timeout=SECONDS)
    assert seen == sorted(seen)
    assert reader.fetch_filled.call_one(200_000, 1).get(timeout=SECONDS) == [30]


def test_subscribers_hear_of_versions_in_order(procs: Any) -> None:
    (trainer,) = spawn_trainers(procs, "subscribed", 1)
    reader = procs.slice(gpus=2).spawn("reader", Reader, "subscribed")
    followed = reader.follow.call_one(4)
    for version in range(1, 5):
        trainer.publish.call_one(version).get(timeout=SECONDS)
    seen = followed.get(timeout=SECONDS)
    assert seen == sorted(set(seen))
    assert seen[-1] == 4


def test_who_waits_for_versions_keeps_nobody_from_moving_bytes() -> None:
    """There are more who wait in this process than there are threads that move bytes."""
    shared = SharedStateDict("many wait")
    waiting = [shared.wait_for(1, timeout=SECONDS) for _ in range(20)]
    data = RDMABuffer(bytearray(40 * 2**20))
    data.read_into(bytearray(data.size())).get(timeout=SECONDS)
    assert shared.publish({"w": torch.ones(3)}).get(timeout=SECONDS) == 1
    assert [one.get(timeout=SECONDS) for one in waiting] == [1] * 20

    async def newest() -> int:
        async for version in shared.subscribe():
            return version
        return 0

    assert asyncio.run(newest()) == 1


def test_a_trainer_that_dies_leaves_what_it_published_to_those_who_know_it(
    procs: Any, faults: list[Any]
) -> None:
    name = "trainer dies"
    (trainer,) = spawn_trainers(procs, name, 1)
    reader = procs.slice(gpus=2).spawn("reader", Reader, name)
    late = procs.slice(gpus=1).spawn("late", Reader, name)
    trainer.publish.call_one(1).get(timeout=SECONDS)
    assert reader.fetch.call_one(KEYS).get(timeout=SECONDS) == (1, values(1))
    with pytest.raises(SupervisionError):
        trainer.die.call_one().get(timeout=SECONDS)
    wait_for(lambda: faults)
    assert reader.fetch.call_one(KEYS).get(timeout=SECONDS) == (1, values(1))
    again = this_host().spawn_procs({"gpus": 1}, preload=["torch"])
    fresh = again.spawn("trainer", Trainer, name, 0, 1)
    assert fresh.publish.call_one(2).get(timeout=SECONDS) == 2
    for one in (reader, late):
        assert one.fetch.call_one(KEYS, "float32", 2).get(timeout=SECONDS) == (2, values(2))


def test_a_reader_that_dies_harms_nobody(procs: Any, faults: list[Any]) -> None:
    name = "reader dies"
    (trainer,) = spawn_trainers(procs, name, 1)
    first = procs.slice(gpus=1).spawn("first", Reader, name, "there")
    second = procs.slice(gpus=2).spawn("second", Reader, name, "there")
    trainer.publish.call_one(1).get(timeout=SECONDS)
    for one in (second, first):
        assert one.fetch.call_one(KEYS).get(timeout=SECONDS) == (1, values(1))
    with pytest.raises(SupervisionError):
        first.die.call_one().get(timeout=SECONDS)
    for version in (2, 3, 4):
        assert trainer.publish.call_one(version).get(timeout=SECONDS) == version
        fetched = second.fetch.call_one(KEYS, "float32", version).get(timeout=SECONDS)
        assert fetched == (version, values(version))


@pytest.mark.long
def test_a_host_that_passes_a_copy_on_and_dies_meanwhile_harms_nobody(
    procs: Any, faults: list[Any]
) -> None:
    name = "passing on"
    (trainer,) = spawn_trainers(procs, name, 1)
    many = this_host().spawn_procs({"gpus": 4}, preload=["torch"])
    passing, *others = (
        many.slice(gpus=rank).spawn(f"reader{rank}", Reader, name, f"host{rank}")
        for rank in range(4)
    )
    size = 2**20
    trainer.publish_filled.call_one(1, size).get(timeout=SECONDS)
    assert passing.fetch_filled.call_one(size, 1).get(timeout=SECONDS) == [1]
    fetched = [one.fetch_filled.call_one(size, 3) for one in others]
    passing.die.broadcast()
    for one in fetched:
        assert one.get(timeout=SECONDS) == [1, 1, 1]
    wait_for(lambda: faults)
    assert trainer.publish.call_one(2).get(timeout=SECONDS) == 2


@pytest.mark.long
def test_a_trainer_that_dies_while_it_publishes_leaves_the_version_before(
    procs: Any, faults: list[Any]
) -> None:
    name = "dies publishing"
    (trainer,) = spawn_trainers(procs, name, 1)
    near, far = (
        procs.slice(gpus=rank + 1).spawn(f"reader{rank}", Reader, name, where)
        for rank, where in enumerate(("", "elsewhere"))
    )
    for version in (1, 2):
        trainer.publish.call_one(version).get(timeout=SECONDS)
    for one in (near, far):
        assert one.fetch.call_one(KEYS).get(timeout=SECONDS) == (2, values(2))
    with pytest.raises(SupervisionError):
        trainer.publish_and_die.call_one(3).get(timeout=SECONDS)
    wait_for(lambda: faults)
    # It was about to fill the half of version 1: the other is as it was, for who has it mapped.
    assert near.fetch.call_one(KEYS).get(timeout=SECONDS) == (2, values(2))
    with pytest.raises(ActorError, match="RemoteMemoryError"):
        far.fetch.call_one(KEYS).get(timeout=SECONDS)
    again = this_host().spawn_procs({"gpus": 1}, preload=["torch"])
    fresh = again.spawn("trainer", Trainer, name, 0, 1)
    assert fresh.publish.call_one(3).get(timeout=SECONDS) == 3
    for one in (near, far):
        assert one.fetch.call_one(KEYS, "float32", 3).get(timeout=SECONDS) == (3, values(3))


@pytest.mark.parametrize("far", ["", "elsewhere"])
def test_a_reader_that_dies_while_it_fetches_harms_nobody(
    procs: Any, faults: list[Any], far: str
) -> None:
    name = f"dies fetching {far}"
    (trainer,) = spawn_trainers(procs, name, 1)
    doomed, other = (
        procs.slice(gpus=rank).spawn(f"reader{rank}", Reader, name, far) for rank in (1, 2)
    )
    trainer.publish.call_one(1).get(timeout=SECONDS)
    assert other.fetch.call_one(KEYS).get(timeout=SECONDS) == (1, values(1))
    with pytest.raises(SupervisionError):
        doomed.fetch_and_die.call_one(KEYS).get(timeout=SECONDS)
    wait_for(lambda: faults)
    for version in (2, 3, 4):
        assert trainer.publish.call_one(version).get(timeout=SECONDS) == version
        fetched = other.fetch.call_one(KEYS, "float32", version).get(timeout=SECONDS)
        assert fetched == (version, values(version))


def test_readers_on_the_trainers_gpu_copy_there_and_the_host_has_it_too(
    procs: Any, faults: list[Any]
) -> None:
    name = "on a gpu"
    (trainer,) = spawn_trainers(procs, name, 1)
    near, cpu = (procs.slice(gpus=rank).spawn("reader", Reader, name) for rank in (1, 2))
    num_bytes = sum(max(64, 4 * numbered(shape, 0).numel()) for shape in SHAPES.values())
    num_pinned, room = trainer.prepare_on_gpu.call_one().get(timeout=SECONDS)
    assert (num_pinned, room >= num_bytes) == (1, True)
    for version in (1, 2, 3):
        copies = trainer.publish_on_gpu.call_one(version).get(timeout=SECONDS)
        # To its place on the GPU, each; from there to the host, all at once.
        assert copies == {"within": len(SHAPES), "to_host": 1}
        number, found, copies = near.fetch_on_gpu.call_one(KEYS).get(timeout=SECONDS)
        assert (number, found) == (version, values(version))
        assert set(copies) == {"within"}
        assert cpu.fetch.call_one(KEYS).get(timeout=SECONDS) == (version, values(version))
    assert near.num_pinned.call_one().get(timeout=SECONDS) == 0
    number, found, copies = near.fetch_on_gpu.call_one(KEYS, "float64").get(timeout=SECONDS)
    assert (number, found, copies) == (3, values(3), {})
    with pytest.raises(SupervisionError):
        trainer.die.call_one().get(timeout=SECONDS)
    wait_for(lambda: faults)
    # What was on its GPU is gone with it; what was in the host's memory is not.
    number, found, copies = near.fetch_on_gpu.call_one(KEYS).get(timeout=SECONDS)
    assert (number, found, copies) == (3, values(3), {})


def test_where_a_gpu_has_no_room_for_a_copy_it_goes_by_the_hosts_memory(procs: Any) -> None:
    name = "no room"
    (trainer,) = spawn_trainers(procs, name, 1)
    reader = procs.slice(gpus=1).spawn("reader", Reader, name)
    for version in (1, 2):
        copies = trainer.publish_on_gpu.call_one(version, 1000).get(timeout=SECONDS)
        assert set(copies) == {"to_host"}
        number, found, copies = reader.fetch_on_gpu.call_one(KEYS).get(timeout=SECONDS)
        assert (number, found, copies) == (version, values(version), {})
    assert reader.num_pinned.call_one().get(timeout=SECONDS) == 1
    # The same rank goes on from the host: what is on no GPU any longer is not read there.
    assert trainer.publish.call_one(3).get(timeout=SECONDS) == 3
    assert reader.fetch_on_gpu.call_one(KEYS).get(timeout=SECONDS)[:2] == (3, values(3))


def test_a_rank_that_goes_on_from_the_host_leaves_nothing_old_on_its_gpu(procs: Any) -> None:
    name = "to the host"
    (trainer,) = spawn_trainers(procs, name, 1)
    reader = procs.slice(gpus=1).spawn("reader", Reader, name)
    trainer.publish_on_gpu.call_one(1).get(timeout=SECONDS)
    assert reader.fetch_on_gpu.call_one(KEYS).get(timeout=SECONDS)[:2] == (1, values(1))
    assert trainer.publish.call_one(2).get(timeout=SECONDS) == 2
    assert reader.fetch_on_gpu.call_one(KEYS).get(timeout=SECONDS)[:2] == (2, values(2))


@pytest.mark.long
def test_a_reader_on_a_gpu_never_sees_half_of_a_version(procs: Any) -> None:
    name = "whole on a gpu"
    (trainer,) = spawn_trainers(procs, name, 1)
    reader = procs.slice(gpus=2).spawn("reader", Reader, name)
    published = trainer.publish_filled_on_gpu.call_one(20, 200_000)
    seen = reader.fetch_filled_on_gpu.call_one(200_000, 20).get(timeout=SECONDS)
    published.get(timeout=SECONDS)
    assert seen == sorted(seen)
    assert reader.fetch_filled_on_gpu.call_one(200_000, 1).get(timeout=SECONDS) == [20]


def test_versions_grow_and_only_tensors_are_published() -> None:
    shared = SharedStateDict("rules")
    assert shared.publish({"w": torch.ones(3)}, version=7).get(timeout=SECONDS) == 7
    with pytest.raises(ValueError, match="not newer than 7"):
        shared.publish({"w": torch.ones(3)}, version=7).get(timeout=SECONDS)
    with pytest.raises(TypeError, match="no tensor but a float"):
        shared.publish({"w": 1.0})
    into = {"w": torch.zeros(3)}
    assert SharedStateDict("rules").fetch(into).get(timeout=SECONDS) == 7
    assert into["w"].tolist() == [1, 1, 1]
    # Another shape is another layout: all is told anew.
    assert shared.publish({"w": torch.ones(2, 2)}).get(timeout=SECONDS) == 8
    module = torch.nn.Linear(2, 2, bias=False)
    with pytest.raises(KeyError):
        shared.fetch(module).get(timeout=SECONDS)
    assert shared.publish({"weight": torch.ones(2, 2)}).get(timeout=SECONDS) == 9
    assert shared.fetch(module).get(timeout=SECONDS) == 9
    assert module.weight.tolist() == [[1, 1], [1, 1]]
