"""Owners: told while they are busy, and what becomes of what they own in procs of others."""

from __future__ import annotations

import asyncio
import os
import signal
from types import SimpleNamespace
from typing import Any

import pytest

from monarch.actor import (
    Actor,
    MeshFailure,
    ProcMesh,
    SupervisionError,
    context,
    endpoint,
    this_host,
)
from monarch.runtime.cells.cell_work import Fail
from monarch.runtime.node import Node
from monarch.runtime.procs.proc_agent import ProcAgent
from monarch.wire.address import ProcAddress
from monarch.wire.message import ProcDown
from tests.actors import Cleans, Echo
from tests.support import wait_for

SECONDS = 60.0


class Busy(Actor):
    """An owner that is told of a failure while it waits in an endpoint."""

    def __init__(self, procs: ProcMesh, handles: bool) -> None:
        self.child = procs.spawn("child", Echo)
        self.handles = handles
        self.told: asyncio.Future[str] | None = None
        self.was_cancelled = False

    @endpoint
    async def fail_child_and_wait(self) -> str:
        self.told = asyncio.get_running_loop().create_future()
        self.child.fail.broadcast()
        report = await self.told
        if not self.handles:
            await asyncio.Event().wait()
        return report

    @endpoint
    async def pid(self) -> int:
        return os.getpid()

    async def __supervise__(self, failure: MeshFailure) -> bool:
        await asyncio.sleep(0)
        assert self.told is not None
        self.told.set_result(failure.report())
        return self.handles


class Quits(Busy):
    """An owner that ends itself when it is told of a failure."""

    async def __supervise__(self, failure: MeshFailure) -> bool:
        context().actor_instance.abort("no use without it")
        return True


class Owns(Actor):
    """Owns actors in procs that it was lent."""

    @endpoint
    def own(self, procs: ProcMesh, cls: type, *args: Any) -> Any:
        mesh = procs.spawn("lent", cls, *args)
        mesh.initialized.get(timeout=SECONDS)
        return mesh

    @endpoint
    def pid(self) -> int:
        return os.getpid()


def test_an_async_owner_is_told_while_it_waits(faults: list[MeshFailure]) -> None:
    lent, own = this_host().spawn_procs(), this_host().spawn_procs()
    owner = own.spawn("owner", Busy, lent, True)
    report = owner.fail_child_and_wait.call_one().get(timeout=SECONDS)
    assert "rank 0 does not like it" in report
    assert owner.pid.call_one().get(timeout=SECONDS)
    assert not faults


class Calls(Actor):
    """Calls what it owns, and keeps what it is told."""

    def __init__(self, procs: ProcMesh) -> None:
        self.children = [procs.spawn(f"child{i}", Echo) for i in range(10)]
        self.told: list[str] = []

    @endpoint
    async def call(self, number: int) -> None:
        with pytest.raises(SupervisionError):
            await self.children[number].fail_badly.call_one()

    @endpoint
    async def read(self) -> list[str]:
        return self.told

    async def __supervise__(self, failure: MeshFailure) -> bool:
        self.told.append(failure.mesh_name)
        return True


def test_an_owner_knows_of_the_failure_when_its_call_fails(faults: list[MeshFailure]) -> None:
    lent, own = this_host().spawn_procs(), this_host().spawn_procs()
    owner = own.spawn("owner", Calls, lent)
    for number in range(10):
        owner.call.broadcast(number)
        assert owner.read.call_one().get(timeout=SECONDS)[-1:] == [f"child{number}"]
    assert not faults


@pytest.mark.long
def test_an_async_owner_that_does_not_handle_it_fails_its_caller_too(
    faults: list[MeshFailure],
) -> None:
    lent, own = this_host().spawn_procs(), this_host().spawn_procs()
    owner = own.spawn("owner", Busy, lent, False)
    with pytest.raises(SupervisionError, match="owner") as caught:
        owner.fail_child_and_wait.call_one().get(timeout=SECONDS)
    assert "rank 0 does not like it" in str(caught.value)
    (fault,) = wait_for(lambda: list(faults))
    assert (fault.mesh_name, fault.root_cause.mesh_name) == ("owner", "child")
    with pytest.raises(SupervisionError):
        owner.pid.call_one().get(timeout=SECONDS)


@pytest.mark.long
def test_an_async_owner_may_abort_because_of_it_while_it_waits(faults: list[MeshFailure]) -> None:
    lent, own = this_host().spawn_procs(), this_host().spawn_procs()
    owner = own.spawn("owner", Quits, lent, False)
    with pytest.raises(SupervisionError, match="no use without it"):
        owner.fail_child_and_wait.call_one().get(timeout=SECONDS)
    (fault,) = wait_for(lambda: list(faults))
    assert "no use without it" in fault.report()


def test_actors_end_with_the_process_of_their_owner(
    faults: list[MeshFailure], tmp_path: Any
) -> None:
    lent, own = this_host().spawn_procs({"gpus": 2}), this_host().spawn_procs()
    owner = own.spawn("owner", Owns)
    orphans = owner.own.call_one(lent, Cleans, str(tmp_path / "log")).get(timeout=SECONDS)
    others = lent.spawn("others", Echo)
    assert orphans.echo.call(1).get(timeout=SECONDS).values() == [1, 1]
    os.kill(owner.pid.call_one().get(timeout=SECONDS), signal.SIGKILL)

    def error() -> str:
        try:
            orphans.echo.call(1).get(timeout=SECONDS)
        except SupervisionError as error:
            return str(error)
        return ""

    assert "SIGKILL" in wait_for(error)
    wait_for(lambda: len((tmp_path / "log").read_text().splitlines()) == 2)
    # What somebody else owns there lives on, and the root hears of one cause only.
    assert others.echo.call(1).get(timeout=SECONDS).values() == [1, 1]
    wait_for(lambda: faults)
    assert len(faults) == 1


def test_a_process_that_called_us_is_watched_when_we_call_it(faults: list[MeshFailure]) -> None:
    class Calls(Actor):
        @endpoint
        def call(self, other: Any, method: str, *args: Any) -> str:
            try:
                return str(getattr(other, method).call_one(*args).get(timeout=SECONDS))
            except SupervisionError as error:
                return f"raised {error}"

        @endpoint
        def pid(self) -> int:
            return os.getpid()

    one = this_host().spawn_procs().spawn("one", Calls)
    two = this_host().spawn_procs().spawn("two", Calls)
    echo = this_host().spawn_procs().spawn("echo", Echo)
    # The first contact is from one to two; then two calls back.
    assert int(one.call.call_one(two, "pid").get(timeout=SECONDS))
    pid = int(two.call.call_one(one, "pid").get(timeout=SECONDS))
    pending = two.call.call_one(one, "call", echo, "wait_for_file", "/never")
    os.kill(pid, signal.SIGKILL)
    assert pending.get(timeout=SECONDS).startswith("raised")


def test_an_actor_without_its_owner_says_where_the_owners_log_is() -> None:
    node = Node("proc")
    node.start()
    try:
        agent: Any = ProcAgent(node, ProcAddress("host"))
        fails: list[Fail] = []
        record = SimpleNamespace(uid="actor", owner=ProcAddress("owner"))
        agent._cells._cells["actor"] = SimpleNamespace(record=record, fail=fails.append)
        node.peer_down.report(ProcDown("owner", "it died", log_file="/logs/owner.log"))
        assert [fail.cause and fail.cause.log_file for fail in fails] == ["/logs/owner.log"]
    finally:
        node.close()
