"""Procs that a program has dropped without ``stop()`` end, once nothing uses them."""

from __future__ import annotations

import gc
import os
import socket
import sys
import threading
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import pytest

from monarch.actor import Actor, Channel, HostMesh, context, endpoint, this_host
from monarch.runtime import process
from monarch.runtime.client_agent import ClientAgent
from monarch.runtime.dropped_meshes import MeshCollector
from monarch.runtime.held import held_among, runs_by_itself
from monarch.runtime.procs.keeps_all import keeping_all
from tests.support import wait_for

SECONDS = 60.0
WHILE = 10.0


class Keeper(Actor):
    def __init__(self) -> None:
        self.kept: Any = None

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def keep(self, what: Any) -> None:
        self.kept = what

    @endpoint
    def wait_for_a_file(self, path: str) -> None:
        wait_for(lambda: os.path.exists(path), SECONDS)

    @endpoint
    def begin(self, what: str) -> None:
        if what == "a thread":
            self.kept = threading.Event()
            threading.Thread(target=self.kept.wait, daemon=True).start()
        elif what == "an open port":
            self.kept = socket.create_server(("127.0.0.1", 0))
        elif what == "shared memory":  # Its tracker is a child that only cleans up.
            self.kept = SharedMemory(create=True, size=64)
        elif what == "an ended process group":
            from torch import distributed

            store = distributed.HashStore()
            distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
            distributed.destroy_process_group()
        elif what == "procs":
            self.kept = this_host().spawn_procs()
            self.kept.initialized.get(SECONDS)


class Looks:
    """Looks as the clock says, and not by itself."""

    def __init__(self, collector: MeshCollector, now: list[float]) -> None:
        self._collector, self._now = collector, now

    def looks(self, times: int = 1, *, collect: bool = True) -> int:
        """How many meshes have ended with so many looks, each an hour after the one before."""
        if collect:
            gc.collect()
        self._collector.note_dropped()
        ended = 0
        for _ in range(times):
            self._now[0] += 3600.0 + WHILE
            ended += len(self._collector.look())
        return ended


@pytest.fixture
def collecting(monkeypatch: pytest.MonkeyPatch) -> Looks:
    context()
    agent = process.current()
    assert isinstance(agent, ClientAgent)
    now = [0.0]
    collector = MeshCollector(agent, WHILE, lambda: now[0])
    monkeypatch.setattr(collector, "_tick_later", lambda: None)
    monkeypatch.setattr(agent, "collector", collector)
    return Looks(collector, now)


def spawn(hosts: HostMesh | None = None) -> tuple[Any, int]:
    """Actors whose procs nobody has, and the process that they are in."""
    keeper = (hosts or this_host()).spawn_procs(name="dropped").spawn("keeper", Keeper)
    return keeper, keeper.pid.call_one().get(timeout=SECONDS)


def is_alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


@pytest.mark.long
def test_what_nobody_can_reach_is_ended_though_its_hosts_are_kept(collecting: Looks) -> None:
    hosts = this_host()
    keeper, pid = spawn(hosts)
    del keeper
    assert collecting.looks(1) == 0
    assert collecting.looks(1) == 1
    wait_for(lambda: not is_alive(pid))
    hosts.spawn_procs().stop().get(timeout=SECONDS)
    assert len(hosts._spawned) == 1


@pytest.mark.long
def test_a_mesh_that_is_kept_stays_and_is_used(collecting: Looks) -> None:
    kept = this_host().spawn_procs()
    keeper, pid = spawn()
    part = keeper.slice()
    del keeper
    assert collecting.looks(3) == 0
    assert part.pid.call_one().get(timeout=SECONDS) == pid
    stopped = spawn()[0]
    del stopped
    kept.stop().get(timeout=SECONDS)
    del part
    assert collecting.looks(3) == 2


@pytest.fixture
def no_garbage_collection_by_itself() -> Iterator[None]:
    thresholds = gc.get_threshold()
    gc.set_threshold(0)
    yield
    gc.set_threshold(*thresholds)


class Finalized:
    """Notes the thread that its finalizer runs on."""

    def __init__(self, threads: list[threading.Thread]) -> None:
        self.threads = threads

    def __del__(self) -> None:
        self.threads.append(threading.current_thread())


def test_cycles_are_collected_by_a_spawn_and_not_on_another_thread(
    collecting: Looks, no_garbage_collection_by_itself: None
) -> None:
    keeper, _ = spawn()
    threads: list[threading.Thread] = []
    cycle: list[Any] = [keeper, Finalized(threads)]
    cycle.append(cycle)
    del cycle, keeper
    looking = threading.Thread(target=lambda: collecting.looks(2, collect=False))
    looking.start()
    looking.join()
    assert threads == []
    another = spawn()
    assert threads == [threading.current_thread()]
    assert collecting.looks(2, collect=False) == 1
    del another


def test_a_program_without_garbage_collection_has_none(
    collecting: Looks, no_garbage_collection_by_itself: None
) -> None:
    keeper, _ = spawn()
    threads: list[threading.Thread] = []
    cycle: list[Any] = [Finalized(threads)]
    cycle.append(cycle)
    del cycle
    collecting.looks(1, collect=False)
    gc.disable()
    try:
        spawn()
        assert threads == []
    finally:
        gc.enable()
    keeper.pid.call_one().get(timeout=SECONDS)


