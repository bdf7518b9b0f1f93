"""Calling endpoints: what is sent, in which order it arrives, and what comes back."""

from __future__ import annotations

import asyncio
import gc
import pickle
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

from monarch.actor import (
    Accumulator,
    Actor,
    ActorError,
    Channel,
    Endpoint,
    Future,
    ProcMesh,
    SupervisionError,
    ValueMesh,
    as_endpoint,
    concurrent_endpoint,
    endpoint,
    send,
    this_host,
    this_proc,
)
from monarch.actor.arguments import check_arguments
from monarch.runtime import process
from tests.actors import Answers, Async, Echo
from tests.support import wait_for

pytestmark = pytest.mark.in_a_world_too


@pytest.fixture
def procs() -> ProcMesh:
    return this_host().spawn_procs({"gpus": 3})


@pytest.fixture
def echo(procs: ProcMesh) -> Any:
    return procs.spawn("echo", Echo)


@pytest.fixture
def one() -> Any:
    return this_proc().spawn("one", Echo)


# Answers


def test_call_gives_the_value_of_each_rank_with_its_point(echo: Any) -> None:
    answer = echo.ranks.call().get()
    assert isinstance(answer, ValueMesh)
    assert [point["gpus"] for point, _ in answer] == [0, 1, 2]
    assert [value[0] for _, value in answer] == [0, 1, 2]
    assert len(answer) == 3
    assert answer.item(gpus=2)[0] == 2
    assert [value[0] for value in answer.slice(gpus=slice(1, 3)).values()] == [1, 2]
    assert [point.rank for point, _ in answer.slice(gpus=slice(1, 3))] == [0, 1]
    assert answer.flatten("all").sizes == {"all": 3}


def test_current_rank_is_that_of_the_slice_and_the_instance_keeps_its_own(echo: Any) -> None:
    answers = echo.slice(gpus=slice(1, 3)).ranks.call().get().values()
    assert [(now, spawned, born) for now, spawned, born, _ in answers] == [(0, 1, 1), (1, 2, 2)]
    assert {size["gpus"] for *_, size in answers} == {2}
    now, spawned, _, size = echo.slice(gpus=2).ranks.call_one().get()
    assert (now, spawned, size) == (0, 2, {})


def test_a_mesh_spawned_on_a_slice_counts_from_zero(procs: ProcMesh) -> None:
    part = procs.slice(gpus=slice(1, 3)).spawn("part", Echo)
    assert [a[:3] for a in part.ranks.call().get().values()] == [(0, 0, 0), (1, 1, 1)]


def test_call_one_wants_exactly_one_member_and_says_so_at_once(echo: Any) -> None:
    with pytest.raises(ValueError, match="call_one requires exactly 1 actor, but mesh has 3"):
        echo.echo.call_one(1)
    assert echo.slice(gpus=1).echo.call_one("x").get() == "x"


def test_choose_asks_one_of_them(echo: Any) -> None:
    pids = set(echo.pid.call().get().values())
    assert {echo.pid.choose().get() for _ in range(40)} == pids


def test_broadcast_returns_nothing_and_reaches_all(echo: Any) -> None:
    assert echo.append.broadcast("x") is None
    assert echo.read.call().get().values() == [["x"]] * 3


def test_stream_yields_the_answers_as_they_arrive(echo: Any, tmp_path: Path) -> None:
    futures = list(echo.wait_for_file.stream(str(tmp_path / "go")))
    assert len(futures) == 3
    with pytest.raises(TimeoutError):
        futures[0].get(timeout=0.01)
    (tmp_path / "go").touch()
    assert sorted(future.get(timeout=20) for future in futures) == [0, 1, 2]


def test_stream_does_not_wait_for_the_slow_ones(procs: ProcMesh, tmp_path: Path) -> None:
    echo = procs.spawn("echo", Echo)
    slow = echo.slice(gpus=0).wait_for_file.call_one(str(tmp_path / "go"))
    first, second, third = echo.ranks.stream()
    assert {first.get(timeout=20)[0], second.get(timeout=20)[0]} == {1, 2}
    with pytest.raises(TimeoutError):
        third.get(timeout=0.01)
    (tmp_path / "go").touch()
    assert third.get(timeout=20)[0] == 0
    assert slow.get(timeout=20) == 0


