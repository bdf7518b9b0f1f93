"""What a host agent keeps of what happened, and who hears of it."""

from __future__ import annotations

from monarch.runtime.answers import Response
from monarch.runtime.hosts.bulletins import post
from monarch.runtime.promise import Promise
from monarch.wire.bulletin import Bulletin
from monarch.wire.message import Attach, Detach, Heard, Listen
from tests.runtime.lone_agent import LoneAgent
from tests.support import wait_for

HELD = Bulletin("run a", "held", "the run holds", generation=3, stands=True)
MENDED = Bulletin("run a", "mended", "it goes on", generation=4)


def tell(agent: LoneAgent, *bulletins: Bulletin) -> None:
    for one in bulletins:
        post(agent.peer, [agent.node.address], one)
    agent.answers()


def asked(agent: LoneAgent, number: int, seconds: float = 0.0) -> Promise[Response[Heard]]:
    return agent.peer.ask(agent.node.address, Listen(number, seconds))


def heard(agent: LoneAgent, number: int, seconds: float = 0.0) -> tuple[int, list[Bulletin]]:
    answer = asked(agent, number, seconds)
    assert answer.wait(30.0)
    heard = answer.value.answer
    return heard.number, list(heard.bulletins)


def test_what_stands_is_told_to_who_comes_late_and_the_rest_only_to_who_was_there(
    agent: LoneAgent,
) -> None:
    first, found = heard(agent, 0)
    assert not found
    tell(agent, HELD)
    last, (held,) = heard(agent, 0)
    assert (held.text, held.generation, held.number) == ("the run holds", 3, last)
    assert held.time > 0
    tell(agent, MENDED)
    assert heard(agent, 0)[1] == []
    assert [one.kind for one in heard(agent, first)[1]] == ["held", "mended"]
    assert [one.kind for one in heard(agent, last)[1]] == ["mended"]
    assert agent.agent.describe().bulletins == ()


def test_who_listens_is_answered_as_it_happens_or_when_his_time_is_over(agent: LoneAgent) -> None:
    number, _ = heard(agent, 0)
    assert heard(agent, number, 0.05)[1] == [], "nothing happens"
    waiting = asked(agent, number, 30.0)
    agent.answers()
    assert not waiting.is_set
    tell(agent, HELD)
    assert waiting.wait(30.0)
    assert [one.kind for one in waiting.value.answer.bulletins] == ["held"]


def test_what_a_client_told_does_not_outlive_it(agent: LoneAgent) -> None:
    agent.send(Attach(agent.peer.address, 0, "peer"))
    tell(agent, HELD)
    number, (held,) = heard(agent, 0)
    assert agent.agent.describe().bulletins == (held,)
    waiting = asked(agent, number, 30.0)
    agent.send(Detach("peer"))
    assert waiting.wait(30.0)
    (left,) = waiting.value.answer.bulletins
    assert (left.key, left.kind, left.stands) == ("run a", "left", False)
    assert agent.agent.describe().bulletins == ()


def test_what_a_watch_told_does_not_outlive_it(agent: LoneAgent) -> None:
    tell(agent, Bulletin("watch peer", "watching", "a watch", stands=True))
    assert [one.kind for one in agent.agent.describe().bulletins] == ["watching"]
    agent.node.peer_down.left("peer")  # as where the end of its process was noticed
    wait_for(lambda: not agent.agent.describe().bulletins)


def test_only_the_last_hundred_are_kept(agent: LoneAgent) -> None:
    number, _ = heard(agent, 0)
    tell(agent, *(Bulletin("workspace", "committed", generation=n) for n in range(150)))
    found = heard(agent, number)[1]
    assert [one.generation for one in found] == list(range(50, 150))