@pytest.mark.long_but(1)
@pytest.mark.parametrize("kind", ["actors", "procs", "a port"])
def test_what_another_process_refers_to_stays(collecting: Looks, kind: str) -> None:
    other, _ = spawn()
    procs = this_host().spawn_procs(name="dropped")
    keeper: Any = procs.spawn("keeper", Keeper)
    pid = keeper.pid.call_one().get(timeout=SECONDS)
    if kind == "a port":
        holder = procs.spawn("opener", Opener)
        other.keep.call_one(holder.open.call_one().get(timeout=SECONDS)).get(timeout=SECONDS)
        del holder
    else:
        other.keep.call_one(keeper if kind == "actors" else procs).get(timeout=SECONDS)
    del keeper, procs
    assert collecting.looks(3) == 0
    assert is_alive(pid)
    other.keep.call_one(None).get(timeout=SECONDS)
    assert collecting.looks(2) == 1
    wait_for(lambda: not is_alive(pid))


class Opener(Actor):
    @endpoint
    def open(self) -> Any:
        port, self.receiver = Channel[int].open()
        return port


@pytest.mark.long_but(1)
@pytest.mark.parametrize("what", ["a thread", "an open port", "procs"])
def test_what_runs_by_itself_stays(collecting: Looks, what: str) -> None:
    keeper, pid = spawn()
    keeper.begin.call_one(what).get(timeout=SECONDS)
    del keeper
    assert collecting.looks(3) == 0
    assert is_alive(pid)


@pytest.mark.long_but(1)
@pytest.mark.parametrize("what", ["shared memory", "an ended process group"])
def test_what_libraries_leave_behind_keeps_no_mesh(collecting: Looks, what: str) -> None:
    keeper, pid = spawn()
    keeper.begin.call_one(what).get(timeout=SECONDS)
    del keeper
    assert collecting.looks(2) == 1
    wait_for(lambda: not is_alive(pid))


def test_meshes_that_only_refer_to_each_other_end_together(collecting: Looks) -> None:
    one, first = spawn()
    other, second = spawn()
    one.keep.call_one(other).get(timeout=SECONDS)
    other.keep.call_one(one).get(timeout=SECONDS)
    last, third = spawn()
    last.keep.call_one(other).get(timeout=SECONDS)
    del one, other
    assert collecting.looks(3) == 0
    last.keep.call_one(None).get(timeout=SECONDS)
    assert collecting.looks(2) == 2
    wait_for(lambda: not is_alive(first) and not is_alive(second))
    assert is_alive(third)


def test_a_message_that_waits_keeps_what_it_refers_to(collecting: Looks, tmp_path: Any) -> None:
    other, _ = spawn()
    keeper, pid = spawn()
    other.wait_for_a_file.broadcast(str(tmp_path / "end"))
    other.keep.broadcast(keeper)
    other.keep.broadcast(None)
    del keeper
    assert collecting.looks(3) == 0
    assert is_alive(pid)
    (tmp_path / "end").touch()
    other.pid.call_one().get(timeout=SECONDS)
    assert collecting.looks(2) == 1


def test_a_queue_that_refers_to_something_else_keeps_nothing(
    collecting: Looks, tmp_path: Any
) -> None:
    other, _ = spawn()
    keeper, _ = spawn()
    other.wait_for_a_file.broadcast(str(tmp_path / "end"))
    other.keep.broadcast(None)
    del keeper
    assert collecting.looks(2) == 1
    (tmp_path / "end").touch()
    other.pid.call_one().get(timeout=SECONDS)


@pytest.mark.long
def test_a_call_that_runs_keeps_its_mesh(collecting: Looks, tmp_path: Any) -> None:
    keeper, pid = spawn()
    keeper.wait_for_a_file.broadcast(str(tmp_path / "end"))
    del keeper
    assert collecting.looks(3) == 0
    (tmp_path / "end").touch()
    wait_for(lambda: bool(collecting.looks(1)), SECONDS)
    wait_for(lambda: not is_alive(pid))


@pytest.fixture
def threads_that_take_short_turns() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def test_a_look_does_not_break_what_other_threads_make(threads_that_take_short_turns: None) -> None:
    errors: list[BaseException] = []
    is_over = threading.Event()

    def make_tuples() -> None:
        try:
            while not is_over.is_set():
                tuple(number for number in range(100))
        except SystemError as error:
            errors.append(error)

    maker = threading.Thread(target=make_tuples)
    maker.start()
    for _ in range(5):
        held_among(["uid"])
        runs_by_itself(False, ())
    is_over.set()
    maker.join()
    assert errors == []


def test_what_a_run_spawns_is_its_own(collecting: Looks) -> None:
    with keeping_all():
        keeper, _ = spawn()
        del keeper
    assert collecting.looks(3) == 0


def test_a_setting_of_0_keeps_all() -> None:
    context()
    agent = process.current()
    assert isinstance(agent, ClientAgent)
    never = MeshCollector(agent, 0.0)
    never.watch(Keeper(), "uid", "name", ["proc"], lambda: None)
    gc.collect()
    assert never.note_dropped() == []


def test_a_program_looks_by_itself(program: Any) -> None:
    run = program(
        """
        import os, time
        from monarch.actor import this_host
        from tests.actors import Echo
        echo = this_host().spawn_procs().spawn("echo", Echo)
        pid = echo.pid.call_one().get(timeout=30)
        del echo
        deadline = time.monotonic() + 30
        while os.path.exists(f"/proc/{pid}") and time.monotonic() < deadline:
            time.sleep(0.02)
        print(os.path.exists(f"/proc/{pid}"))
    """,
        MONARCH_COLLECT_DROPPED_SECONDS="0.2",
    )
    assert run.wait() == 0, run.story()
    assert run.lines == ["False"]