def test_accumulator_folds_the_answers(echo: Any) -> None:
    total = Accumulator(echo.add, 100, lambda so_far, answer: so_far + answer)
    assert total.accumulate(2).get() == 106


def test_a_repeated_get_gives_the_same_object(one: Any) -> None:
    future = one.echo.call_one([1])
    assert future.get() is future.get()


# Arguments


@pytest.mark.parametrize(
    "call",
    [
        lambda e: e.add.call(),
        lambda e: e.add.call(1, 2),
        lambda e: e.add.broadcast(1, unknown=2),
        lambda e: e.add.choose(1, value=2),
        lambda e: e.add.stream(),
        lambda e: send(e.add, (), {}),
    ],
)
def test_arguments_are_checked_at_the_sender(echo: Any, call: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError):
        call(echo)


def test_arguments_by_name_and_default(one: Any) -> None:
    assert one.add.call_one(1).get() == 1
    assert one.add.call_one(value=2, times=3).get() == 7


def test_constructor_arguments_are_checked_at_the_sender(procs: ProcMesh) -> None:
    with pytest.raises(TypeError):
        procs.spawn("echo", Echo, 1, 2)
    with pytest.raises(TypeError):
        procs.spawn("answers", Answers, 1)


def test_what_cannot_be_pickled_is_refused_at_the_sender(one: Any) -> None:
    with pytest.raises(TypeError, match="pickle"):
        one.echo.call_one(threading.Lock())


@pytest.mark.parametrize("where", ["another process", "this process"])
def test_a_later_change_is_not_seen(procs: ProcMesh, one: Any, where: str) -> None:
    target = one if where == "this process" else procs.slice(gpus=0).spawn("echo", Echo)
    value, array = [1], np.zeros(100_000)
    futures = [target.echo.call_one(value), target.echo.call_one(array)]
    value.append(2)
    array.fill(1)
    assert futures[0].get() == [1]
    assert futures[1].get().sum() == 0


def test_messages_within_a_process_are_copies_too(one: Any) -> None:
    value = [1]
    assert one.echo.call_one(value).get() is not value


def test_big_arrays_come_back_writable(echo: Any) -> None:
    array = np.arange(1_000_000, dtype="float32")
    for back in echo.echo.call({"x": array}).get().values():
        back["x"] += 1
        np.testing.assert_array_equal(back["x"], array + 1)


def test_functions_and_local_classes_travel(echo: Any) -> None:
    class Local:
        def __init__(self, x: int) -> None:
            self.x = x

    back = echo.slice(gpus=0).echo.call_one([Local(3), lambda y: y + 1]).get()
    assert (back[0].x, back[1](1)) == (3, 2)


# Errors


def test_an_endpoint_that_raises_tells_its_caller_and_the_actor_lives(echo: Any) -> None:
    with pytest.raises(ActorError) as caught:
        echo.slice(gpus=1).fail.call_one().get()
    error = caught.value
    assert isinstance(error.exception, ValueError)
    assert "Actor call echo.fail failed." in str(error)
    assert "Traceback of where the remote call failed" in str(error)
    assert "rank 1 does not like it" in str(error)
    assert "in fail" in str(error)
    assert "actor_cell" not in str(error)
    assert echo.echo.call(1).get().values() == [1, 1, 1]


def test_call_raises_the_error_of_the_lowest_rank_after_all_have_answered(
    echo: Any, tmp_path: Path
) -> None:
    echo.slice(gpus=1).wait_for_file.broadcast(str(tmp_path / "go"))
    future = echo.fail.call(1, 2)
    with pytest.raises(TimeoutError):
        future.get(timeout=0.05)
    (tmp_path / "go").touch()
    with pytest.raises(ActorError, match="rank 1 does not like it"):
        future.get(timeout=20)


def test_errors_that_cannot_be_pickled_travel_as_text(one: Any) -> None:
    with pytest.raises(ActorError, match="Odd"):
        one.fail_unpicklably.call_one().get()
    with pytest.raises(ActorError, match="pickle"):
        one.unpicklable.call_one().get()
    assert one.echo.call_one(1).get() == 1


