"""Large messages between two nodes, by both ways: shared memory, and chunks."""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

from monarch.actor import Actor, ActorError, endpoint, this_host
from monarch.config import configured
from monarch.errors import WireError
from monarch.net.segment import NUM_HOLDS
from monarch.net.segment_door import door_path, hand_over
from monarch.runtime import process
from monarch.runtime.node import Node
from monarch.wire import payload
from monarch.wire.codec import Envelope, pack_header
from monarch.wire.keys import JobKeys
from monarch.wire.message import (
    BulkChunk,
    Call,
    Consignment,
    Credit,
    FoldedReply,
    Heartbeat,
    Message,
    Parcel,
    ProcDown,
    Replies,
    StopActor,
)
from tests.support import wait_for

WAYS = ["shared memory", "chunks", "another machine"]
KEYS = JobKeys(bytes(range(32)))
LARGE = 3 * 2**20


class End:
    """A node that keeps what it receives."""

    def __init__(self, uid: str, folder: Path, is_far: bool = False) -> None:
        self.node = Node(uid, KEYS)
        self.url = "tcp://127.0.0.1:0" if is_far else f"ipc://{folder}/{uid}"
        if is_far:
            self.node.replace_address(machine=f"the machine of {uid}")
        self.calls: list[Envelope[Message]] = []
        self.heartbeats: list[Envelope[Message]] = []
        self.node.handle(Call, self.calls.append)
        self.node.handle(Heartbeat, self.heartbeats.append)
        self.node.start()

    def listen(self) -> End:
        self.node.listen(self.url)
        return self

    def send(self, to: End, value: Any, method: str = "") -> None:
        data = payload.dump(value)
        self.node.send(to.node.address, self.call(method), data.data, data.buffers)

    def call(self, method: str = "") -> Call:
        return Call(actor="actor", method=method, rank=0, sender=self.node.uid)

    def take(self, count: int) -> list[Any]:
        """The values of the first ``count`` calls, which are forgotten."""
        wait_for(lambda: len(self.calls) >= count, what=f"{count} calls")
        taken, self.calls[:count] = self.calls[:count], []
        return [payload.load(call.payload, call.buffers) for call in taken]

    @property
    def methods(self) -> list[str]:
        return [call.message.method for call in self.calls if isinstance(call.message, Call)]

    @property
    def pool(self) -> Any:
        return self.node.bulk_sender.pool

    def close(self) -> None:
        self.calls.clear()
        self.node.close()


Make = Callable[..., End]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    ends: list[End] = []
    numbers = itertools.count()

    def make(is_far: bool = False, **settings: int) -> End:
        with configured(**settings):
            ends.append(End(f"n{next(numbers)}", tmp_path, is_far))
        return ends[-1]

    yield make
    for end in ends:
        end.close()
    ends.clear()


def by(way: str) -> dict[str, Any]:
    sizes = {"shared_memory_bytes": 0 if way == "chunks" else 2**30}
    return {"is_far": way == "another machine", **sizes}


@pytest.fixture(params=WAYS)
def pair(request: pytest.FixtureRequest, make: Make) -> tuple[End, End]:
    sender, receiver = make(**by(request.param)).listen(), make(**by(request.param)).listen()
    # Whoever wants credit must be known.
    sender.send(receiver, "hello")
    receiver.take(1)
    return sender, receiver


@pytest.mark.parametrize("size", [65_535, 65_536, 2**21 - 1, 2**21, 2**21 + 1, 20 * 2**20])
def test_a_large_message_arrives_whole_and_belongs_to_the_receiver(
    pair: tuple[End, End], size: int
) -> None:
    sender, receiver = pair
    value = [np.arange(size, dtype=np.uint8), b"x" * size, np.ones(7), "small"]
    sender.send(receiver, value)
    (back,) = receiver.take(1)
    np.testing.assert_array_equal(back[0], value[0])
    np.testing.assert_array_equal(back[2], value[2])
    assert (back[1], back[3]) == (value[1], value[3])
    back[0][:] = 1


