"""Order and exactly-once delivery, directly and along a tree, with random slices and senders."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from monarch.actor import Actor, Channel, Port, attach_to_workers, endpoint, shutdown_context
from monarch.config import configure, configured
from monarch.runtime import process
from tests.support import Program

SECONDS = 60
NUM_HOSTS = 4
NUM_GPUS = 2
WINDOW = 16

SERVE = """
from monarch.actor import run_worker_loop_forever
run_worker_loop_forever(ca="trust_all_connections", address={url!r})
"""


class Step(NamedTuple):
    """One thing that a sender does, to the part of the mesh in ``where``."""

    how: str
    where: dict[str, int | slice]


class Recorder(Actor):
    """Notes what arrives, by sender."""

    def __init__(self) -> None:
        self.seen: dict[str, list[int]] = {}

    @endpoint
    def note(self, sender: str, number: int) -> int:
        self.seen.setdefault(sender, []).append(number)
        return number

    @endpoint
    def take(self) -> dict[str, list[int]]:
        seen, self.seen = self.seen, {}
        return seen

    @endpoint
    def flush(self) -> None: ...


def play(mesh: Any, port: Port[Any], sender: str, script: list[Step]) -> None:
    """Do the steps, numbered, without waiting for answers before the end."""
    answers = []
    for number, step in enumerate(script):
        part = mesh.slice(**step.where) if step.where else mesh
        if step.how == "call":
            answers.append(part.note.call(sender, number))
        elif step.how == "stream":
            answers.extend(part.note.stream(sender, number))
        elif step.how == "call_one":
            first = part.slice(**dict.fromkeys(part.sizes, 0))
            answers.append(first.note.call_one(sender, number))
        else:
            part.note.broadcast(sender, number)
        port.send((sender, number))
    for answer in answers:
        answer.get(timeout=SECONDS)
    mesh.flush.call().get(timeout=SECONDS)


class Player(Actor):
    def __init__(self) -> None:
        configure(flow_window_messages=WINDOW)

    @endpoint
    def play(self, mesh: Any, port: Port[Any], sender: str, script: list[Step]) -> None:
        play(mesh, port, sender, script)


ranges = {"hosts": NUM_HOSTS, "gpus": NUM_GPUS}


@st.composite
def parts(draw: st.DrawFn) -> dict[str, int | slice]:
    where: dict[str, int | slice] = {}
    for label, size in ranges.items():
        kind = draw(st.sampled_from(["all", "one", "some"]))
        if kind == "one":
            where[label] = draw(st.integers(0, size - 1))
        elif kind == "some":
            start = draw(st.integers(0, size - 1))
            where[label] = slice(start, draw(st.integers(start + 1, size)), draw(st.integers(1, 2)))
    return where


hows = st.sampled_from(["call", "broadcast", "broadcast", "call_one", "stream"])
scripts = st.lists(st.builds(Step, hows, parts()), max_size=3 * WINDOW)


def members(step: Step) -> list[tuple[int, int]]:
    """The (host, gpu) that a step concerns, in order of ranks."""
    chosen = []
    for label, size in ranges.items():
        what = step.where.get(label, slice(None))
        chosen.append([what] if isinstance(what, int) else list(range(size))[what])
    found = [(host, gpu) for host in chosen[0] for gpu in chosen[1]]
    return found[:1] if step.how == "call_one" else found


@pytest.fixture
def urls(program: Callable[..., Program]) -> Iterator[list[str]]:
    # Shorter than what tmp_path gives: it holds Unix sockets.
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        urls = [f"ipc://{Path(name)}/host{number}" for number in range(NUM_HOSTS)]
        for url in urls:
            program(SERVE.format(url=url))
        yield urls
        # Before the agents are killed, which would be a failure.
        shutdown_context().get(timeout=SECONDS)


@pytest.fixture(params=["direct", "tree"])
def route(request: pytest.FixtureRequest) -> Iterator[str]:
    min_hosts = 2 if request.param == "tree" else 1000
    with configured(tree_min_hosts=min_hosts, tree_degree=2, flow_window_messages=WINDOW):
        yield request.param


@pytest.mark.long
def test_each_sender_is_heard_in_order_and_once(urls: list[str], route: str) -> None:
    hosts = attach_to_workers(ca="trust_all_connections", workers=urls)
    procs = hosts.spawn_procs({"gpus": NUM_GPUS})
    recorders: Any = procs.spawn("recorders", Recorder)
    players: Any = procs.spawn("players", Player)
    recorders.flush.call().get(timeout=SECONDS)
    assert (recorders._ref.place is not None) == (route == "tree")

    @settings(
        max_examples=12, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(st.lists(scripts, min_size=3, max_size=3), parts())
    def check(lines: list[list[Step]], seen_as: dict[str, int | slice]) -> None:
        port, receiver = Channel.open()
        names = ["client", "one", "two"]
        playing = [
            players.slice(hosts=0, gpus=0).play.call_one(recorders, port, "one", lines[1]),
            players.slice(hosts=NUM_HOSTS - 1, gpus=1).play.call_one(
                recorders, port, "two", lines[2]
            ),
        ]
        play(recorders, port, "client", lines[0])
        for one in playing:
            one.get(timeout=SECONDS)
        seen = recorders.take.call().get(timeout=SECONDS)
        for point, noted in seen.items():
            place = point["hosts"], point["gpus"]
            for name, line in zip(names, lines, strict=True):
                wanted = [n for n, step in enumerate(line) if place in members(step)]
                assert noted.get(name, []) == wanted, f"{name} at {place}"
        said: dict[str, list[int]] = {name: [] for name in names}
        for _ in range(sum(map(len, lines))):
            name, number = receiver.recv().get(timeout=SECONDS)
            said[name].append(number)
        assert said == {n: list(range(len(line))) for n, line in zip(names, lines, strict=True)}

    check()
    procs.stop().get(timeout=SECONDS)


@pytest.mark.long
def test_a_slow_member_of_a_tree_slows_its_senders_and_loses_nothing(urls: list[str]) -> None:
    with configured(
        tree_min_hosts=2, tree_degree=2, flow_window_messages=WINDOW, flow_patience_seconds=0.05
    ):
        hosts = attach_to_workers(ca="trust_all_connections", workers=urls)
        procs = hosts.spawn_procs({"gpus": 1})
        slow: Any = procs.spawn("slow", Slow)
        port, started = Channel.open()
        slow.slice(hosts=3, gpus=0).pause.broadcast(port)
        gate = started.recv().get(timeout=SECONDS)
        for number in range(20 * WINDOW):
            slow.note.broadcast("client", number)
        # A call to one that keeps up is not held behind what waits for the slow one.
        assert slow.slice(hosts=2, gpus=0).note.call_one("client", -1).get(timeout=SECONDS) == -1
        gate.send(None)
        numbers = list(range(20 * WINDOW))
        seen = [one["client"] for one in slow.take.call().get(timeout=SECONDS).values()]
        assert seen == [numbers, numbers, [*numbers, -1], numbers]
        assert not process.current().node.outboxes.is_spilling
        procs.stop().get(timeout=SECONDS)


class Slow(Recorder):
    @endpoint
    def pause(self, started: Port[Any]) -> None:
        gate, wait = Channel.open()
        started.send(gate)
        wait.recv().get(timeout=SECONDS)
