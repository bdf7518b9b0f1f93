"""Rings are found if and only if they are there, whatever the order in which messages arrive."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from monarch.core.rings import LASTING_SECONDS, Asked, RingsTold, Waits, follow, in_words
from monarch.wire.address import ProcAddress
from monarch.wire.message import Waiter


@dataclass(eq=False)
class Wait:
    """One wait of an actor: for the calls ``missing``, by who is called."""

    missing: dict[int, int]


@dataclass
class Actor:
    inbox: deque[tuple[int, int]] = field(default_factory=deque)
    in_hand: tuple[int, int] | None = None
    wait: Wait | None = None


OUTSIDE = -1


class World:
    """Actors that call each other at random, one message at a time, in a few processes.

    Between two processes messages arrive in order, and otherwise whenever they like.
    """

    def __init__(self, rng: random.Random, num_actors: int, num_procs: int) -> None:
        self.rng = rng
        self.now = 0.0
        self.actors = [Actor() for _ in range(num_actors)]
        self.num_procs = num_procs
        self.waits = [Waits() for _ in range(num_procs)]
        self.links: dict[tuple[int, int], deque[tuple[Any, ...]]] = {}
        self.answered: set[int] = set()
        self.num_calls = 0
        self.told: list[tuple[Waiter, ...]] = []
        # Where few wait it takes longer until a ring has caught everybody.
        self.share_waiting = rng.choice([0.3, 0.5, 0.7])

    def proc(self, actor: int) -> int:
        return actor % self.num_procs

    def send(self, source: int, target: int, *message: Any) -> None:
        self.links.setdefault((source, target), deque()).append(message)

    def waiter(self, actor: int) -> Waiter | None:
        wait = self.actors[actor].wait
        number = self.waits[self.proc(actor)].number(str(actor), wait, self.now)
        address = ProcAddress(str(self.proc(actor)))
        return Waiter(address, str(actor), number, f"n{actor}", 0, "run") if number else None

    def call(self, caller: int, callee: int) -> int:
        self.num_calls += 1
        source = self.proc(callee if caller == OUTSIDE else caller)
        self.send(source, self.proc(callee), "call", callee, caller, self.num_calls)
        return self.num_calls

    def take_up(self, number: int, *, may_wait: bool) -> None:
        """Take the next message, and either answer it or wait for some others first."""
        actor = self.actors[number]
        if actor.in_hand is not None or not actor.inbox:
            return
        actor.in_hand = actor.inbox.popleft()
        if may_wait and self.rng.random() < self.share_waiting:
            num_asked = self.rng.choice([1, 1, 1, 2])
            asked = self.rng.sample(range(len(self.actors)), min(num_asked, len(self.actors)))
            actor.wait = Wait({other: self.call(number, other) for other in asked})
        else:
            self.finish(number)

    def finish(self, number: int) -> None:
        actor = self.actors[number]
        assert actor.in_hand is not None
        caller, call = actor.in_hand
        actor.in_hand, actor.wait = None, None
        self.answered.add(call)
        if caller != OUTSIDE:
            self.send(self.proc(number), self.proc(caller), "reply", caller, number, call)

    def tick(self, proc: int) -> None:
        for number in range(proc, len(self.actors), self.num_procs):
            wait = self.actors[number].wait
            attempt = self.waits[proc].due(str(number), wait, self.now)
            if attempt:
                waiter = self.waiter(number)
                assert waiter is not None
                self.chase(number, (waiter,), attempt)

    def chase(self, number: int, path: tuple[Waiter, ...], attempt: int) -> None:
        wait = self.actors[number].wait
        assert wait is not None
        if self.waits[self.proc(number)].is_first(path, attempt):
            for other in wait.missing:
                self.send(self.proc(number), self.proc(other), "ask", path, attempt, other)

    def still(self, waiter: Waiter) -> bool:
        now = self.waiter(int(waiter.actor))
        return now is not None and now.number == waiter.number

    def deliver(self, link: tuple[int, int]) -> None:
        kind, *rest = self.links[link].popleft()
        if kind == "call":
            callee, caller, call = rest
            self.actors[callee].inbox.append((caller, call))
        elif kind == "reply":
            caller, callee, call = rest
            wait = self.actors[caller].wait
            if wait is not None and wait.missing.get(callee) == call:
                del wait.missing[callee]
                if not wait.missing:
                    self.finish(caller)
        elif kind == "ask":
            path, attempt, other = rest
            found = self.waiter(other)
            self.send(link[1], link[0], "told", path, attempt, other, found)
        elif kind == "told":
            path, attempt, other, found = rest
            if found is None or not self.still(path[-1]):
                return
            path, is_ring = follow(path, Asked(found.proc, str(other), "run"), found)
            if is_ring:
                self.check(path)
                self.told.append(path)
            elif path:
                self.send(link[1], self.proc(other), "chase", path, attempt)
        elif self.still(rest[0][-1]):
            self.chase(int(rest[0][-1].actor), *rest)

    def check(self, path: tuple[Waiter, ...]) -> None:
        """At this moment, each of a ring waits for a call of the next that is not done."""
        for one, after in zip(path, [*path[1:], path[0]], strict=True):
            assert self.still(one)
            wait = self.actors[int(one.actor)].wait
            assert wait is not None
            assert wait.missing[int(after.actor)] not in self.answered

    def step(self) -> None:
        what = self.rng.random()
        busy = [link for link, messages in self.links.items() if messages]
        if what < 0.1:
            self.call(OUTSIDE, self.rng.randrange(len(self.actors)))
        elif what < 0.35:
            self.take_up(self.rng.randrange(len(self.actors)), may_wait=True)
        elif what < 0.45:
            self.now += 2 * self.rng.random()
            self.tick(self.rng.randrange(self.num_procs))
        elif busy:
            self.deliver(self.rng.choice(busy))

    def settle(self) -> None:
        """Nobody begins to wait any more; time passes until those who do are followed again."""
        for _ in range(130):
            while busy := [link for link, messages in self.links.items() if messages]:
                self.deliver(self.rng.choice(busy))
                for number in range(len(self.actors)):
                    self.take_up(number, may_wait=False)
            for number in range(len(self.actors)):
                self.take_up(number, may_wait=False)
            self.now += LASTING_SECONDS
            for proc in range(self.num_procs):
                self.tick(proc)

    def in_rings(self) -> set[int]:
        """Who waits for himself, be it by way of others, as somebody who sees all can tell."""
        waits = {n: set(a.wait.missing) if a.wait else set() for n, a in enumerate(self.actors)}
        found = set()
        for number in waits:
            reached: set[int] = set()
            front = set(waits[number])
            while front:
                reached |= front
                front = {far for near in front for far in waits[near]} - reached
            if number in reached:
                found.add(number)
        return found


@settings(max_examples=200)
@given(st.integers(0, 1 << 30), st.integers(1, 6), st.integers(1, 3))
def test_rings_are_told_if_and_only_if_they_are_there(seed: int, actors: int, procs: int) -> None:
    world = World(random.Random(seed), actors, procs)
    for _ in range(400):
        world.step()
    world.settle()
    told = {int(one.actor) for path in world.told for one in path}
    assert told == world.in_rings()


def test_a_wait_is_followed_when_it_lasts_and_again_ever_later() -> None:
    waits, wait = Waits(), object()
    looks = [step / 2 for step in range(40)]
    assert [now for now in looks if waits.due("a", wait, now)] == [1.0, 3.0, 7.0, 15.0]


def test_another_wait_has_another_number_and_begins_anew() -> None:
    waits, one, other = Waits(), object(), object()
    first = waits.number("a", one, 0.0)
    assert waits.number("a", one, 0.9) == first
    assert waits.number("a", other, 0.9) > first
    assert not waits.due("a", other, 1.0)
    assert waits.number("a", None, 1.0) == 0
    assert len(waits) == 0


def ring(number: int, *, rank: int = 0) -> list[Waiter]:
    procs = [ProcAddress("p"), ProcAddress("q")]
    return [
        Waiter(procs[0], "ua", number, "a", rank, "start", "ask"),
        Waiter(procs[1], "ub", number, "b", rank, "ask", "value"),
    ]


def test_a_ring_is_told_once_whoever_of_it_finds_it_and_its_like_together() -> None:
    told = RingsTold()
    assert told.is_new(ring(1), 0.0)
    assert not told.is_new(ring(1)[::-1], 0.0)
    assert not told.is_new(ring(2, rank=1), 0.1)
    assert not told.is_new(ring(1), 100.0)
    assert told.is_new(ring(3), 100.0)


def test_the_words_name_each_with_its_endpoint_and_what_it_waits_for() -> None:
    words = in_words(ring(1))
    assert "a 0 (in a.start, waits for b.ask) -> b 0 (in b.ask, waits for a.value) -> a 0" in words
    assert in_words(ring(1)[::-1]) == words
    alone = in_words(ring(1)[:1])
    assert "waits for itself" in alone
    assert "self.ask(" in alone
