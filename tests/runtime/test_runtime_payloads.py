"""Large arguments and answers between processes, and what becomes of them when one is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from monarch.actor import ProcMesh, SupervisionError, this_host
from monarch.runtime import process
from tests.actors import Keeper
from tests.support import Program, wait_for

LARGE = 3 * 2**20


def pool() -> Any:
    return process.current().node.bulk_sender.pool


@pytest.fixture
def procs() -> ProcMesh:
    return this_host().spawn_procs({"gpus": 2}, preload=["torch"])


VALUES = {
    "bytes": b"x" * LARGE,
    "bytearray": bytearray(b"x" * LARGE),
    "array": np.arange(LARGE),
    "tensor": torch.arange(LARGE),
    "many": {f"layer{i}": np.full((50, 50), i) for i in range(200)},
    "text": "x" * LARGE,
}


@pytest.mark.long_but(1)
@pytest.mark.parametrize("name", VALUES)
def test_large_values_there_and_back(procs: ProcMesh, name: str) -> None:
    keeper = procs.spawn("keeper", Keeper)
    value = VALUES[name]
    back = [
        keeper.slice(gpus=0).echo.call_one(value).get(timeout=60),
        *keeper.echo.call(value).get(timeout=60).values(),
    ]
    for one in back:
        assert type(one) is type(value)
        if isinstance(value, torch.Tensor):
            assert torch.equal(one, value)
        else:
            np.testing.assert_equal(one, value)


def test_a_large_argument_of_a_constructor(procs: ProcMesh) -> None:
    """It is sent before the process is up, and may be changed as soon as it is."""
    value = np.ones(LARGE)
    keeper = procs.spawn("keeper", Keeper, value)
    value[:] = 0
    for back in keeper.get.call(0).get(timeout=60).values():
        assert (back == 1).all()


def test_what_actors_keep_is_theirs_and_stays(procs: ProcMesh) -> None:
    keeper = procs.spawn("keeper", Keeper)
    for number in range(12):
        value = np.full(LARGE // 8, number, np.float64)
        keeper.keep.broadcast(value)
        value[:] = -1
    keeper.slice(gpus=0).add.call_one(1).get(timeout=60)
    sums = list(keeper.sums.call().get(timeout=60).values())
    size = LARGE // 8
    assert sums[0] == [(number + 1) * size for number in range(12)]
    assert sums[1] == [number * size for number in range(12)]


def test_a_copy_of_a_process_gives_nothing_back(procs: ProcMesh) -> None:
    one = procs.spawn("keeper", Keeper).slice(gpus=0)
    one.keep.call_one(np.ones(LARGE)).get(timeout=60)
    one.fork_and_drop.call_one().get(timeout=60)
    for _ in range(3):
        one.echo.call_one(np.zeros(LARGE)).get(timeout=60)
    assert one.sums.call_one().get(timeout=60) == [LARGE]


def test_a_killed_receiver_gives_back_what_it_held(procs: ProcMesh, faults: list[Any]) -> None:
    keeper = procs.spawn("keeper", Keeper)
    before = pool().num_in_use
    keeper.keep.call(np.ones(LARGE)).get(timeout=60)
    assert pool().num_in_use == before + 1
    for pid in list(keeper.pid.call().get(timeout=60).values()):
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: pool().num_in_use == before)


def test_a_receiver_killed_before_it_takes_a_message(procs: ProcMesh, faults: list[Any]) -> None:
    keeper = procs.spawn("keeper", Keeper)
    one = keeper.slice(gpus=0)
    pid = one.pid.call_one().get(timeout=60)
    os.kill(pid, signal.SIGSTOP)
    calls = [one.echo.call_one(np.ones(LARGE)) for _ in range(3)]
    os.kill(pid, signal.SIGKILL)
    for call in calls:
        with pytest.raises(SupervisionError):
            call.get(timeout=60)
    wait_for(lambda: pool().num_in_use == 0)
    other = keeper.slice(gpus=1)
    assert other.echo.call_one(np.ones(LARGE)).get(timeout=60).all()


def test_what_came_from_a_killed_sender_stays(procs: ProcMesh, faults: list[Any]) -> None:
    one = procs.spawn("keeper", Keeper).slice(gpus=0)
    back = one.echo.call_one(np.ones(LARGE)).get(timeout=60)
    os.kill(one.pid.call_one().get(timeout=60), signal.SIGKILL)
    wait_for(lambda: faults)
    assert back.all()
    back += 1
    assert (back == 2).all()


SCRIPT = """
    import os
    import numpy as np
    import monarch.actor
    from monarch.actor import this_host
    from tests.actors import Keeper

    if __name__ == "__main__":
        keeper = this_host().spawn_procs({"gpus": 2}).spawn("keeper", Keeper)
        monarch.actor.unhandled_fault_hook = lambda failure: None
        value = np.arange(20_000_000, dtype=np.uint8)
        for _ in range(3):
            for back in keeper.echo.call(value).get(timeout=60).values():
                assert (back == value).all()
        pid = list(keeper.pid.call().get(timeout=60).values())[0]
        print("pid", pid, flush=True)
        try:
            keeper.slice(gpus=0).choke.call_one(value).get(timeout=60)
        except Exception as error:
            print("raised", type(error).__name__, flush=True)
        back = keeper.slice(gpus=1).echo.call_one(value).get(timeout=60)
        print("then", (back == value).all(), flush=True)
        os._exit(0)
"""


@pytest.mark.long
@pytest.mark.parametrize("size", ["0", "4294967296"])
def test_with_and_without_shared_memory(program: Callable[..., Program], size: str) -> None:
    one = program(SCRIPT, MONARCH_SHARED_MEMORY_BYTES=size, PYTHONPATH=os.getcwd())
    pid = int(one.line("pid", 60))
    wait_for(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    os.kill(pid, signal.SIGKILL)
    assert one.line("raised", 60) == "SupervisionError"
    assert one.line("then", 60) == "True"
