"""Senders that outrun their receivers: nothing lost, nothing twice, no deadlock, little memory."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import psutil
import pytest

import monarch.actor
from monarch.actor import Actor, Channel, MeshFailure, Port, endpoint, this_host
from monarch.config import configure, configured
from monarch.runtime import process
from tests.support import Program, wait_for

SECONDS = 60
WINDOW = 64
MANY = 20 * WINDOW


class Collector(Actor):
    """Notes what arrives; stands still when asked to."""

    def __init__(self) -> None:
        self.seen: dict[str, list[int]] = {}

    @endpoint
    def take(self, sender: str, number: int, ballast: bytes = b"") -> None:
        self.seen.setdefault(sender, []).append(number)

    @endpoint
    def take_sum(self, sender: str, array: np.ndarray[Any, Any]) -> None:
        self.seen.setdefault(sender, []).append(int(array.sum()) // array.size)

    @endpoint
    def pause(self, started: Port[Any]) -> None:
        gate, wait = Channel.open()
        started.send(gate)
        wait.recv().get(timeout=SECONDS)

    @endpoint
    def read(self) -> dict[str, list[int]]:
        return self.seen

    @endpoint
    def memory(self) -> int:
        return psutil.Process().memory_info().rss

    def __cleanup__(self, error: object) -> None:
        port = getattr(self, "port", None)
        if port is not None:
            port.send(self.seen)

    @endpoint
    def at_the_end(self, port: Port[Any]) -> None:
        self.port = port


class Counter(Actor):
    """Checks that numbers come one after the other, without keeping them."""

    def __init__(self) -> None:
        self.next = 0

    @endpoint
    def take(self, number: int, ballast: bytes) -> None:
        assert number == self.next
        self.next += 1

    @endpoint
    def read(self) -> int:
        return self.next

    @endpoint
    def pause(self, started: Port[Any]) -> None:
        gate, wait = Channel.open()
        started.send(gate)
        wait.recv().get(timeout=SECONDS)


class Flooder(Actor):
    """Sends a lot from inside an endpoint, while it takes nothing itself."""

    def __init__(self) -> None:
        configure(flow_window_messages=WINDOW)
        self.seen: list[int] = []

    @endpoint
    def take(self, number: int) -> None:
        self.seen.append(number)

    @endpoint
    def flood(self, other: Any, count: int) -> None:
        for number in range(count):
            other.take.broadcast(number)

    @endpoint
    def flood_port(self, port: Port[int], count: int) -> None:
        for number in range(count):
            port.send(number)

    @endpoint
    def read(self) -> list[int]:
        return self.seen


class AsyncFlooder(Actor):
    def __init__(self) -> None:
        configure(flow_window_messages=WINDOW)
        self.seen: list[int] = []

    @endpoint
    async def take(self, number: int) -> None:
        self.seen.append(number)

    @endpoint
    async def flood(self, other: Any, count: int) -> None:
        for number in range(count):
            other.take.broadcast(number)

    @endpoint
    async def read(self) -> list[int]:
        return self.seen


@pytest.fixture(autouse=True)
def small_windows() -> Iterator[None]:
    with configured(flow_window_messages=WINDOW, flow_patience_seconds=0.05):
        yield


def collectors(count: int) -> Any:
    return this_host().spawn_procs({"gpus": count}).spawn("collector", Collector)


def paused(mesh: Any) -> Port[Any]:
    port, started = Channel.open()
    mesh.pause.broadcast(port)
    gate: Port[Any] = started.recv().get(timeout=SECONDS)
    return gate


def test_what_is_sent_to_one_that_stands_still_comes_later_once_and_in_order() -> None:
    mesh = collectors(1)
    gate = paused(mesh)
    for number in range(MANY):
        mesh.take.broadcast("client", number)
    assert process.current().node.outboxes.is_spilling
    answer = mesh.take.call_one("client", MANY)
    gate.send(None)
    answer.get(timeout=SECONDS)
    assert mesh.read.call_one().get(timeout=SECONDS) == {"client": list(range(MANY + 1))}
    wait_for(lambda: not process.current().node.outboxes.is_spilling)


def test_bytes_count_too_and_a_message_larger_than_the_window_passes() -> None:
    mesh = collectors(1)
    with configured(flow_window_bytes=10_000):
        gate = paused(mesh)
        for number in range(30):
            mesh.take.broadcast("client", number, bytes(20_000 if number % 3 else 10))
        assert process.current().node.outboxes.is_spilling
        gate.send(None)
        assert mesh.read.call_one().get(timeout=SECONDS) == {"client": list(range(30))}


@pytest.mark.long
def test_a_slow_receiver_slows_its_sender_down() -> None:
    mesh = collectors(1)
    with configured(flow_patience_seconds=SECONDS):
        gate = paused(mesh)
        sent: list[int] = []

        def send() -> None:
            for number in range(MANY):
                mesh.take.broadcast("thread", number)
                sent.append(number)

        sender = threading.Thread(target=send)
        sender.start()
        wait_for(lambda: len(sent) >= WINDOW - 4)
        outboxes = process.current().node.outboxes
        assert len(sent) <= WINDOW
        assert not outboxes.is_spilling
        # One that is slow holds up nobody else.
        other = collectors(2)
        other.take.call("client", 1).get(timeout=SECONDS)
        assert len(sent) <= WINDOW
        gate.send(None)
        sender.join(SECONDS)
    assert mesh.read.call_one().get(timeout=SECONDS) == {"thread": list(range(MANY))}


def test_a_cast_that_waits_for_one_member_does_not_hold_up_other_casts() -> None:
    mesh = collectors(3)
    with configured(flow_patience_seconds=SECONDS):
        gate = paused(mesh.slice(gpus=2))
        flood = threading.Thread(
            target=lambda: [mesh.take.broadcast("thread", number) for number in range(MANY)]
        )
        flood.start()
        quick = mesh.slice(gpus=slice(0, 2))
        for number in range(MANY // WINDOW):
            quick.take.call("client", number).get(timeout=SECONDS)
        gate.send(None)
        flood.join(SECONDS)
    numbers = list(range(MANY))
    seen = mesh.read.call().get(timeout=SECONDS).values()
    assert [one["thread"] for one in seen] == [numbers] * 3
    assert [one.get("client") for one in seen] == [numbers[: MANY // WINDOW]] * 2 + [None]


@pytest.mark.parametrize("cls", [Flooder, AsyncFlooder])
def test_two_that_flood_each_other_end(cls: type) -> None:
    mesh: Any = this_host().spawn_procs({"gpus": 2}).spawn("flooder", cls)
    one, two = mesh.slice(gpus=0), mesh.slice(gpus=1)
    ends = [one.flood.call_one(two, MANY), two.flood.call_one(one, MANY)]
    for end in ends:
        end.get(timeout=SECONDS)
    # What they sent each other is under way, and our question comes by another way.
    wait_for(lambda: sum(map(len, mesh.read.call().get(timeout=SECONDS).values())) == 2 * MANY)
    assert mesh.read.call().get(timeout=SECONDS).values() == [list(range(MANY))] * 2


@pytest.mark.parametrize("cls", [Flooder, AsyncFlooder])
def test_one_that_floods_itself_ends(cls: type) -> None:
    one: Any = this_host().spawn_procs({"gpus": 1}).spawn("flooder", cls)
    one.flood.call_one(one, MANY).get(timeout=SECONDS)
    wait_for(lambda: len(one.read.call_one().get(timeout=SECONDS)) == MANY)
    assert one.read.call_one().get(timeout=SECONDS) == list(range(MANY))


def test_a_channel_that_is_read_late_loses_nothing() -> None:
    flooder: Any = this_host().spawn_procs({"gpus": 1}).spawn("flooder", Flooder)
    port, receiver = Channel[int].open()
    flooder.flood_port.call_one(port, MANY).get(timeout=SECONDS)
    got = [receiver.recv().get(timeout=SECONDS) for _ in range(MANY)]
    assert got == list(range(MANY))


def test_a_channel_within_a_process_takes_more_than_a_window() -> None:
    port, receiver = Channel[int].open()
    for number in range(MANY):
        port.send(number)
    assert [receiver.recv().get(timeout=SECONDS) for _ in range(MANY)] == list(range(MANY))


def test_stopping_an_actor_comes_after_what_waits_for_it() -> None:
    mesh = collectors(1)
    port, receiver = Channel.open()
    mesh.at_the_end.call_one(port).get(timeout=SECONDS)
    gate = paused(mesh)
    for number in range(MANY):
        mesh.take.broadcast("client", number)
    ended = mesh.stop()
    gate.send(None)
    ended.get(timeout=SECONDS)
    assert receiver.recv().get(timeout=SECONDS) == {"client": list(range(MANY))}


def test_broadcasts_to_an_actor_that_has_ended_do_not_pile_up() -> None:
    mesh = collectors(1)
    mesh.stop().get(timeout=SECONDS)
    with configured(flow_patience_seconds=SECONDS):
        for number in range(MANY):
            mesh.take.broadcast("client", number)
    wait_for(lambda: not process.current().node.outboxes.is_spilling)


def test_the_death_of_a_receiver_ends_the_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    faults: list[MeshFailure] = []
    monkeypatch.setattr(monarch.actor, "unhandled_fault_hook", faults.append)
    mesh = collectors(1)
    mesh.initialized.get(timeout=SECONDS)
    agent = process.current().host_agent  # type: ignore[attr-defined]
    (proc,) = agent.procs.values()
    with configured(flow_patience_seconds=10 * SECONDS):
        paused(mesh)
        sent: list[int] = []

        def send() -> None:
            for number in range(MANY):
                mesh.take.broadcast("thread", number)
                sent.append(number)

        sender = threading.Thread(target=send)
        sender.start()
        wait_for(lambda: len(sent) >= WINDOW - 4)
        psutil.Process(proc.pid).send_signal(signal.SIGKILL)
        sender.join(SECONDS)
        assert not sender.is_alive()
    wait_for(lambda: faults)


@pytest.mark.long
def test_ctrl_c_ends_a_wait_for_room(program: Callable[..., Program]) -> None:
    script = program(
        """
        import sys, threading, time
        from monarch.actor import Actor, endpoint, this_host
        from monarch.runtime.links.outbox import Outbox

        def tell_when_full(main=threading.get_ident()):
            codes = None
            # With less it waits, too, for the answer to what came before.
            while count < 10 or codes != (threading.Condition.wait.__code__, Outbox.wait.__code__):
                time.sleep(0.01)
                frame = sys._current_frames()[main]
                codes = (frame.f_code, frame.f_back and frame.f_back.f_code)
            print("full", flush=True)

        class Slow(Actor):
            @endpoint
            def take(self):
                time.sleep(1000)

        if __name__ == "__main__":
            slow = this_host().spawn_procs().spawn("slow", Slow)
            slow.initialized.get()
            count = 0
            threading.Thread(target=tell_when_full, daemon=True).start()
            try:
                while True:
                    slow.take.broadcast()
                    count += 1
            except KeyboardInterrupt:
                print("interrupted", count, flush=True)
        """,
        MONARCH_FLOW_WINDOW_MESSAGES="10",
        MONARCH_FLOW_PATIENCE_SECONDS="1000",
    )
    script.line("full")
    script.send_signal(signal.SIGINT)
    assert script.line("interrupted") == "10"
    assert script.wait() == 0


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("ahead", "size"), [(20_000, 4000), pytest.param(1_000_000, 500, marks=pytest.mark.huge)]
)
@pytest.mark.long
def test_a_sender_far_ahead_of_its_receiver_needs_little_memory(ahead: int, size: int) -> None:
    with configured(flow_window_messages=1024, flow_patience_seconds=0.1):
        mesh: Any = this_host().spawn_procs({"gpus": 1}).spawn("counter", Counter)
        mesh.initialized.get(timeout=SECONDS)
        gate = paused(mesh)
        before = psutil.Process().memory_info().rss
        for number in range(ahead):
            mesh.take.broadcast(number, bytes(size))
        grown = psutil.Process().memory_info().rss - before
        assert grown < 32 * 2**20, f"grown by {grown / 2**20:.0f} MiB"
        gate.send(None)
        assert mesh.read.call_one().get(timeout=500) == ahead


@pytest.mark.parametrize("size", [100, 1000, 100_000])
def test_what_waits_is_as_it_was_when_it_was_sent(size: int) -> None:
    mesh = collectors(2)
    gate = paused(mesh.slice(gpus=1))
    array = np.zeros(size, dtype=np.int64)
    for number in range(2 * WINDOW):
        array[:] = number
        mesh.take_sum.broadcast("array", array)
    gate.send(None)
    seen = mesh.read.call().get(timeout=SECONDS).values()
    assert [each["array"] for each in seen] == [list(range(2 * WINDOW))] * 2
