"""Testing your own actors without processes: `pytest examples/actors/test_recovery.py`."""

import pytest

from monarch.actor import Actor, MeshFailure, SupervisionError, endpoint, this_host
from monarch.testing import in_process


class Worker(Actor):
    @endpoint
    def work(self, value: int) -> int:
        return value * 2


class Pool(Actor):
    """Replaces its workers when one of them dies."""

    def __init__(self, size: int):
        self.size = size
        self.num_losses = 0
        self.hire()

    def hire(self) -> None:
        self.workers = this_host().spawn_procs({"gpus": self.size}).spawn("workers", Worker)

    def __supervise__(self, failure: MeshFailure) -> bool:
        self.num_losses += 1
        self.hire()
        return True

    @endpoint
    def work(self, value: int) -> list[int]:
        return self.workers.work.call(value).get().values()

    @endpoint
    def members(self):
        return self.workers

    @endpoint
    def losses(self) -> int:
        return self.num_losses


def test_a_pool_replaces_workers_that_die():
    with in_process() as world:
        pool = this_host().spawn_procs().spawn("pool", Pool, 3)
        assert pool.work.call_one(4).get() == [8, 8, 8]
        world.kill_proc(pool.members.call_one().get(), rank=1)
        while pool.losses.call_one().get() == 0:
            pass
        assert pool.work.call_one(5).get() == [10, 10, 10]


def test_the_work_under_way_is_lost():
    with in_process() as world:
        pool = this_host().spawn_procs().spawn("pool", Pool, 2)
        workers = pool.members.call_one().get()
        world.die(workers.slice(gpus=0).work)
        with pytest.raises(Exception, match="SIGKILL") as caught:
            pool.work.call_one(6).get()
        assert isinstance(caught.value.exception, SupervisionError)
        while pool.losses.call_one().get() == 0:
            pass
        assert pool.work.call_one(7).get() == [14, 14]
