"""What a host agent hears of the processes that its templates make, and of those they do not."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest

from monarch.net.io_loop import IoLoop
from monarch.runtime.hosts.host_proc import HostProc
from monarch.runtime.hosts.launcher import Launcher, LauncherAhead
from monarch.runtime.hosts.proc_stops import ProcStops
from monarch.runtime.procs.proc_config import ProcConfig
from monarch.runtime.procs.zygote_process import ZygoteProcess
from monarch.wire.address import ProcAddress
from monarch.wire.message import Command, ProcSpec, SpawnProcs
from tests.runtime.lone_agent import FakeLauncher, LoneAgent
from tests.support import is_running, wait_for


@pytest.fixture
def loop() -> Iterator[IoLoop]:
    loop = IoLoop("test")
    loop.start()
    yield loop
    loop.stop()


def config(life: int) -> ProcConfig:
    nobody = ProcAddress("nobody")
    return ProcConfig(
        uid="proc",
        mesh="mesh",
        name="name",
        rank=0,
        labels=(),
        sizes=(),
        owner=nobody,
        owner_actor="",
        host=nobody,
        listen=(),
        life=life,
    )


def test_a_proc_is_not_taken_for_the_one_whose_place_it_takes(loop: IoLoop) -> None:
    forked: list[int] = []
    imported: list[Any] = []

    def start() -> Launcher:
        launcher = Launcher(loop, lambda uid, pid, started: forked.append(pid), lambda *about: None)
        null = os.open(os.devnull, os.O_WRONLY)
        launcher.fork(config(life=0), null, null)
        launcher.kill("proc")
        launcher.fork(config(life=1), null, null)
        launcher.preload([], imported.append)
        os.close(null)
        return launcher

    launcher = loop.run_on_loop(start)
    wait_for(lambda: imported)
    loop.run_on_loop(launcher.close)
    assert len(forked) == 1


def start_ahead(loop: IoLoop, ahead: LauncherAhead) -> Launcher:
    return loop.run_on_loop(lambda: ahead(loop, lambda *_: None, lambda *_: None, None))


def test_the_zygote_that_was_started_ahead_serves_the_first_launcher(loop: IoLoop) -> None:
    zygote = ZygoteProcess()
    ahead = LauncherAhead(zygote)
    assert ahead.pids == {zygote.pid}
    first, second = start_ahead(loop, ahead), start_ahead(loop, ahead)
    assert first.pid == zygote.pid != second.pid
    assert ahead.pids == set()
    ahead.close()  # ends nothing: it is the launcher's
    imported: list[Any] = []
    loop.run_on_loop(lambda: first.preload([], imported.append))
    wait_for(lambda: imported)
    for launcher in (first, second):
        loop.run_on_loop(launcher.close)


def test_a_zygote_that_was_started_in_another_environment_serves_nobody(
    loop: IoLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    zygote = ZygoteProcess()
    ahead = LauncherAhead(zygote)
    monkeypatch.setenv("SET_BEFORE_THE_FIRST_SPAWN", "1")
    launcher = start_ahead(loop, ahead)
    assert launcher.pid != zygote.pid
    assert launcher.drift() == {}
    assert not is_running(zygote.pid)
    loop.run_on_loop(launcher.close)


def test_a_zygote_that_no_launcher_took_ends(loop: IoLoop) -> None:
    zygote = ZygoteProcess()
    LauncherAhead(zygote).close()
    assert not is_running(zygote.pid)


class Node:
    def __init__(self) -> None:
        self.soon: list[Any] = []
        self.loop = self

    def call_soon(self, action: Any) -> None:
        self.soon.append(action)


def test_a_proc_that_is_asked_twice_to_end_before_it_is_forked_ends_once() -> None:
    spec = ProcSpec("proc", 0)
    spawn = SpawnProcs(
        mesh="mesh",
        name="name",
        owner=ProcAddress("owner"),
        owner_actor="",
        labels=(),
        sizes=(),
        procs=(spec,),
    )
    launcher: Any = FakeLauncher(None, None, lambda *about: None, None)
    node: Any = Node()
    procs = {"proc": HostProc(spawn, spec, b"", launcher)}
    ended: list[str] = []

    def replace(uid: str, code: int | None) -> None:
        ended.append(uid)
        procs[uid] = HostProc(spawn, spec, b"", launcher, life=1)

    stops = ProcStops(node, procs, replace)
    for _ in range(2):
        stops.stop(["proc"], 0.0, "replaced", lambda: None)
    for action in node.soon:
        action()
    assert ended == ["proc"]


class TooBig(FakeLauncher):
    closed: list[Command]

    def __init__(self, *about: Any) -> None:
        super().__init__(*about)
        self._command = about[-1]

    def fork(self, config: ProcConfig, out: int, err: int, setup: bytes = b"") -> None:
        raise OSError("too big")

    def close(self) -> None:
        TooBig.closed.append(self._command)


def test_a_program_that_cannot_be_given_its_order_is_ended() -> None:
    TooBig.closed = []
    with tempfile.TemporaryDirectory() as folder:
        agent = LoneAgent(folder)
        agent.start_launcher = TooBig
        own = Command("/bin/true")
        specs = ProcSpec("shares", 0), ProcSpec("alone", 1, command=own)
        agent.send(
            SpawnProcs(
                mesh="mesh",
                name="name",
                owner=agent.peer.address,
                owner_actor="",
                labels=(),
                sizes=(),
                procs=specs,
            )
        )
        wait_for(lambda: len(agent.downs) == 2)
        closed = list(TooBig.closed)
        agent.close()
    assert closed == [own]
