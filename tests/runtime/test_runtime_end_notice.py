"""A host whose end is announced ends when nothing runs on it, and not before that is heard."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator

import pytest

from monarch.runtime.answers import Response
from monarch.runtime.hosts.end_notice import ENDING, EndNotice, obey_notices
from monarch.runtime.promise import Promise
from monarch.wire.message import Heard, Listen
from tests.runtime.lone_agent import LoneAgent

SECONDS = 60.0


class Announced:
    """A host that notices come to through a pipe."""

    def __init__(self, lone: LoneAgent, heard_seconds: float = 600.0) -> None:
        self.over = threading.Event()
        self._lone = lone
        reader, self._notices = os.pipe()
        obey_notices(reader, lone.agent, self.over.set, heard_seconds)

    def announce(self, seconds: float) -> None:
        notice = EndNotice("it is wanted elsewhere", seconds, is_last=True)
        os.write(self._notices, f"{json.dumps(notice._asdict())}\n".encode())

    def ask(self, number: int, seconds: float) -> Promise[Response[Heard]]:
        peer, host = self._lone.peer, self._lone.node.address
        return peer.ask(host, Listen(number, seconds))

    def hear(self, number: int, seconds: float = SECONDS) -> tuple[int, list[str]]:
        answer = self.ask(number, seconds)
        assert answer.wait(SECONDS)
        heard = answer.value.answer
        return heard.number, [one.kind for one in heard.bulletins]

    def close(self) -> None:
        os.close(self._notices)
        assert self.over.wait(SECONDS)


@pytest.fixture
def host(agent: LoneAgent) -> Iterator[Announced]:
    announced = Announced(agent)
    yield announced
    announced.close()


def test_an_idle_host_ends_once_its_listener_has_asked_on(
    agent: LoneAgent, host: Announced
) -> None:
    first, _ = host.hear(0, 0.0)
    host.announce(600.0)
    number, kinds = host.hear(first)
    assert kinds == [ENDING]
    agent.answers()
    assert not host.over.is_set(), "what it answered might not have arrived"
    host.ask(number, SECONDS)
    assert host.over.wait(SECONDS)


def test_an_idle_host_that_nobody_listens_to_ends_at_once(host: Announced) -> None:
    host.announce(600.0)
    assert host.over.wait(SECONDS)


@pytest.mark.parametrize("is_gone", [True, False], ids=["gone", "leaves off"])
def test_a_listener_that_listens_no_more_is_not_waited_for(
    agent: LoneAgent, host: Announced, is_gone: bool
) -> None:
    first, _ = host.hear(0, 0.0)
    host.announce(600.0)
    host.hear(first)
    agent.answers()
    assert not host.over.is_set()
    if is_gone:
        agent.node.peer_down.left("peer")
    else:
        agent.peer.order(agent.node.address, Listen(first, 0.0))
    assert host.over.wait(SECONDS)


@pytest.mark.parametrize(("heard_seconds", "seconds"), [(0.3, 600.0), (600.0, 1.3)])
def test_a_listener_that_says_no_more_is_waited_for_a_while(
    agent: LoneAgent, heard_seconds: float, seconds: float
) -> None:
    host = Announced(agent, heard_seconds)
    first, _ = host.hear(0, 0.0)
    host.announce(seconds)
    host.hear(first)
    assert host.over.wait(SECONDS)
    host.close()
