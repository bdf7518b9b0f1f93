"""Each async actor has an asyncio loop of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from typing import Any

import pytest

from monarch.actor import (
    Actor,
    Channel,
    MeshFailure,
    Port,
    SupervisionError,
    context,
    current_rank,
    endpoint,
    this_host,
    this_proc,
)
from monarch.config import configured
from tests.support import wait_for

SECONDS = 60.0


class Async(Actor):
    def __init__(self) -> None:
        self.seen: list[int] = []
        self.background: asyncio.Task[None] | None = None

    @endpoint
    async def echo(self, value: Any) -> Any:
        return value

    @endpoint
    async def block(self, gate: str) -> None:
        with open(gate) as file:  # noqa: ASYNC230 - that is what this is about
            file.read()

    @endpoint
    async def append(self, value: int) -> None:
        await asyncio.sleep(0)
        self.seen.append(value)

    @endpoint
    async def read(self) -> list[int]:
        return self.seen

    @endpoint
    async def where(self) -> tuple[str, int, str]:
        await asyncio.sleep(0)
        name = context().actor_instance.name
        return name, current_rank().rank, threading.current_thread().name

    @endpoint
    async def over_a_socket(self) -> bytes:
        """As an actor does that speaks to other services."""

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.readexactly(4))
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"ping")
        found = await reader.read()
        writer.close()
        server.close()
        return found

    @endpoint
    async def in_a_process(self) -> bytes:
        process = await asyncio.create_subprocess_exec("echo", "hello", stdout=-1)
        return (await process.communicate())[0]

    @endpoint
    async def leave_a_task(self, path: str) -> None:
        async def wait() -> None:
            try:
                await asyncio.sleep(1000)
            finally:
                os.mkdir(path)

        self.background = asyncio.create_task(wait())
        await asyncio.sleep(0)

    @endpoint
    async def wait_for_ever(self, path: str) -> None:
        os.mkdir(path)
        try:
            await asyncio.sleep(1000)
        finally:
            os.mkdir(path + "_ended")

    @endpoint
    async def pid(self) -> int:
        return os.getpid()

    @endpoint
    async def num_threads(self) -> int:
        return sum(t.name.startswith("actor ") for t in threading.enumerate())

    @endpoint
    async def num_descriptors(self) -> int:
        return len(os.listdir("/proc/self/fd"))


class BlockedInit(Async):
    def __init__(self, gate: str) -> None:
        super().__init__()
        with open(gate) as file:
            file.read()


class BlockedSyncInit(Actor):
    def __init__(self, gate: str) -> None:
        with open(gate) as file:
            file.read()

    @endpoint
    def echo(self, value: Any) -> Any:
        return value


class SpawnsAndBlocks(Async):
    def __init__(self, to: Port[Any], gate: str) -> None:
        super().__init__()
        to.send(this_proc().spawn("child", Async))
        with open(gate) as file:
            file.read()


class RunsForever(Actor):
    """As a server that is started in a constructor and never returns."""

    def __init__(self) -> None:
        asyncio._set_running_loop(None)
        loop = asyncio.new_event_loop()
        loop.run_forever()

    @endpoint
    async def never(self) -> None: ...


@pytest.fixture
def gate(tmp_path: Any) -> Any:
    path = tmp_path / "gate"
    os.mkfifo(path)
    yield str(path)
    # Whoever still waits there may go on.
    os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))


def test_an_endpoint_that_blocks_stops_no_other_actor(gate: str) -> None:
    procs = this_host().spawn_procs()
    first, second, third = (procs.spawn(f"a{n}", Async) for n in range(3))
    for blocked, free in ((first, second), (second, third)):
        blocked.echo.call_one(0).get(timeout=SECONDS)
        waiting = blocked.block.call_one(gate)
        assert free.echo.call_one(1).get(timeout=SECONDS) == 1
        open(gate, "w").close()
        waiting.get(timeout=SECONDS)
    assert first.echo.call_one(2).get(timeout=SECONDS) == 2


@pytest.mark.parametrize("is_first", [True, False])
def test_a_constructor_that_blocks_stops_no_other_actor(gate: str, is_first: bool) -> None:
    procs = this_host().spawn_procs()
    if not is_first:
        procs.spawn("first", Async).echo.call_one(1).get(timeout=SECONDS)
    slow = procs.spawn("slow", BlockedInit, gate)
    other = procs.spawn("other", Async)
    assert other.echo.call_one(1).get(timeout=SECONDS) == 1
    waiting = slow.echo.call_one(2)
    open(gate, "w").close()
    assert waiting.get(timeout=SECONDS) == 2


@pytest.mark.long
def test_a_constructor_that_never_returns() -> None:
    procs = this_host().spawn_procs()
    for number in range(2):
        procs.spawn(f"for_ever_{number}", RunsForever)
    other = procs.spawn("other", Async)
    assert other.echo.call_one(1).get(timeout=SECONDS) == 1
    with configured(stop_timeout_seconds=0.5):
        procs.stop().get(timeout=SECONDS)


@pytest.mark.parametrize("is_async", [True, False])
def test_one_whose_constructor_blocks_can_be_stopped(gate: str, is_async: bool) -> None:
    procs = this_host().spawn_procs()
    cls: Any = BlockedInit if is_async else BlockedSyncInit
    slow, other = procs.spawn("slow", cls, gate), procs.spawn("other", Async)
    waiting = slow.echo.call_one(1)
    procs.initialized.get(timeout=SECONDS)  # A process that is still coming up can do nothing.
    with configured(stop_timeout_seconds=0.3):
        slow.stop().get(timeout=SECONDS)
    for call in (waiting, slow.echo.call_one(2)):
        with pytest.raises(SupervisionError, match="stopped"):
            call.get(timeout=SECONDS)
    open(gate, "w").close()
    assert other.echo.call_one(3).get(timeout=SECONDS) == 3
    procs.spawn("again", cls, os.devnull).echo.call_one(4).get(timeout=SECONDS)


def test_what_one_owns_ends_though_its_constructor_never_does(gate: str) -> None:
    procs = this_host().spawn_procs()
    send, receive = Channel[Any].open()
    slow = procs.spawn("slow", SpawnsAndBlocks, send, gate)
    child = receive.recv().get(timeout=SECONDS)
    assert child.echo.call_one(1).get(timeout=SECONDS) == 1
    with configured(stop_timeout_seconds=0.3):
        slow.stop().get(timeout=SECONDS)
    with pytest.raises(SupervisionError, match="stopped"):
        child.echo.call_one(2).get(timeout=SECONDS)


def test_a_coroutine_that_is_not_done_in_time_is_cancelled_at_the_stop(tmp_path: Any) -> None:
    procs = this_host().spawn_procs()
    actor = procs.spawn("actor", Async)
    path = str(tmp_path / "began")
    waiting, behind = actor.wait_for_ever.call_one(path), actor.echo.call_one(1)
    wait_for(lambda: os.path.exists(path))
    with configured(stop_timeout_seconds=0.3):
        actor.stop().get(timeout=SECONDS)
    assert os.path.exists(path + "_ended")
    for call in (waiting, behind):
        with pytest.raises(SupervisionError, match="stopped"):
            call.get(timeout=SECONDS)


@pytest.mark.parametrize("make", [lambda: this_host().spawn_procs(), this_proc])
def test_many_have_their_own_context_and_keep_the_order(make: Any) -> None:
    procs = make()
    actors = [procs.spawn(f"a{number}", Async) for number in range(5)]
    for value in range(200):
        for actor in actors:
            actor.append.broadcast(value)
    for actor in actors:
        assert actor.read.call_one().get(timeout=SECONDS) == list(range(200))
    found = [actor.where.call_one().get(timeout=SECONDS) for actor in actors]
    assert [name for name, _, _ in found] == [f"a{number}" for number in range(5)]
    assert len({thread for _, _, thread in found}) == 5
    for actor in actors:
        actor.stop().get(timeout=SECONDS)


def test_each_may_open_connections_and_start_processes() -> None:
    procs = this_host().spawn_procs()
    for actor in [procs.spawn(f"a{number}", Async) for number in range(3)]:
        for _ in range(2):
            assert actor.over_a_socket.call_one().get(timeout=SECONDS) == b"ping"
            assert actor.in_a_process.call_one().get(timeout=SECONDS) == b"hello\n"
        assert actor.echo.call_one(3).get(timeout=SECONDS) == 3


def test_one_that_ends_ends_its_tasks_and_its_thread(tmp_path: Any) -> None:
    procs = this_host().spawn_procs()
    stays, goes = procs.spawn("stays", Async), procs.spawn("goes", Async)
    stays.echo.call_one(0).get(timeout=SECONDS)
    goes.leave_a_task.call_one(str(tmp_path / "cancelled")).get(timeout=SECONDS)
    assert stays.num_threads.call_one().get(timeout=SECONDS) == 1
    goes.stop().get(timeout=SECONDS)
    with pytest.raises(SupervisionError):
        goes.echo.call_one(1).get(timeout=SECONDS)
    cancelled = tmp_path / "cancelled"
    deadline = time.monotonic() + SECONDS
    while stays.num_threads.call_one().get(timeout=SECONDS) or not cancelled.exists():
        assert time.monotonic() < deadline


class Owner(Actor):
    def __init__(self) -> None:
        self.told: list[str] = []

    @endpoint
    async def spawn(self) -> Any:
        self.mine = this_host().spawn_procs().spawn("mine", Async)
        return self.mine

    @endpoint
    async def read(self) -> list[str]:
        return self.told

    async def __supervise__(self, failure: MeshFailure) -> bool:
        await asyncio.sleep(0)
        self.told.append(failure.mesh_name)
        return True

    async def __cleanup__(self, error: Exception | None) -> None:
        await asyncio.sleep(0)
        print("cleaned up", flush=True)


def test_supervision_reaches_one_with_a_thread() -> None:
    procs = this_host().spawn_procs()
    procs.spawn("first", Async).echo.call_one(0).get(timeout=SECONDS)
    owner = procs.spawn("owner", Owner)
    mine = owner.spawn.call_one().get(timeout=SECONDS)
    os.kill(mine.pid.call_one().get(timeout=SECONDS), signal.SIGKILL)
    deadline = time.monotonic() + SECONDS
    while not owner.read.call_one().get(timeout=SECONDS):
        assert time.monotonic() < deadline
    owner.stop().get(timeout=SECONDS)


@pytest.mark.long
def test_thousands_share_a_process() -> None:
    procs = this_host().spawn_procs()
    first = procs.spawn("first", Async)
    before = first.num_descriptors.call_one().get(timeout=SECONDS)
    actors = [procs.spawn(f"a{number}", Async) for number in range(1000)]
    futures = [actor.echo.call_one(number) for number, actor in enumerate(actors)]
    assert [future.get(timeout=60) for future in futures] == list(range(1000))
    assert first.num_descriptors.call_one().get(timeout=SECONDS) <= before + 2
