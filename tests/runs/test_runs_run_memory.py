"""Copies outlive the processes that made them: the host agent holds their memory."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
import torch

from monarch.actor import Actor, HostMesh, ProcMesh, context, endpoint, this_host
from monarch.errors import MonarchError
from monarch.runs import Deaths
from monarch.runs.hold.copy_beside import begin_copy
from monarch.runs.hold.run_memory import HostCopies, RunMemory
from monarch.runs.hold.state_memory import StateMemory
from monarch.runtime import process
from monarch.runtime.hosts.held_memory import have_held
from tests.support import wait_for


class Rank(Actor):
    """Copies a state of its own."""

    def __init__(self, owner: str) -> None:
        self.rank = context().actor_instance.rank.rank
        self.memory = StateMemory(owner, str(self.rank))

    @endpoint
    def copy(self, step: int, size: int) -> int:
        state = {"step": step, "values": torch.full((size,), float(step + self.rank))}
        begin_copy(self.memory, state, [], 1, keeps_older=True).wait()
        return os.getpid()

    @endpoint
    def read(self, copies: HostCopies) -> list[float]:
        state: dict[str, Any] = copies.whole[self.rank].read()
        return [float(state["step"]), *state["values"][-1:].tolist()]


@pytest.fixture
def host() -> HostMesh:
    return this_host()


@pytest.fixture
def memory(host: HostMesh) -> Iterator[RunMemory]:
    made = RunMemory(RunMemory.new_owner(), host, 2)
    yield made
    made.forget()
    wait_for(lambda: not num_held(), 60.0, "it is let go")


def num_held() -> int:
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            found += "monarch-state" in os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
    return found


def end_by_kill(procs: ProcMesh, pids: list[int]) -> None:
    with Deaths():
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not any(map(psutil.pid_exists, pids)), 60.0, "they are dead")
        try:
            procs.stop().get()
        except MonarchError:
            pass


@pytest.mark.long
def test_new_processes_read_what_killed_ones_have_copied(host: HostMesh, memory: RunMemory) -> None:
    assert memory.newest() is None
    procs = host.spawn_procs({"procs": 2})
    ranks = procs.spawn("rank", Rank, memory.owner)
    ranks.copy.call(7, 10).get()
    ranks.copy.call(8, 10).get()
    pids = list(ranks.copy.call(9, 1_000_000).get().values())  # which takes another memory
    end_by_kill(procs, pids)
    copies = memory.newest()
    assert copies is not None
    assert (copies.step, sorted(copies.whole)) == (9, [0, 1])
    assert num_held() == 2  # The smaller ones were let go.
    again = host.spawn_procs({"procs": 2})
    ranks = again.spawn("rank", Rank, memory.owner)
    assert list(ranks.read.call(copies).get().values()) == [[9.0, 9.0], [9.0, 10.0]]
    # The memory of the process before is used again.
    ranks.copy.call(10, 1_000_000).get()
    assert num_held() == 2
    newer = memory.newest()
    assert newer is not None
    assert newer.step == 10
    again.stop().get()


@pytest.mark.long
def test_a_run_has_copies_of_its_own(host: HostMesh, memory: RunMemory) -> None:
    procs = host.spawn_procs({"procs": 2})
    procs.spawn("rank", Rank, memory.owner).copy.call(7, 10).get()
    other = RunMemory(RunMemory.new_owner(), host, 2)
    assert other.newest() is None
    assert RunMemory(memory.owner, host, 2, saved_step=lambda: 8).newest() is None
    memory.forget()
    wait_for(lambda: memory.newest() is None, 60.0, "it is forgotten")
    procs.stop().get()


def test_only_a_proc_of_the_host_has_memory_held() -> None:
    node = process.current().node
    fd = os.memfd_create("monarch-state")
    try:
        error = have_held(node, node.address, "someone", "0", fd)
        assert "no memory of a proc of this host" in error
    finally:
        os.close(fd)
