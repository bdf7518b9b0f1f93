"""Peers that are let in and are broken: an agent goes on, and leaves nobody waiting."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from monarch.actor import attach_to_workers, shutdown_context
from monarch.runtime.hosts.launcher import Launcher
from monarch.tools.network import free_port
from monarch.wire import message
from monarch.wire.address import ProcAddress
from monarch.wire.codec import Envelope, pack
from monarch.wire.message import (
    Attach,
    Call,
    Hello,
    Order,
    Preload,
    ProcDown,
    ProcSpec,
    SpawnProcs,
    StopProcs,
)
from tests.actors import Echo
from tests.net.strangers import READY, greeting, say
from tests.net.strangers import message as on_the_wire
from tests.runtime.lone_agent import LoneAgent
from tests.support import Program, wait_for
from tests.wire.test_wire_codec import structs

Start = Callable[..., Program]

SECONDS = 60.0
SECRET = bytes(range(32))


HARMLESS = [cls for cls in message.Message.__subclasses__() if cls is not message.Message]


@examples(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(sent=st.lists(st.one_of([structs(cls) for cls in HARMLESS]), min_size=1, max_size=8))
def test_no_message_that_can_be_written_ends_an_agent(agent: LoneAgent, sent: list[Any]) -> None:
    for one in sent:
        if isinstance(one, Order):
            one.gives_way = False  # Its sender keeps back what follows, here as everywhere.
        agent.send(one)
    agent.answers()


def test_the_death_of_nobody_takes_nobody_with_it(agent: LoneAgent) -> None:
    agent.send(ProcDown("", "a uid that is none"))
    agent.answers()


@pytest.mark.parametrize(
    "make",
    [
        Attach(ProcAddress("peer"), -1, "me"),
        Attach(ProcAddress("peer"), 2**63, "me"),
        Preload(("no.such\0module",)),
        StopProcs(("nobody",), "because", 1.0),
        StopProcs((), "because", float("inf")),
    ],
    ids=["pid -1", "pid 2**63", "odd module", "stop a stranger", "stop for ever"],
)
def test_a_question_that_cannot_be_answered_is_answered_so(agent: LoneAgent, make: Any) -> None:
    agent.answers()
    outcome = agent.peer.ask(agent.node.address, make)
    assert outcome.wait(SECONDS), "the peer waits for ever"
    agent.answers()


def _num_channels() -> int:
    """Pipes and sockets that are open here."""
    num = 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            num += os.readlink(f"/proc/self/fd/{fd}").startswith(("pipe:", "socket:"))
    return num


@pytest.mark.parametrize(
    "spec",
    [
        ProcSpec("../../etc/x", 0),
        ProcSpec("", 0),
        ProcSpec("a\0b", 0),
        ProcSpec("big", 0, {"A": "x" * 500_000}),
        ProcSpec("lonely", 0, {"A": "\ud800"}),
    ],
    ids=["a path", "no name", "a zero", "a huge environment", "no text"],
)
def test_a_proc_that_cannot_be_made_is_reported_and_leaves_nothing(
    agent: LoneAgent, spec: ProcSpec
) -> None:
    agent.start_launcher = Launcher
    agent.answers()
    num_open = _num_channels()
    order = SpawnProcs(
        mesh="m",
        name="mesh",
        owner=agent.peer.address,
        owner_actor="",
        labels=(),
        sizes=(),
        procs=(spec,),
    )
    # By hand: what cannot be encoded would not have come, and is as bad to pass on.
    agent.node.loop.run_on_loop(lambda: agent.node.dispatch(Envelope("", order)))
    wait_for(lambda: agent.downs, what="a report")
    assert agent.downs[0].uid == spec.uid
    assert "could not be started" in agent.downs[0].reason
    assert not agent.agent.procs
    launchers = agent.agent.templates.all
    assert all(launcher.is_alive for launcher in launchers), "it took the template with it"
    # The template has its socket; the proc's pipes are closed.
    wait_for(lambda: _num_channels() <= num_open + len(launchers), what="closed pipes")
    agent.answers()


def test_a_handler_that_raises_is_logged_once_a_kind(
    agent: LoneAgent, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "monarch"):
        for number in range(20):
            agent.send(Hello(ProcAddress(f"p{number}"), 1))
        agent.answers()
    assert len([r for r in caplog.records if "Hello" in r.getMessage()]) <= 1
    assert agent.node.loop.run_on_loop(lambda: True)


# Canaries: pickles that would leave a file, if anybody loaded them.


class Canary:
    def __init__(self, path: str) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self._path,)


def sing(path: str, *actors: str) -> list[bytes]:
    """Calls with a canary in them, as bytes of an unencrypted connection."""
    songs = []
    pickled = pickle.dumps(Canary(path))
    for actor in ("", *actors):
        call = Call(
            actor=actor,
            method="echo",
            rank=0,
            labels=("gpus",),
            sizes=(1,),
            sender="me",
            port=1,
            port_proc=ProcAddress("me"),
        )
        frames = [bytes(one) for one in pack(Envelope("", call, pickled))]
        songs.append(greeting("NULL") + READY + on_the_wire(*frames))
        songs.append(greeting("CURVE") + READY + on_the_wire(*frames))
        songs.append(on_the_wire(*frames))
    return songs


SERVE = """
from monarch.actor import run_worker_loop_forever
run_worker_loop_forever(address={url!r})
"""


def test_no_pickle_of_a_stranger_is_loaded_anywhere(program: Start, tmp_path: Path) -> None:
    """Not by a host agent, not by its procs, not by the client: they all listen over TCP."""
    url = f"tcp://127.0.0.1:{free_port()}"
    agent = program(SERVE.format(url=url), MONARCH_JOB_SECRET=SECRET.hex())
    hosts = attach_to_workers(workers=[url], secret=SECRET)
    echo = hosts.spawn_procs({"gpus": 2}).spawn("echo", Echo)
    assert echo.echo.call(1).get(timeout=SECONDS).values() == [1, 1]
    path = str(tmp_path / "the-canary-has-sung")
    ports = tcp_ports_of(agent.pid) | tcp_ports_of(os.getpid())
    assert len(ports) >= 4, f"the agent, two procs and the client: {ports}"
    for port in ports:
        for song in sing(path):
            say(f"tcp://127.0.0.1:{port}", song)
    assert echo.echo.call(2).get(timeout=SECONDS).values() == [2, 2]
    assert not os.path.exists(path)
    # The canary can sing: a member's pickle is loaded.
    echo.slice(gpus=0).echo.call_one(Canary(path)).get(timeout=SECONDS)
    assert os.path.exists(path)
    shutdown_context().get(timeout=SECONDS)


def tcp_ports_of(pid: int) -> set[int]:
    import psutil

    top = psutil.Process(pid)
    found = set()
    for one in (top, *top.children(recursive=True)):
        for connection in one.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN:
                found.add(connection.laddr.port)
    return found
