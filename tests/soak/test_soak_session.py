"""A day of work in minutes: hundreds of pushes, meshes and actors leave nothing behind."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import Actor, Channel, HostMesh, Port, endpoint, this_host
from monarch.job import ProcessJob
from monarch.runtime import process
from monarch.runtime.workspace.session import session_of
from monarch_sync import Workspace
from tests.support import wait_for

SECONDS = 60
ROUNDS = 300
WARM_UP = 50
TOLERATED_MB = 40.0
"""Garbage that waits for a collection, and what allocators keep of it."""
TOLERATED_BLOCKS = 200
"""Of memory, a round, after a collection: the last 10,000 dead, and lanes up to their limit."""


def kept() -> dict[str, int]:
    """What a process has open or keeps books of, but for what is bounded by a number."""
    gc.collect()
    agent = process.current()
    node, reload = agent.node, session_of(agent).reload.local_reload
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "tasks": sum(isinstance(one, asyncio.Task) and not one.done() for one in gc.get_objects()),
        "ports": len(node.calls),
        "receivers of lanes": len(node.outboxes._boxes),
        "handlers of deaths": len(node.peer_down.on_down),
        "watched peers": len(node.address_book._watched),
        "owned meshes": len(agent.supervisor._machine._meshes),
        "ways to stop meshes": len(agent.supervisor._stops),
        "orders of actors": len(agent.kept_spawns._spawns),
        "origins of meshes": len(agent.spawned_on),
        "owned procs": len(agent.owned_procs()),
        "actors": len(agent.cells),
        "fences": len(agent.fences._open),
        "roots of code": len(reload._preparing._reloader._roots),
        "changes of code": len(reload._prepared) + len(reload._committed),
    }


def num_blocks() -> int:
    """How many pieces of memory Python has given out. To be called after a collection."""
    return sys.getallocatedblocks()


def megabytes(pid: int | str) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 1e6


class Member(Actor):
    @endpoint
    def value(self) -> int:
        import soaked_code  # type: ignore[import-not-found]

        number: int = soaked_code.value()
        return number

    @endpoint
    def count_into(self, port: Port[Any], num: int) -> None:
        for number in range(num):
            port.send(number)

    @endpoint
    def kept(self) -> tuple[dict[str, int], int, float]:
        return kept(), num_blocks(), megabytes("self")


class AsyncMember(Actor):
    @endpoint
    async def echo(self, value: int) -> int:
        return value


class Session:
    """A program with two hosts, procs that stay, and a file that it edits."""

    def __init__(self, hosts: HostMesh, folder: Path) -> None:
        self.hosts = hosts
        self.file = folder / "soaked_code.py"
        self.workspace = Workspace(dirs=[folder])
        self.save(0)
        self.push()
        self.procs = hosts.spawn_procs({"gpus": 1})
        self.members = self.procs.spawn("members", Member)

    def save(self, number: int) -> None:
        self.file.write_text(f"NUMBER = {number}\n\n\ndef value():\n    return NUMBER\n")

    def push(self) -> None:
        report = self.hosts.sync_workspace(self.workspace).get(timeout=SECONDS)
        assert report.ok, report

    def play(self, number: int) -> None:
        """One round: a save, actors that come and go, procs that come and go, a channel."""
        self.save(number)
        self.push()
        assert set(self.members.value.call().get(timeout=SECONDS).values()) == {number}
        passing = self.procs.spawn("passing", AsyncMember)
        assert set(passing.echo.call(number).get(timeout=SECONDS).values()) == {number}
        passing.stop().get(timeout=SECONDS)
        port, receiver = Channel[int].open()
        self.members.slice(hosts=number % 2).count_into.call_one(port, 3).get(timeout=SECONDS)
        assert [receiver.recv().get(timeout=SECONDS) for _ in range(3)] == [0, 1, 2]
        for place in (self.hosts, this_host()):
            procs = place.spawn_procs({"gpus": 1})
            short = procs.spawn("short", AsyncMember)
            assert set(short.echo.call(number).get(timeout=SECONDS).values()) == {number}
            procs.stop().get(timeout=SECONDS)

    def measure(self) -> dict[str, tuple[dict[str, int], int, float]]:
        """Books, blocks and megabytes of the client and of the procs that stay."""
        found = {"client": (kept(), num_blocks(), megabytes("self"))}
        for point, measured in self.members.kept.call().get(timeout=SECONDS).items():
            found[f"proc {point.rank}"] = measured
        return found

    def books(self) -> dict[str, dict[str, int]]:
        return {who: books for who, (books, _, _) in self.measure().items()}


@pytest.fixture
def job() -> Iterator[ProcessJob]:
    made = ProcessJob({"hosts": 2})
    yield made
    made.kill()


def of_hosts(job: ProcessJob) -> tuple[list[dict[str, int]], list[float]]:
    """The same of the agents, as seen from outside."""
    found = [
        {kind: len(os.listdir(f"/proc/{host.pid}/{kind}")) for kind in ("fd", "task")}
        for host in job.hosts
    ]
    return found, [megabytes(host.pid) for host in job.hosts]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_hundreds_of_pushes_meshes_and_actors_leave_nothing(
    job: ProcessJob, tmp_path: Path
) -> None:
    session = Session(job.state(cached_path=None).hosts, tmp_path)
    for number in range(WARM_UP):
        session.play(number)
    before, books_before = session.measure(), session.books()
    hosts_before, host_memory_before = of_hosts(job)
    for number in range(WARM_UP, WARM_UP + ROUNDS):
        session.play(number)
    wait_for(lambda: session.books() == books_before, what=f"{books_before}")
    wait_for(lambda: of_hosts(job)[0] == hosts_before, what=f"{hosts_before}, not {of_hosts(job)}")
    after = session.measure()
    blocks = {who: after[who][1] - before[who][1] for who in after}
    memory = {who: after[who][2] - before[who][2] for who in after}
    memory |= {
        host.url: now - then
        for host, now, then in zip(job.hosts, of_hosts(job)[1], host_memory_before, strict=True)
    }
    print(f"grown by, in blocks: {blocks}; in MB: {memory}")
    assert max(blocks.values()) < ROUNDS * TOLERATED_BLOCKS, blocks
    assert max(memory.values()) < TOLERATED_MB, memory
