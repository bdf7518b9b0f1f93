"""Who is told about a proc that he has only heard of."""

from __future__ import annotations

from typing import Any

import pytest

from monarch.runtime.hosts.relay import Relay
from monarch.wire.address import ProcAddress
from monarch.wire.codec import Envelope
from monarch.wire.message import Inspect, ProcDown, ProcSpec, ProcUp, SpawnProcs, Watch
from tests.runtime.lone_agent import LoneAgent
from tests.support import wait_for


def order(agent: LoneAgent) -> SpawnProcs:
    return SpawnProcs(
        mesh="m",
        name="mesh",
        owner=agent.peer.address,
        owner_actor="",
        labels=(),
        sizes=(),
        procs=(ProcSpec("late", 0),),
    )


def test_a_watch_may_come_before_the_order_to_make_the_proc(agent: LoneAgent) -> None:
    """It comes from an actor that was given a reference, over another connection."""
    ups: list[Any] = []
    agent.peer.handle(ProcUp, lambda envelope: ups.append(envelope.message))
    agent.send(Watch("late", agent.peer.address))
    agent.answers()
    agent.send(order(agent))
    agent.answers()
    launcher: Any = agent.agent.procs["late"].launcher
    assert launcher.forked == ["late"], "a fake: no process is made"
    agent.send(ProcUp(ProcAddress("late", ("ipc:///nowhere/late",)), 1))
    wait_for(lambda: ups, what="the watcher is told")
    assert ups[0].proc.uid == "late"
    assert not agent.downs


def test_who_watches_for_what_nobody_makes_is_told_in_the_end(agent: LoneAgent) -> None:
    agent.agent.watchers.early_seconds = 0.05
    agent.send(Watch("never", agent.peer.address))
    wait_for(lambda: agent.downs, what="the watcher is told")
    assert "does not know it" in agent.downs[0].reason
    assert not agent.agent.watchers._watchers


def on_loop(agent: LoneAgent, do: Any) -> Any:
    return agent.node.loop.run_on_loop(do)


def test_who_waits_for_a_proc_is_forgotten_when_the_client_leaves(agent: LoneAgent) -> None:
    """A host agent that lives long must not keep what orders of former clients left behind."""
    relay = Relay(agent.agent)
    on_loop(agent, lambda: agent.agent.watchers.watch_end("never", agent.peer.address))
    agent.send(order(agent))
    agent.answers()
    on_loop(agent, lambda: agent.agent.watchers.watch_end("late", agent.peer.address))
    on_loop(agent, relay.forget)
    left = list(agent.agent.watchers._end_watchers)
    assert left == ["late"], "it lives still, and its end is to be told"


def test_who_is_gone_is_told_nothing_more(agent: LoneAgent) -> None:
    agent.send(order(agent))
    agent.send(Watch("late", ProcAddress("watcher", ("ipc:///nowhere/watcher",))))
    agent.answers()
    watchers = agent.agent.watchers._watchers["late"]
    on_loop(agent, lambda: agent.agent.watchers.watch_end("never", ProcAddress("watcher")))
    assert "watcher" in watchers
    agent.send(ProcDown("watcher", "it was killed"))
    wait_for(lambda: not agent.agent.watchers._end_watchers, what="it is forgotten")
    assert "watcher" not in watchers


@pytest.mark.parametrize("when", ["before the order", "before it is up", "when it is up"])
def test_a_host_agent_that_meets_a_proc_of_its_own_is_told_of_it_once(
    agent: LoneAgent, when: str
) -> None:
    """It asks itself about a proc that it may have forgotten; one that lives is no news."""
    ups: list[Any] = []
    real = agent.node._handlers[ProcUp]

    def noted(envelope: Any) -> None:
        ups.append(envelope.message)
        real(envelope)

    agent.node.handle(ProcUp, noted)
    late = ProcAddress("late", ("ipc:///nowhere/late",), agent.node.address.machine, "host")

    def meet() -> None:
        agent.node.address_book.introduce(late)
        agent.node.transmit(ProcAddress("late"), Envelope("late", Inspect()))
        agent.answers()

    steps = {
        "before the order": lambda: agent.send(order(agent)),
        "before it is up": lambda: agent.send(ProcUp(late, 1)),
        "when it is up": agent.answers,
    }
    for step, do in steps.items():
        if step == when:
            meet()
        do()
    for _ in range(20):
        agent.answers()
    assert len(ups) == 1
    agent.send(ProcDown("late", "it was killed"))
    agent.answers()
    assert agent.node.failure_of("late") is not None