@pytest.mark.parametrize("value", ["x" * LARGE, list(range(LARGE // 8))])
def test_a_large_pickle_without_buffers_arrives(pair: tuple[End, End], value: Any) -> None:
    sender, receiver = pair
    sender.send(receiver, value)
    assert receiver.take(1) == [value]


def test_large_and_small_messages_stay_in_order(pair: tuple[End, End]) -> None:
    sender, receiver = pair
    sizes = [10, LARGE, 10, 70_000, 1, LARGE, 5 * LARGE, 2, 3]
    for index, size in enumerate(sizes * 3):
        sender.send(receiver, (index, bytes(size)))
    back = receiver.take(3 * len(sizes))
    assert [(index, len(data)) for index, data in back] == list(enumerate(sizes * 3))


def test_threads_keep_each_their_own_order(pair: tuple[End, End]) -> None:
    sender, receiver = pair

    def run(who: int) -> None:
        for index in range(10):
            sender.send(receiver, (who, index, bytes(LARGE if index % 3 else 10)))

    threads = [threading.Thread(target=run, args=(who,)) for who in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    back = receiver.take(30)
    for who in range(3):
        assert [index for other, index, _ in back if other == who] == list(range(10))


def test_a_later_change_is_not_seen(pair: tuple[End, End]) -> None:
    sender, receiver = pair
    array, data = np.zeros(LARGE, np.uint8), bytearray(LARGE)
    sender.send(receiver, (array, data))
    array[:] = 1
    data.extend(b"more")
    data[0] = 1
    back = receiver.take(1)[0]
    assert not back[0].any()
    assert back[1] == bytes(LARGE)


def test_what_waits_for_a_process_to_come_up_arrives_first(
    pair: tuple[End, End], make: Make
) -> None:
    sender, _ = pair
    late = make(shared_memory_bytes=2**30)
    sender.node.address_book.expect(late.node.address)
    value = np.arange(LARGE, dtype=np.uint8)
    expected = value.copy()
    sender.send(late, value, "1")
    value[:] = 0
    sender.send(late, 2, "2")
    late.listen()
    sender.node.address_book.peer_up(late.node.address)
    sender.send(late, 3, "3")
    back = late.take(3)
    np.testing.assert_array_equal(back[0], expected)
    assert back[1:] == [2, 3]


def test_to_ourselves_a_message_is_a_copy_as_well(pair: tuple[End, End]) -> None:
    sender, _ = pair
    for size in (10_000, LARGE):
        array, data = np.zeros(size, np.uint8), bytes(LARGE)
        sender.send(sender, (array, data))
        array[:] = 1
        back = sender.take(1)[0]
        assert not back[0].any()
        assert back[1] == data
        back[0][:] = 2


def test_regions_are_used_again_when_the_receiver_is_done(make: Make) -> None:
    sender, receiver = make().listen(), make().listen()
    for index in range(30):
        sender.send(receiver, np.full(LARGE, index, np.uint8))
        array = receiver.take(1)[0]
        assert (array[0], array[-1]) == (index, index)
        del array
    # Who delivered the last one may have it in hand for a moment.
    wait_for(lambda: sender.pool.num_in_use == 0)
    assert len(sender.pool) == 1


def test_what_a_receiver_keeps_stays_as_it_is(make: Make) -> None:
    """With more of it than the pool has room for: the rest goes in chunks."""
    sender = make(shared_memory_bytes=12 * LARGE).listen()
    receiver = make().listen()
    kept = []
    for index in range(30):
        sender.send(receiver, np.full(LARGE, index, np.uint8))
        kept += receiver.take(1)
    assert 5 < sender.pool.num_in_use < 12
    for index, array in enumerate(kept):
        assert (array == index).all()


def cast(sender: End, receivers: list[End], value: Any, announced: bool) -> None:
    data = payload.dump(value)
    if announced:
        data.for_many(len(receivers))
    for receiver in receivers:
        sender.node.send(receiver.node.address, sender.call(), data.data, data.buffers)


@pytest.mark.parametrize("announced", [True, False])
def test_a_cast_is_copied_once_and_no_receiver_sees_what_another_writes(
    make: Make, announced: bool
) -> None:
    sender = make().listen()
    receivers = [make().listen() for _ in range(4)]
    for turn in range(3):
        cast(sender, receivers, np.full(LARGE, turn, np.uint8), announced)
        # An unannounced one has gone to its first receiver alone before it is known to be a cast.
        assert sender.pool.num_in_use == (1 if announced else 2)
        for index, receiver in enumerate(receivers):
            array = receiver.take(1)[0]
            assert (array == turn).all()
            array[:] = 100 + index
        del array
        wait_for(lambda: sender.pool.num_in_use == 0)


def test_a_cast_to_near_and_far_arrives_at_all(make: Make) -> None:
    sender, near, far = make().listen(), make().listen(), make().listen()
    far.node.replace_address(machine="another")
    for _ in range(2):
        cast(sender, [near, far, sender, near], np.arange(LARGE, dtype=np.uint8), True)
        for end, count in ((near, 2), (far, 1), (sender, 1)):
            for array in end.take(count):
                np.testing.assert_array_equal(array, np.arange(LARGE, dtype=np.uint8))
        del array


def test_a_dead_receiver_holds_nothing(make: Make) -> None:
    sender, receiver = make().listen(), make().listen()
    sender.send(receiver, np.zeros(LARGE))
    kept = receiver.take(1)
    assert sender.pool.num_in_use == 1
    sender.node.peer_down.report(ProcDown(receiver.node.uid, "it was killed"))
    assert sender.pool.num_in_use == 0
    sender.send(receiver, np.zeros(LARGE))
    assert sender.pool.num_in_use == 0
    del kept


def test_what_a_dead_sender_sent_stays_valid(make: Make) -> None:
    sender, receiver = make().listen(), make().listen()
    sender.send(receiver, np.full(LARGE, 5, np.uint8))
    (array,) = receiver.take(1)
    sender.close()
    receiver.node.peer_down.report(ProcDown(sender.node.uid, "it was killed"))
    assert (array == 5).all()
    array += 1


@pytest.fixture
def halted(make: Make) -> tuple[End, End, list[Envelope[Message]]]:
    """Two ends without shared memory, the sender of which keeps the credits it gets to itself."""
    sender, receiver = make(shared_memory_bytes=0).listen(), make().listen()
    credits: list[Envelope[Message]] = []
    sender.node.handle(Credit, credits.append)
    sender.send(receiver, 0, "hello")
    receiver.take(1)
    return sender, receiver, credits


def test_bulk_on_its_way_holds_back_its_senders_calls_and_nothing_else(
    halted: tuple[End, End, list[Envelope[Message]]], make: Make
) -> None:
    sender, receiver, credits = halted
    sender.send(receiver, bytes(5 * LARGE), "large")
    wait_for(lambda: credits)
    sender.send(receiver, 1, "small")
    sender.node.send(receiver.node.address, Heartbeat(sender.node.uid))
    other = make().listen()
    other.send(receiver, 2, "other")
    wait_for(lambda: receiver.heartbeats and receiver.methods)
    assert receiver.methods == ["other"]
    sender.node.on(Credit, sender.node.bulk_sender.on_credit)
    for envelope in credits:
        sender.node.loop.call_soon(lambda envelope=envelope: sender.node.dispatch(envelope))
    wait_for(lambda: len(receiver.calls) == 3)
    assert receiver.methods == ["other", "large", "small"]


def test_no_more_is_on_its_way_than_was_asked_for(
    halted: tuple[End, End, list[Envelope[Message]]],
) -> None:
    sender, receiver, credits = halted
    chunks: list[Envelope[Message]] = []
    receiver.node.handle(BulkChunk, chunks.append)
    sender.send(receiver, bytes(100 * LARGE), "large")
    wait_for(lambda: credits)
    sender.node.bulk_sender.on_credit(credits[0].message)
    sender.node.send(receiver.node.address, Heartbeat(sender.node.uid))
    wait_for(lambda: receiver.heartbeats)
    assert len(chunks) == 4
    assert all(sum(map(len, chunk.buffers)) == 2 * 2**20 for chunk in chunks)


def test_a_sender_that_dies_midway_takes_its_message_and_what_came_after_with_it(
    halted: tuple[End, End, list[Envelope[Message]]],
) -> None:
    sender, receiver, credits = halted
    sender.send(receiver, bytes(5 * LARGE), "large")
    sender.send(receiver, 1, "small")
    wait_for(lambda: credits)
    node = receiver.node
    wait_for(lambda: len(node.bulk_receiver.order))
    node.peer_down.report(ProcDown(sender.node.uid, "it was killed"))
    wait_for(lambda: not node.bulk_receiver.order)
    assert not receiver.calls
    assert not node.bulk_receiver._inbound
    assert node.bulk_receiver._bytes_expected == 0


def test_a_receiver_that_dies_midway_is_sent_nothing_more(
    halted: tuple[End, End, list[Envelope[Message]]],
) -> None:
    sender, receiver, credits = halted
    sender.send(receiver, bytes(5 * LARGE), "large")
    wait_for(lambda: credits)
    assert sender.node.bulk_sender._outbound
    sender.node.peer_down.report(ProcDown(receiver.node.uid, "it was killed"))
    wait_for(lambda: not sender.node.bulk_sender._outbound)


@pytest.mark.parametrize("way", WAYS)
def test_a_message_beyond_the_limit_is_refused_where_it_is_sent(make: Make, way: str) -> None:
    sender, receiver = make(max_message_bytes=LARGE, **by(way)).listen(), make().listen()
    with pytest.raises(ValueError, match=r"beyond the limit of 3145728.*max_message_bytes"):
        sender.send(receiver, bytes(LARGE + 1))
    sender.send(receiver, bytes(LARGE - 1000))
    assert len(receiver.take(1)[0]) == LARGE - 1000


def test_a_receiver_with_a_lower_limit_says_so_to_whoever_wants_the_value(make: Make) -> None:
    sender, receiver = make(**by("chunks")).listen(), make(max_message_bytes=LARGE).listen()
    sender.send(receiver, bytes(2 * LARGE))
    sender.send(receiver, 1)
    wait_for(lambda: len(receiver.calls) == 2)
    with pytest.raises(WireError, match="max_message_bytes is 3145728"):
        receiver.take(1)
    assert receiver.take(1) == [1]
    wait_for(lambda: not sender.node.bulk_sender._outbound)


def test_all_that_arrives_at_once_is_bounded_like_one_message(make: Make) -> None:
    sender = make(**by("chunks")).listen()
    receiver = make(max_message_bytes=5 * LARGE).listen()
    credits: list[Envelope[Message]] = []
    sender.node.handle(Credit, credits.append)
    for index in range(4):
        sender.send(receiver, bytes(2 * LARGE), str(index))
    wait_for(lambda: len(receiver.node.bulk_receiver._inbound) == 4 and len(credits) == 2)
    assert receiver.node.bulk_receiver._bytes_expected < 5 * LARGE
    sender.node.on(Credit, sender.node.bulk_sender.on_credit)
    for envelope in list(credits):
        sender.node.loop.call_soon(lambda envelope=envelope: sender.node.dispatch(envelope))
    wait_for(lambda: len(receiver.calls) == 4)
    assert receiver.methods == ["0", "1", "2", "3"]


def test_what_is_larger_than_a_frame_may_be_arrives_over_tcp(make: Make) -> None:
    """A listener takes in little at once, of whoever it is, and yet messages of any size."""
    sender, receiver = (make(is_far=True, max_frame_bytes=4 * 2**20).listen() for _ in range(2))
    sender.send(receiver, "hello")
    array = np.arange(9 * 2**20, dtype=np.uint8)
    sender.send(receiver, [array, "x" * (5 * 2**20)])
    sender.send(receiver, "after it")
    back = receiver.take(3)
    np.testing.assert_array_equal(back[1][0], array)
    assert back[1][1] == "x" * (5 * 2**20)
    assert back[2] == "after it"


def test_a_listener_takes_in_64_mib_at_once_at_most(make: Make) -> None:
    receiver = make(is_far=True).listen()
    (listener,) = receiver.node._transport._tcp._listeners  # type: ignore[attr-defined]
    assert listener.getsockopt(zmq.MAXMSGSIZE) == 64 * 2**20


def test_memory_that_can_be_taken_away_again_is_not_read(make: Make, tmp_path: Path) -> None:
    """Its receiver would end by SIGBUS; so it goes without, and says so where the value is."""
    receiver = make().listen()
    size = NUM_HOLDS + 100_000
    trap = os.memfd_create("trap", os.MFD_ALLOW_SEALING)
    os.ftruncate(trap, size)
    hand_over(door_path(receiver.url), "stranger 1", trap)
    parcel = Parcel(
        sender="stranger",
        segment=1,
        offset=NUM_HOLDS,
        hold=0,
        is_shared=False,
        has_payload=False,
        sizes=(100_000,),
    )
    envelope = Envelope(receiver.node.uid, parcel, pack_header(receiver.call()), (b"",))
    receiver.node.loop.call_soon(lambda: receiver.node.receive(envelope))
    wait_for(lambda: receiver.calls)
    os.ftruncate(trap, 0)
    with pytest.raises(WireError, match="cannot be mapped"):
        receiver.take(1)
    os.close(trap)


def test_what_does_not_fit_together_is_an_error_where_the_value_is_wanted(
    make: Make,
) -> None:
    receiver = make().listen()
    header = pack_header(receiver.call())
    forged = [
        Parcel(
            sender="stranger",
            segment=1,
            offset=16384,
            hold=0,
            is_shared=False,
            has_payload=False,
            sizes=(100_000,),
        ),
        Parcel(
            sender="stranger",
            segment=1,
            offset=-4096,
            hold=0,
            is_shared=False,
            has_payload=False,
            sizes=(100_000,),
        ),
        Parcel(
            sender="stranger",
            segment=1,
            offset=16385,
            hold=0,
            is_shared=True,
            has_payload=False,
            sizes=(100_000,),
        ),
        Consignment("stranger", 1, False, ()),
        Consignment("stranger", 2, False, (-5,)),
        Consignment("stranger", 4, False, (-5, 100)),
        Consignment("stranger", 3, False, (2**62,)),
    ]
    for message in forged:
        envelope = Envelope(receiver.node.uid, message, header, (b"",))
        receiver.node.loop.call_soon(lambda envelope=envelope: receiver.node.receive(envelope))
    wait_for(lambda: len(receiver.calls) == len(forged))
    for _ in forged:
        with pytest.raises(WireError, match="a large message could not be received"):
            receiver.take(1)
    assert not receiver.node.bulk_receiver.order


def test_more_than_was_announced_breaks_that_message_only(make: Make) -> None:
    receiver = make().listen()
    header = pack_header(receiver.call())
    node = receiver.node
    for message, parts in [
        (Consignment("stranger", 1, False, (100_000,)), (b"",)),
        (BulkChunk("stranger", 1), (bytes(60_000),)),
        (BulkChunk("stranger", 1), (bytes(60_000),)),
        (BulkChunk("stranger", 1), (bytes(60_000),)),
        (BulkChunk("stranger", 9), (bytes(60_000),)),
    ]:
        data = header if isinstance(message, Consignment) else b""
        envelope = Envelope(node.uid, message, data, parts)
        node.loop.call_soon(lambda envelope=envelope: node.receive(envelope))
    wait_for(lambda: receiver.calls)
    with pytest.raises(WireError, match="more than it had announced"):
        receiver.take(1)
    assert not node.bulk_receiver._inbound


def test_bulk_within_bulk_is_dropped(make: Make) -> None:
    receiver = make().listen()
    node = receiver.node
    note = Consignment("stranger", 1, False, (100_000,))
    envelope = Envelope(node.uid, note, pack_header(note), (b"",))
    node.loop.run_on_loop(lambda: node.receive(envelope))
    assert not node.bulk_receiver._inbound


def test_idle_memory_is_given_back_on_both_sides(make: Make) -> None:
    sender, receiver = make().listen(), make().listen()
    sender.node.bulk_sender.idle_seconds = 0.05
    sender.send(receiver, np.zeros(LARGE))
    kept = receiver.take(1)
    assert len(sender.pool) == 1
    assert receiver.node.bulk_receiver._segments
    del kept
    wait_for(lambda: not len(sender.pool))
    wait_for(lambda: not receiver.node.bulk_receiver._segments)
    sender.send(receiver, np.ones(LARGE))
    assert receiver.take(1)[0].all()


def test_a_stop_keeps_its_place_behind_a_large_call(
    halted: tuple[End, End, list[Envelope[Message]]],
) -> None:
    sender, receiver, credits = halted
    stops: list[Envelope[Message]] = []
    receiver.node.handle(StopActor, stops.append)
    sender.send(receiver, bytes(2 * LARGE), "large")
    sender.node.send(receiver.node.address, StopActor("actor", "", sender=sender.node.uid))
    sender.node.send(receiver.node.address, Heartbeat(sender.node.uid))
    wait_for(lambda: credits and receiver.heartbeats)
    assert not stops
    sender.node.on(Credit, sender.node.bulk_sender.on_credit)
    sender.node.loop.call_soon(lambda: sender.node.dispatch(credits[0]))
    wait_for(lambda: stops)
    assert receiver.methods == ["large"]


def test_what_was_lost_with_one_who_handed_it_on_holds_back_nobody(
    halted: tuple[End, End, list[Envelope[Message]]], make: Make
) -> None:
    relay, receiver, credits = halted
    data = payload.dump(bytes(5 * LARGE))
    author = make().listen()
    relay.node.send(receiver.node.address, author.call("lost"), data.data, data.buffers)
    wait_for(lambda: credits)
    author.send(receiver, 1, "another way")
    author.node.send(receiver.node.address, Heartbeat(author.node.uid))
    wait_for(lambda: receiver.heartbeats)
    assert receiver.methods == []
    receiver.node.peer_down.report(ProcDown(relay.node.uid, "it was killed"))
    wait_for(lambda: receiver.methods == ["another way"])


def test_answers_that_could_not_be_received_fail_each_by_itself(make: Make) -> None:
    sender, receiver = make(**by("chunks")).listen(), make(max_message_bytes=LARGE).listen()
    sender.send(receiver, "hello")
    received: list[Any] = []

    class Gathers:
        def receive(self, rank: int, answer: Any) -> bool:
            received.append((rank, answer))
            return len(received) == 2

        def down(self, uid: str, failure: object) -> bool:
            return False

    port = receiver.node.open_port(Gathers(), [])
    items = tuple(FoldedReply(rank, sender.node.uid, False, False, 1) for rank in range(2))
    replies = Replies(port, sender.node.uid, items)
    sender.node.send(receiver.node.address, replies, b"", [b"", bytes(LARGE)] * 2)
    wait_for(lambda: len(received) == 2)
    for rank, (its_rank, answer) in enumerate(received):
        assert rank == its_rank
        with pytest.raises(WireError, match="max_message_bytes"):
            payload.load(answer.payload, answer.buffers)


def test_what_is_beyond_the_limit_takes_no_room_of_the_messages_after_it(make: Make) -> None:
    sender, receiver = make(max_message_bytes=LARGE).listen(), make().listen()
    outboxes, to = sender.node.outboxes, receiver.node.address
    data = payload.dump(bytes(LARGE + 1))
    for _ in range(30):  # Together more than a window.
        with pytest.raises(ValueError, match="beyond the limit"):
            outboxes.hand(to, sender.call(), data.data, data.buffers)
    for number in range(3):
        small = payload.dump(number)
        outboxes.hand(to, sender.call(), small.data, small.buffers)
    assert receiver.take(3) == [0, 1, 2]
    assert not outboxes.is_spilling


class Hoarder(Actor):
    """Takes all the descriptors that its process may have, and gives them back."""

    def __init__(self) -> None:
        self.files: list[int] = []

    @endpoint
    def hoard(self) -> None:
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
        with contextlib.suppress(OSError):
            while True:
                self.files.append(os.open(os.devnull, os.O_RDONLY))

    @endpoint
    def give_back(self) -> None:
        while self.files:
            os.close(self.files.pop())

    @endpoint
    def length_of(self, value: bytes) -> int:
        return len(value)


def test_a_receiver_that_was_out_of_descriptors_gets_large_messages_again() -> None:
    hoarder = this_host().spawn_procs().spawn("hoarder", Hoarder)
    hoarder.hoard.call_one().get(timeout=30)
    for _ in range(2):
        with pytest.raises(ActorError, match="no file descriptor left"):
            hoarder.length_of.call_one(bytes(LARGE)).get(timeout=30)
    hoarder.give_back.call_one().get(timeout=30)
    assert hoarder.length_of.call_one(bytes(LARGE)).get(timeout=30) == LARGE
    pool = process.current().node.bulk_sender.pool
    wait_for(lambda: pool.num_in_use == 0, what="all regions to be free again")
