"""A console beside hosts and ranks that do not answer, or answer late."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from monarch.cli.debug.debug import visit_here
from monarch.debugger.visit import Visit
from monarch.net.machine import machine_id
from monarch.runtime.answers import Response
from monarch.runtime.client_agent import client
from monarch.runtime.hosts.asking import NOBODY_THERE
from monarch.runtime.node import Node
from monarch.wire.address import ProcAddress
from monarch.wire.hold import HoldNote
from monarch.wire.message import HeldCalls, HoldsAsked
from tests.debugger.typist import Typist, console, type_into, wait_for_holds
from tests.support import wait_for


def a_hold(name: str) -> HoldNote:
    return HoldNote(
        id=name, actor="stepper", rank=0, labels=(), sizes=(), mesh="m", proc="p", host="gpu1",
        pid=1, method="step", reason="breakpoint()", file="train.py", function="step", line=7,
        since=0.0,
    )  # fmt: skip


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[tuple[Node, Node]]:
    """An asker, and a host, which the test answers for."""
    made = Node("asker"), Node("host")
    for node in made:
        node.start()
        node.listen(f"ipc://{tmp_path}/{node.uid}")
    yield made
    for node in made:
        node.close()


def test_a_silent_host_has_its_full_time_again_once_its_answer_has_come_however_late(
    nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a host that is only slow would stay out of the console."""
    asker, host = nodes
    asked: list[HoldsAsked] = []
    host.on(HoldsAsked, asked.append)
    answers: list[Any] = []
    silent_hosts: list[list[str]] = []

    def nothing_yet(
        node: Node, addresses: object, now: Mapping[str, Any], *, silent: list[str], seconds: float
    ) -> dict[str, Response[HeldCalls]]:
        answers.append(now["slow"])
        silent_hosts.append(silent)
        return {"slow": Response(None, "no answer yet")}

    monkeypatch.setattr("monarch.debugger.visit.responses_of", nothing_yet)
    visit = Visit(asker, lambda: {"slow": host.address})
    for _ in range(2):
        assert visit.holds() == []
    assert visit.silence() == ["slow: no answer yet"]
    assert visit.silence() == []
    wait_for(lambda: len(asked) == 2)
    host.answer(asked[1], HeldCalls())
    wait_for(lambda: answers[1].is_set)
    visit.holds()
    assert silent_hosts == [[], ["slow"], []]


def test_a_connection_is_kept_and_an_agent_that_was_started_anew_is_met(
    nodes: tuple[Node, Node], tmp_path: Path
) -> None:
    asker, host = nodes
    address = host.address
    visit = Visit(asker, lambda: {"trainers1": address}, host_seconds=600.0)

    def serve(agent: Node, hold: HoldNote) -> None:
        agent.on(HoldsAsked, lambda order: agent.answer(order, HeldCalls((hold,))))

    serve(host, a_hold("before"))
    assert [hold.id for hold in visit.holds()] == ["before"]
    connected = asker.address_book.peers.get("host")
    assert [hold.id for hold in visit.holds()] == ["before"]
    assert asker.address_book.peers.get("host") is connected
    host.close()
    assert visit.holds() == []
    assert visit.silence() == [f"trainers1: {NOBODY_THERE}"]
    again = Node("host")
    again.start()
    try:
        again.listen(f"ipc://{tmp_path}/host")
        serve(again, a_hold("after"))
        assert [hold.id for hold in visit.holds()] == ["after"]
        assert visit.silence() == []
    finally:
        again.close()


def test_hosts_of_the_allocation_are_connected_to_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a long way, each connection would take as long as ten questions."""
    visited = []

    class Job:
        def urls(self) -> list[str]:
            return ["tcp://gpu1:22222", "tcp://gpu2:22222"]

        def names_by_url(self) -> dict[str, str]:
            return {"tcp://gpu1:22222": "gpu1"}

        def visit(self, url: str) -> ProcAddress:
            visited.append(url)
            return ProcAddress(f"host of {url}", (url,))

    monkeypatch.setattr("monarch.cli.debug.debug.noted_job", Job)
    hosts = visit_here().hosts
    for _ in range(2):
        names = [name for name in hosts() if not name.startswith("program ")]
        assert names == ["gpu1", "tcp://gpu2:22222"]
    assert visited == Job().urls()


def test_each_command_names_the_hosts_that_did_not_answer_it(steppers: Any) -> None:
    answer = steppers.slice(gpus=0).step.call_one(1)
    wait_for_holds(1)
    node = client().node
    ended = ProcAddress("ended", ("ipc:///nowhere",), machine_id())
    visit = Visit(node, lambda: {"this program": node.address, "trainers1": ended})
    typist = Typist(["list", "help", "attach other 0"])
    type_into(visit, typist)
    listed, helped, attached = typist.shown_text.split("monarch_dbg> ")[1:4]
    assert "| stepper    |    0 |" in listed
    assert f"trainers1: {NOBODY_THERE}" in listed
    assert "trainers1" not in helped
    assert "No debug sessions for actor other" in attached
    assert f"trainers1: {NOBODY_THERE}" in attached
    console("continue")
    assert answer.get(timeout=60) == 2


@pytest.mark.long
def test_a_stopped_rank_is_named_and_the_others_are_asked_as_before(steppers: Any) -> None:
    answer = steppers.step.call(1)
    stopped = wait_for_holds(4)[0]
    os.kill(stopped.pid, signal.SIGSTOP)
    try:
        shown = console(
            "where", "cast 0,1 p number", "together", "p number", "alone", "attach stepper 0",
            seconds=3.0,
        )  # fmt: skip
    finally:
        os.kill(stopped.pid, signal.SIGCONT)
    where, cast, _, together, _, attached = shown.split("> ")[1:7]
    assert "stepper ranks 0-3     HELD at held_actors.py" in where
    assert "rank 0        does not answer: it is stopped, or a thread holds the GIL" in where
    for each in (cast, together):
        assert "stepper rank 0: does not answer" in each
        assert "stepper rank 1: 1" in each or "stepper ranks 1-3: 1" in each
    assert "stepper 0: it does not answer" in attached
    console("continue")
    assert set(answer.get(timeout=60).values()) == {2}