def test_the_cause_is_part_of_the_text(one: Any) -> None:
    def chained() -> None:
        try:
            raise KeyError("the cause")
        except KeyError as cause:
            raise ValueError("the effect") from cause

    class Chained(Actor):
        @endpoint
        def go(self) -> None:
            chained()

    with pytest.raises(ActorError) as caught:
        this_proc().spawn("chained", Chained).go.call_one().get()
    assert "the cause" in str(caught.value)
    assert "the effect" in str(caught.value)


def test_an_actor_error_survives_pickling(one: Any) -> None:
    error = one.fail.call_one().exception()
    assert isinstance(error, ActorError)
    back = pickle.loads(cloudpickle.dumps(error))
    assert str(back) == str(error)
    assert isinstance(back.exception, ValueError)


def test_unknown_and_plain_methods(echo: Any) -> None:
    with pytest.raises(AttributeError, match="nothing_like_that"):
        echo.nothing_like_that
    with pytest.raises(RuntimeError, match=r"Echo\.helper is not annotated as an endpoint"):
        echo.helper(1)
    assert as_endpoint(echo.helper).call(5).get().values() == [5, 5, 5]
    with pytest.raises(TypeError):
        as_endpoint(echo.helper).call()
    with pytest.raises(ValueError, match="expected an method of a spawned actor"):
        as_endpoint(len)


# Futures


def test_a_timeout_consumes_nothing(one: Any, tmp_path: Path) -> None:
    future = one.wait_for_file.call_one(str(tmp_path / "go"))
    for _ in range(3):
        with pytest.raises(TimeoutError):
            future.get(timeout=0.01)
    with pytest.raises(TimeoutError):
        future.exception(timeout=0.01)
    assert not future.done()
    (tmp_path / "go").touch()
    assert future.get(timeout=20) == 0
    assert future.done()
    assert future.exception() is None


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf")])
def test_a_timeout_must_be_a_number_of_seconds(one: Any, timeout: float) -> None:
    with pytest.raises(ValueError, match="non-negative, finite"):
        one.echo.call_one().get(timeout=timeout)


def test_a_timeout_of_zero_looks_and_does_not_wait(one: Any) -> None:
    future = one.echo.call_one(3)
    wait_for(future.done)
    assert future.get(timeout=0) == 3


def test_futures_are_not_made_by_hand() -> None:
    with pytest.raises(TypeError):
        Future()


def test_what_follows_a_future_is_done_when_its_value_is_asked_for(echo: Any) -> None:
    asked: list[Any] = []

    def count(answers: Any) -> int:
        asked.append(answers.values())
        return len(answers.values())

    future = echo.echo.call(7).then(count)
    future.result(20)
    assert future.get() == 3
    assert asked == [[7, 7, 7]]
    with pytest.raises(ActorError):
        echo.fail.call().then(count).get()
    assert asked == [[7, 7, 7]]


def test_a_future_may_be_awaited_again_and_again(echo: Any) -> None:
    async def main() -> None:
        future = echo.echo.call(7)
        assert (await future).values() == [7, 7, 7]
        assert (await future).values() == [7, 7, 7]
        assert (await future.as_asyncio()).values() == [7, 7, 7]
        several = await asyncio.gather(*(echo.echo.call(i) for i in range(20)))
        assert [answer.item(gpus=0) for answer in several] == list(range(20))
        with pytest.raises(ActorError):
            await echo.fail.call()

    asyncio.run(main())


def test_awaiting_with_a_timeout_consumes_nothing(one: Any, tmp_path: Path) -> None:
    async def main() -> None:
        future = one.wait_for_file.call_one(str(tmp_path / "go"))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(future.as_asyncio(), 0.01)
        (tmp_path / "go").touch()
        assert await future == 0

    asyncio.run(main())


def test_many_threads_may_wait_for_one_future(one: Any, tmp_path: Path) -> None:
    future = one.wait_for_file.call_one(str(tmp_path / "go"))
    got: list[int] = []
    threads = [threading.Thread(target=lambda: got.append(future.get(20))) for _ in range(5)]
    for thread in threads:
        thread.start()
    (tmp_path / "go").touch()
    for thread in threads:
        thread.join()
    assert got == [0] * 5


