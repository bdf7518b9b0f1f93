"""Actors that wait for each other are named; those that only look like it are not."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from monarch.actor import Actor, Channel, Port, current_rank, endpoint, this_host, this_proc
from monarch.actor.endpoint import concurrent_endpoint
from monarch.runtime import process
from tests.support import wait_for

SECONDS = 60


def wait_for_word(told: Port[Any]) -> Any:
    """A future of what the test sends, which is given the way here first."""
    port, receiver = Channel.open()
    told.send(port)
    return receiver.recv()


class Sync(Actor):
    @endpoint
    def run(self, *steps: Any) -> Any:
        """Make the first of the steps, a call of somebody, who is given the others."""
        if not steps:
            return "end"
        (mesh, method, *args), *rest = steps
        return getattr(mesh, method).call_one(*args, *rest).get()

    @endpoint
    def uid(self) -> str:
        return process.current().node.uid

    @endpoint
    def call_all(self, *steps: Any) -> Any:
        (mesh, method), *rest = steps
        return getattr(mesh, method).call(*rest).get()

    @endpoint
    def hold(self, told: Port[Any]) -> Any:
        return wait_for_word(told).get()

    @endpoint
    def keep(self, told: Port[Any], *steps: Any) -> Any:
        (mesh, method), *rest = steps
        self.kept = getattr(mesh, method).call_one(*rest)
        return wait_for_word(told).get()

    @endpoint
    def poll(self, told: Port[Any], *steps: Any) -> Any:
        (mesh, method), *rest = steps
        answer, word = getattr(mesh, method).call_one(*rest), wait_for_word(told)
        while not word.done():
            try:
                return answer.get(timeout=0.05)
            except TimeoutError:
                pass
        return word.get()

    @endpoint(explicit_response_port=True)
    def answer_later(self, port: Port[Any], told: Port[Any], other: Any) -> None:
        told.send(port)
        other.run.call_one().get()

    @endpoint
    def take_first(self, told: Port[Any], mesh: Any, me: Any) -> Any:
        return next(mesh.part.stream(told, me)).get()

    @endpoint
    def part(self, told: Port[Any], other: Any) -> Any:
        if current_rank().rank == 0:
            return wait_for_word(told).get()
        return other.run.call_one().get()


class Async(Actor):
    @endpoint
    async def run(self, *steps: Any) -> Any:
        if not steps:
            return "end"
        (mesh, method, *args), *rest = steps
        return await getattr(mesh, method).call_one(*args, *rest)

    @endpoint
    async def have_task(self, told: Port[Any], *steps: Any) -> Any:
        (mesh, method), *rest = steps

        async def ask() -> None:
            await getattr(mesh, method).call_one(*rest)

        self.task = asyncio.create_task(ask())
        return await wait_for_word(told)


class Concurrent(Actor):
    @concurrent_endpoint
    async def run(self, *steps: Any) -> Any:
        (mesh, method, *args), *rest = steps
        return await getattr(mesh, method).call_one(*args, *rest)

    @concurrent_endpoint
    async def hold(self, told: Port[Any]) -> Any:
        return await wait_for_word(told)


class Beside(Actor):
    @endpoint
    async def run(self, mesh_and_method: Any) -> Any:
        mesh, method = mesh_and_method
        return await getattr(mesh, method).call_one()

    @concurrent_endpoint
    async def hold(self, told: Port[Any]) -> Any:
        return await wait_for_word(told)


def told_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    texts = [record.getMessage() for record in caplog.records if record.name == "monarch.host"]
    return [text for text in texts if "will never answer" in text]


@pytest.mark.long_but(1)
@pytest.mark.parametrize(
    "kinds", [(Sync, Sync), (Async, Async), (Sync, Async), (Sync, Async, Sync)]
)
def test_a_ring_is_named_and_told_once(
    kinds: tuple[type[Actor], ...], caplog: pytest.LogCaptureFixture
) -> None:
    procs = this_host().spawn_procs({"gpus": len(kinds)})
    slices = [procs.slice(gpus=rank) for rank in range(len(kinds))]
    actors = [
        one.spawn(f"actor{rank}", kind)
        for rank, (one, kind) in enumerate(zip(slices, kinds, strict=True))
    ]
    with caplog.at_level(logging.WARNING, "monarch.host"):
        first, *rest = actors
        answer = first.run.call_one(*[(other, "run") for other in rest], (first, "run"))
        wait_for(lambda: told_of(caplog))
        # One that forms later is told later: by then, all others would have told theirs again.
        marker = slices[-1].spawn("marker", Sync)
        marker.run.call_one((marker, "run"))
        wait_for(lambda: [text for text in told_of(caplog) if "marker" in text])
    text, last = told_of(caplog)
    hops = [f"actor{rank} 0 (in actor{rank}.run, waits for " for rank in range(len(kinds))]
    places = [text.index(hop) for hop in hops]
    assert places == sorted(places)
    assert text.count(" -> ") == len(kinds)
    assert "marker 0 (in marker.run, waits for its own marker.run)" in last
    assert not answer.done()


def test_a_ring_through_one_rank_of_a_mesh_is_named(caplog: pytest.LogCaptureFixture) -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    first, others = procs.slice(gpus=0).spawn("first", Sync), procs.spawn("others", Sync)
    with caplog.at_level(logging.WARNING, "monarch.host"):
        first.call_all.call_one((others, "run"), (first, "run"))
        wait_for(lambda: told_of(caplog))
    assert "first 0 (in first.call_all, waits for others.run) -> others " in told_of(caplog)[0]


@pytest.mark.long
def test_who_merely_looks_like_it_is_not_named(caplog: pytest.LogCaptureFixture) -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    near, far = procs.slice(gpus=0), procs.slice(gpus=1)
    told, receiver = Channel.open()

    def pair(name: str, kind: type[Actor] = Sync) -> tuple[Any, Any]:
        return near.spawn(f"{name}_a", kind), far.spawn(f"{name}_b", Sync)

    answers = []
    # It waits for a word, and not for the call that it has made.
    a, b = pair("keeps")
    answers.append(a.keep.call_one(told, (b, "run"), (a, "run")))
    # So does this, beside a task that waits for the call.
    a, b = pair("has_task", Async)
    answers.append(a.have_task.call_one(told, (b, "run"), (a, "run")))
    # It looks again and again.
    a, b = pair("polls")
    answers.append(a.poll.call_one(told, (b, "run"), (a, "run")))
    # The answer comes from elsewhere.
    a, b = pair("explicit")
    answers.append(a.run.call_one((b, "answer_later", told, a)))
    # The work takes long.
    a, b = pair("works")
    answers.append(a.run.call_one((b, "hold", told)))
    # The endpoint that is asked runs beside the one that waits.
    a, b = pair("concurrent", Concurrent)
    answers.append(a.run.call_one((b, "run"), (a, "hold", told)))
    # The endpoint that it waits for runs beside the one in which the other waits.
    a, b = near.spawn("beside_a", Sync), far.spawn("beside_b", Beside)
    answers.append(a.run.call_one((b, "hold", told)))
    beside = b, a
    # The other rank may answer first.
    a, b = near.spawn("stream_a", Sync), procs.spawn("stream_b", Sync)
    answers.append(a.take_first.call_one(told, b, a))
    # It stands at the fence of a change of code, and what it is asked lies behind.
    a, b = near.spawn("fenced_a", Sync), this_proc().spawn("fenced_b", Sync)
    b.initialized.get(timeout=SECONDS)
    agent = process.current()
    number = agent.fences.raise_for(a.uid.call_one().get(timeout=SECONDS), lambda: None)
    fenced = a.run.call_one((b, "run"))

    ways = [receiver.recv().get(timeout=SECONDS) for _ in answers]
    b, a = beside
    answered_after = b.run.call_one((a, "run"))
    with caplog.at_level(logging.WARNING, "monarch.host"):
        # Two after each other: what was there before the first has been told before the second.
        for num_told in (2, 4):
            for place in (near, far):
                marker = place.spawn("marker", Sync)
                marker.run.call_one((marker, "run"))
            wait_for(lambda num_told=num_told: len(told_of(caplog)) >= num_told)
    assert all("marker" in text for text in told_of(caplog))
    agent.fences.give_up(number)
    for way in ways:
        way.send("go on")
    assert [answer.get(timeout=SECONDS) for answer in answers] == ["go on"] * len(answers)
    assert fenced.get(timeout=SECONDS) == "end"
    assert answered_after.get(timeout=SECONDS) == "end"