def test_get_inside_a_running_loop_warns(one: Any, tmp_path: Path) -> None:
    async def main() -> None:
        future = one.wait_for_file.call_one(str(tmp_path / "go"))
        with (
            pytest.warns(UserWarning, match="called from within an active event loop"),
            pytest.raises(TimeoutError),
        ):
            future.get(timeout=0.01)
        (tmp_path / "go").touch()
        await future

    asyncio.run(main())


# Order


@pytest.mark.parametrize("cls", [Echo, Async], ids=["sync", "async"])
def test_calls_broadcasts_and_slices_keep_the_order_of_their_sender(
    procs: ProcMesh, cls: type
) -> None:
    class Log(Actor):
        def __init__(self) -> None:
            self.log: list[int] = []

        @endpoint
        def append(self, value: int) -> None:
            self.log.append(value)

        @endpoint
        def read(self) -> list[int]:
            return self.log

    class AsyncLog(Actor):
        def __init__(self) -> None:
            self.log: list[int] = []

        @endpoint
        async def append(self, value: int) -> None:
            await asyncio.sleep(0)
            self.log.append(value)

        @endpoint
        async def read(self) -> list[int]:
            return self.log

    log = procs.spawn("log", Log if cls is Echo else AsyncLog)
    ways = [
        log.append.broadcast,
        log.append.call,
        lambda value: list(log.append.stream(value)),
        lambda value: [log.slice(gpus=i).append.call_one(value) for i in range(3)],
        lambda value: [log.slice(gpus=slice(i, i + 1)).append.broadcast(value) for i in range(3)],
    ]
    for value in range(200):
        ways[value % len(ways)](value)
    assert log.read.call().get().values() == [list(range(200))] * 3


def test_casts_of_two_threads_reach_all_members_in_one_order(echo: Any) -> None:
    def cast(who: str) -> None:
        for i in range(100):
            echo.append.broadcast((who, i))

    threads = [threading.Thread(target=cast, args=(who,)) for who in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    logs = echo.read.call().get().values()
    assert logs[0] == logs[1] == logs[2]
    assert len(logs[0]) == 200


def test_what_is_sent_before_the_procs_are_up_arrives_in_order() -> None:
    early = this_host().spawn_procs({"gpus": 2}).spawn("early", Echo)
    for i in range(50):
        early.append.broadcast(i)
    assert early.read.call().get().values() == [list(range(50))] * 2


# Ports and channels


def test_an_explicit_port_answers_for_the_endpoint(procs: ProcMesh) -> None:
    answers = procs.spawn("answers", Answers)
    assert answers.now.call(5).get().values() == [5, 5, 5]
    assert answers.slice(gpus=0).from_a_thread.call_one("later").get(timeout=20) == "later"
    with pytest.raises(KeyError, match="sent"):
        answers.slice(gpus=0).with_an_error.call_one().get(timeout=20)
    assert answers.slice(gpus=1).often.call_one(3).get() == 0


def test_a_channel_whose_receiver_is_gone_is_forgotten() -> None:
    calls = process.current().node.calls
    num_before = len(calls)
    channels = [Channel.open() for _ in range(50)]
    waiting = channels[0][1].recv()
    first = channels[0][0]
    assert len(calls) == num_before + 50
    del channels
    gc.collect()
    # One has somebody who waits, though without a receiver.
    assert len(calls) == num_before + 1
    first.send("late")
    assert waiting.get(timeout=30) == "late"
    del waiting
    gc.collect()
    assert len(calls) == num_before


def test_send_takes_all_answers_into_a_port_with_their_ranks(procs: ProcMesh) -> None:
    answers = procs.spawn("answers", Answers)
    port, receiver = Channel.open_ranked()
    send(answers.often, (2,), {}, port)
    got = sorted(receiver.recv().get(timeout=20) for _ in range(6))
    assert got == [(rank, number) for rank in range(3) for number in range(2)]
    send(answers.now, ("x",), {}, port, selection="choose")
    assert receiver.recv().get(timeout=20)[1] == "x"
    with pytest.raises(ValueError, match="selection"):
        send(answers.now, ("x",), {}, port, selection="some")


def test_a_channel_carries_values_and_errors_in_order() -> None:
    port, receiver = Channel[int].open()
    early = receiver.recv()
    for i in range(5):
        port.send(i)
    port.exception(ValueError("sent"))
    assert early.get() == 0
    assert [receiver.recv().get() for _ in range(4)] == [1, 2, 3, 4]
    with pytest.raises(ValueError, match="sent"):
        receiver.recv().get()


def test_a_port_may_be_sent_to_an_actor_and_used_there(procs: ProcMesh) -> None:
    class Sends(Actor):
        @endpoint
        def use(self, port: Any, values: list[int]) -> None:
            for value in values:
                port.send(value)

    port, receiver = Channel.open()
    procs.slice(gpus=0).spawn("sends", Sends).use.broadcast(port, [1, 2, 3])
    assert [receiver.recv().get(timeout=20) for _ in range(3)] == [1, 2, 3]


@pytest.mark.parametrize("once", [False, True])
def test_a_received_value_is_claimed_when_it_is_asked_for(once: bool) -> None:
    port, receiver = Channel.open(once=once)
    port.send("first")
    receiver.recv()
    assert receiver.recv().get(timeout=20) == "first"


def test_values_go_to_whoever_asks_first() -> None:
    port, receiver = Channel.open()
    early, late = receiver.recv(), receiver.recv()
    port.send(1)
    port.send(2)
    assert late.get(timeout=20) == 1
    assert early.get(timeout=20) == 2
    assert late.get() == 1


def test_who_gives_up_waiting_takes_no_value_along() -> None:
    port, receiver = Channel.open()
    with pytest.raises(TimeoutError):
        receiver.recv().get(timeout=0)

    async def give_up() -> None:
        await asyncio.wait_for(receiver.recv(), 0.001)

    with pytest.raises((TimeoutError, asyncio.TimeoutError)):
        asyncio.run(give_up())
    gc.collect()
    port.send("for whoever is left")
    assert receiver.recv().get(timeout=20) == "for whoever is left"


def test_a_receiver_that_is_kept_but_has_given_up_takes_no_value_either() -> None:
    port, receiver = Channel.open()
    kept = receiver.recv()
    with pytest.raises(TimeoutError):
        kept.get(timeout=0)
    port.send(1)
    assert receiver.recv().get(timeout=20) == 1
    port.send(2)
    assert kept.get(timeout=20) == 2


@pytest.mark.parametrize("wraps", [False, True])
def test_a_value_that_comes_as_its_receiver_is_cancelled_is_the_next_ones(wraps: bool) -> None:
    port, receiver = Channel.open()

    async def receive(received: Future[Any]) -> Any:
        return await (received.as_asyncio() if wraps else received)

    async def main() -> Any:
        received = receiver.recv()
        waits = asyncio.ensure_future(receive(received))
        await asyncio.sleep(0)  # It runs, and waits.
        port.send(1)
        port.send(2)
        wait_for(received.done)  # The loop stands still: it does not hear of that.
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits
        if wraps:
            await asyncio.sleep(0)
        return [await asyncio.wait_for(receiver.recv(), 20) for _ in range(2)]

    assert asyncio.run(main()) == [1, 2]


def test_a_channel_for_one_value_takes_one() -> None:
    port, receiver = Channel.open(once=True)
    port.send(1)
    port.send(2)
    assert receiver.recv().get() == 1
    with pytest.raises(TimeoutError):
        receiver.recv().get(timeout=0.02)


def test_a_channel_inside_an_actor(procs: ProcMesh) -> None:
    class Opens(Actor):
        @endpoint
        def ask(self, other: Any) -> Any:
            port, receiver = Channel.open()
            send(other.echo, ("inside",), {}, port)
            return receiver.recv().get(timeout=20)

    other = procs.slice(gpus=1).spawn("other", Echo)
    opens = procs.slice(gpus=0).spawn("opens", Opens)
    assert opens.ask.call_one(other).get(timeout=20) == "inside"


# Actors that call actors


def test_a_reference_may_be_sent_and_called_from_anywhere(procs: ProcMesh, echo: Any) -> None:
    class Relay(Actor):
        @endpoint
        def relay(self, mesh: Any, value: Any) -> Any:
            return mesh.echo.call(value).get(timeout=20).values()

    relay = procs.spawn("relay", Relay)
    for answer in relay.relay.call(echo, "hi").get(timeout=30).values():
        assert answer == ["hi"] * 3
    part = echo.slice(gpus=slice(1, 3))
    assert relay.slice(gpus=0).relay.call_one(part, 1).get(timeout=20) == [1, 1]
    here = this_proc().spawn("here", Echo)
    assert relay.slice(gpus=0).relay.call_one(here, 2).get(timeout=20) == [2]


def test_a_pickled_reference_is_the_same_mesh(echo: Any) -> None:
    copy = pickle.loads(cloudpickle.dumps(echo))
    copy.append.broadcast("through the copy")
    assert echo.read.call().get().values() == [["through the copy"]] * 3
    assert copy.extent == echo.extent


def test_an_endpoint_is_an_endpoint(echo: Any) -> None:
    assert isinstance(echo.echo, Endpoint)


# Sync and async


def test_a_class_that_mixes_sync_and_async_endpoints_is_refused(procs: ProcMesh) -> None:
    class Mixed(Actor):
        @endpoint
        def sync(self) -> None: ...

        @endpoint
        async def other(self) -> None: ...

    class SyncWithAsyncCleanup(Actor):
        @endpoint
        def sync(self) -> None: ...

        async def __cleanup__(self, error: Exception | None) -> None: ...

    class AsyncWithSyncCleanup(Actor):
        @endpoint
        async def other(self) -> None: ...

        def __cleanup__(self, error: Exception | None) -> None: ...

    class SyncWithConcurrent(Actor):
        @endpoint
        def sync(self) -> None: ...

        @concurrent_endpoint
        async def other(self) -> None: ...

    for cls in (Mixed, SyncWithAsyncCleanup, AsyncWithSyncCleanup, SyncWithConcurrent):
        with pytest.raises(ValueError, match="mixes both async and sync endpoints"):
            procs.spawn("mixed", cls)


@pytest.mark.parametrize("name", ["slice", "stop", "size", "flatten", "initialized", "extent"])
def test_an_endpoint_may_not_hide_what_a_mesh_has(procs: ProcMesh, name: str) -> None:
    cls = type("Collides", (Actor,), {name: endpoint(lambda self: None)})
    with pytest.raises(ValueError, match="collides with an endpoint name"):
        procs.spawn("collides", cls)


def test_only_actors_can_be_spawned(procs: ProcMesh) -> None:
    with pytest.raises(ValueError, match="must subclass"):
        procs.spawn("dict", dict)


def test_sync_actors_have_a_thread_each_and_keep_it(procs: ProcMesh) -> None:
    one, other = (procs.slice(gpus=0).spawn(name, Echo) for name in ("one", "other"))
    threads = [mesh.thread.call_one().get() for mesh in (one, other, one)]
    assert threads[0] == threads[2] != threads[1]


class KeepsLocal(Actor):
    """Keeps what belongs to its thread."""

    def __init__(self) -> None:
        self.local = threading.local()
        self.local.value = 1

    @endpoint
    def value(self) -> int:
        value: int = self.local.value
        return value


class KeepsLocalAsync(Actor):
    """Keeps what belongs to its thread and to its loop."""

    def __init__(self) -> None:
        self.local = threading.local()
        self.local.value = 0
        self.task = asyncio.get_running_loop().create_task(self.count())

    async def count(self) -> None:
        self.local.value += 1

    @endpoint
    async def value(self) -> int:
        await self.task
        value: int = self.local.value
        return value


@pytest.mark.parametrize("cls", [KeepsLocal, KeepsLocalAsync])
def test_a_constructor_runs_where_the_endpoints_do(procs: ProcMesh, cls: type) -> None:
    assert set(procs.spawn("local", cls).value.call().get(timeout=20).values()) == {1}


def test_get_inside_a_sync_endpoint_is_fine(procs: ProcMesh) -> None:
    class Caller(Actor):
        @endpoint
        def call(self, other: Any) -> Any:
            with pytest.raises(RuntimeError):
                asyncio.get_running_loop()
            return other.echo.call_one(3).get(timeout=20)

    one = procs.slice(gpus=0)
    assert one.spawn("c", Caller).call.call_one(one.spawn("e", Echo)).get(timeout=20) == 3


def test_get_inside_an_async_endpoint_warns(procs: ProcMesh) -> None:
    waiting = procs.slice(gpus=0).spawn("async", Async)
    other = procs.slice(gpus=1).spawn("echo", Echo)
    (warning,) = waiting.block.call_one(other).get(timeout=20)
    assert "active event loop" in warning


def test_async_endpoints_of_one_actor_do_not_interleave(procs: ProcMesh) -> None:
    actor = procs.slice(gpus=0).spawn("async", Async)
    for name in "abc":
        actor.task.broadcast(name)
    log = actor.read.call_one().get()
    assert log == [f"{what} {name}" for name in "abc" for what in ("start", "end")]


@pytest.mark.long
def test_endpoints_that_never_wait_leave_room_for_other_actors(procs: ProcMesh) -> None:
    class Hogs(Actor):
        """Its messages keep coming, and none of them awaits anything."""

        def __init__(self) -> None:
            self.is_done = False

        @endpoint
        async def hog(self, itself: Any) -> None:
            time.sleep(0.002)  # noqa: ASYNC251 - the loop is to be kept busy
            if not self.is_done:
                itself.hog.broadcast(itself)

        @endpoint
        async def end(self) -> None:
            self.is_done = True

    class Other(Actor):
        @endpoint
        async def end(self, hogs: Any) -> None:
            await hogs.end.call_one()

    one = procs.slice(gpus=0)
    hogs, other = one.spawn("hogs", Hogs), one.spawn("other", Other)
    for _ in range(3):
        hogs.hog.broadcast(hogs)
    other.end.call_one(hogs).get(timeout=20)


def test_async_actors_of_one_process_interleave(procs: ProcMesh) -> None:
    class Holds(Actor):
        """Its first message ends only once the other actor has run its own."""

        @endpoint
        async def hold(self, other: Any) -> str:
            return "held, and " + str(await other.echo.call_one("heard of the other"))

    holds, other = (procs.slice(gpus=0).spawn(cls.__name__, cls) for cls in (Holds, Async))
    held = [holds.hold.call_one(other) for _ in range(10)]
    assert [one.get(timeout=20) for one in held] == ["held, and heard of the other"] * 10


def test_async_actors_call_each_other_within_a_process(procs: ProcMesh) -> None:
    one, other = (procs.slice(gpus=0).spawn(name, Async) for name in ("one", "other"))
    assert one.meet.call_one(other).get(timeout=20) == "met you"


def test_concurrent_endpoints_let_the_next_message_in(procs: ProcMesh) -> None:
    actor = procs.slice(gpus=0).spawn("async", Async)
    waiting = [actor.wait.call_one(name) for name in "ab"]
    actor.release.call_one("b").get(timeout=20)
    assert waiting[1].get(timeout=20) == "b"
    assert not waiting[0].done()
    actor.release.call_one("a").get(timeout=20)
    assert waiting[0].get(timeout=20) == "a"
    assert actor.read.call_one().get()[:2] == ["wait a", "wait b"]
    with pytest.raises(ActorError, match="later"):
        actor.fail_later.call_one().get(timeout=20)
    assert actor.echo.call_one(1).get() == 1


def test_what_a_concurrent_endpoint_may_wrap() -> None:
    with pytest.raises(ValueError, match="can only wrap async endpoints"):
        concurrent_endpoint(lambda self: None)

    @endpoint
    async def wrapped(self: Any) -> None: ...

    with pytest.raises(ValueError, match="does not wrap @endpoint"):
        concurrent_endpoint(wrapped)


def test_a_pending_concurrent_task_is_cancelled_when_the_actor_stops(procs: ProcMesh) -> None:
    actor = procs.slice(gpus=0).spawn("async", Async)
    pending = actor.wait.call_one("for ever")
    actor.stop().get(timeout=20)
    with pytest.raises(SupervisionError):
        pending.get(timeout=20)


def test_an_actors_own_methods_are_plain_functions() -> None:
    assert Echo.echo.__name__ == "echo"
    local = Echo.__new__(Echo)
    assert local.echo(3) == 3


def test_arguments_are_checked_against_the_newest_defaults() -> None:
    """A reload gives a function new defaults in place; its code may be what it was."""

    def method(self: object, plain: int, *, named: int) -> None: ...

    with pytest.raises(TypeError, match="named"):
        check_arguments(method, 1, (1,), {}, "method")
    method.__kwdefaults__ = {"named": 1}
    check_arguments(method, 1, (1,), {}, "method")
    method.__defaults__ = (1,)
    check_arguments(method, 1, (), {}, "method")
