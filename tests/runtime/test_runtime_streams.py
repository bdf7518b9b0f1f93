"""Sockets at both ends of a stream: slow, stuck and gone programs, and processes that end."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.net.io_loop import IoLoop
from monarch.runtime.answers import Response
from monarch.runtime.node import Node
from monarch.runtime.programs.byte_flows import WINDOW_BYTES
from monarch.runtime.programs.byte_streams import streams_of
from monarch.runtime.programs.streamed_socket import StreamedSocket
from monarch.runtime.promise import Promise
from monarch.wire.keys import JobKeys
from monarch.wire.message import ProcDown
from tests.support import wait_for

SECONDS = 20.0
KEYS = JobKeys(bytes(range(32)))
LARGE = bytes(range(256)) * 8192
SMALL = bytes(range(256)) * 512


class Side:
    """A process, and its end of the stream; ``program`` is the socket of a connected program."""

    def __init__(self, uid: str, folder: Path) -> None:
        self.node = Node(uid, KEYS)
        self.node.start()
        self.node.listen(f"ipc://{folder}/{uid}")
        self.loop = IoLoop(f"monarch-{uid}")
        self.loop.start()
        self.is_over = threading.Event()
        self.program, self._ours = socket.socketpair()
        self.program.settimeout(SECONDS)

    def open(self, other: Side, **how: Any) -> None:
        self.streamed = StreamedSocket(
            streams_of(self.node), self.loop, self._ours, "uid", other.node.address,
            over=self.is_over.set, **how,
        )  # fmt: skip

    def close(self) -> None:
        self.program.close()
        self.loop.run_on_loop(self.streamed.close_now)
        self.loop.stop()
        self.node.close()


Two = tuple[Side, Side]
Open = Callable[..., Two]


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Two]:
    """A client and a host, without a stream."""
    sides = Side("near", tmp_path), Side("host", tmp_path)
    yield sides
    for side in sides:
        side.close()


@pytest.fixture
def open_stream(two: Two) -> Open:
    def make(near: dict[str, Any] | None = None, **host: Any) -> Two:
        two[0].open(two[1], **(near or {}))
        two[1].open(two[0], is_at_host=True, **host)
        for side in two:
            side.streamed.start()
        return two

    return make


@pytest.fixture
def ends(open_stream: Open) -> Two:
    return open_stream()


def read_all(program: socket.socket) -> bytes:
    return program.makefile("rb").read()


def send_until_stuck(program: socket.socket) -> int:
    """Send as much as is taken; return the number of bytes."""
    num_bytes = 0
    program.settimeout(0.5)
    with contextlib.suppress(TimeoutError):
        while num_bytes < len(LARGE) * 8:
            num_bytes += program.send(LARGE[:65536])
    program.settimeout(SECONDS)
    return num_bytes


def test_bytes_go_both_ways_and_each_direction_ends_by_itself(
    ends: Two,
) -> None:
    near, host = ends
    near.program.sendall(b"question")
    near.program.shutdown(socket.SHUT_WR)
    assert read_all(host.program) == b"question"
    assert not host.is_over.is_set()
    host.program.sendall(b"answer")
    host.program.shutdown(socket.SHUT_WR)
    assert read_all(near.program) == b"answer"
    assert near.is_over.wait(SECONDS)
    assert host.is_over.wait(SECONDS)


@pytest.mark.parametrize("sender", [0, 1], ids=["to the host", "to the client"])
def test_a_stuck_reader_stops_its_sender_after_a_window_and_loses_nothing(
    ends: Two, sender: int
) -> None:
    sending, reading = ends[sender].program, ends[1 - sender].program
    num_sent = send_until_stuck(sending)
    # And what the sockets of the two programs hold.
    assert WINDOW_BYTES <= num_sent < WINDOW_BYTES + (1 << 20)
    sending.shutdown(socket.SHUT_WR)
    assert len(read_all(reading)) == num_sent


@pytest.mark.parametrize("slow", [0, 1], ids=["client", "server"])
def test_a_slow_reader_that_has_said_all_gets_the_rest(ends: Two, slow: int) -> None:
    reading, sending = ends[slow].program, ends[1 - slow].program
    reading.shutdown(socket.SHUT_WR)
    assert sending.recv(1) == b""
    sending.sendall(SMALL)
    num_more = send_until_stuck(sending)
    sending.close()
    assert len(read_all(reading)) == len(SMALL) + num_more


@pytest.mark.parametrize("writer", [0, 1], ids=["client", "server"])
def test_a_writer_hears_that_its_reader_is_gone(ends: Two, writer: int) -> None:
    writing, gone = ends[writer], ends[1 - writer]
    gone.program.close()
    assert writing.program.recv(1) == b""
    with pytest.raises(ConnectionError):
        writing.program.sendall(LARGE)
    assert writing.is_over.wait(SECONDS)
    assert gone.is_over.wait(SECONDS)


def test_a_response_arrives_though_the_server_did_not_read_the_request(
    ends: Two,
) -> None:
    client, server = ends
    server.program.sendall(SMALL)
    server.program.close()
    client.program.sendall(b"a request that is refused")
    assert server.is_over.wait(SECONDS)
    assert read_all(client.program) == SMALL


def test_a_socket_whose_peer_refuses_is_closed(open_stream: Open) -> None:
    near, _ = open_stream()
    answer: Promise[Response[None]] = Promise()
    near.streamed.start_when(answer)
    answer.set(Response(None, "there is no such port"))
    assert read_all(near.program) == b""


def test_a_socket_that_was_closed_before_its_peer_answered_ends_there_too(two: Two) -> None:
    near, host = two
    answer: Promise[Response[None]] = Promise()
    near.open(host)
    near.streamed.start_when(answer)
    unknown: list[Any] = []
    streams_of(host.node).at_host = unknown.append
    near.streamed.close()
    wait_for(lambda: unknown, what="the end of a stream that the host does not know")
    host.open(near, is_at_host=True)
    host.streamed.start()
    answer.set(Response(None))
    assert read_all(host.program) == b""
    assert host.is_over.wait(SECONDS)


@pytest.mark.parametrize("survivor", [0, 1], ids=["client", "host"])
def test_a_stream_ends_with_the_process_at_its_other_end(ends: Two, survivor: int) -> None:
    here, gone = ends[survivor], ends[1 - survivor]
    send_until_stuck(gone.program)
    here.node.peer_down.report(ProcDown(gone.node.uid, "it was killed", expected=True))
    assert here.is_over.wait(SECONDS)


@pytest.mark.parametrize("ender", [0, 1], ids=["client", "server"])
def test_an_end_with_a_farewell_is_never_half_open(open_stream: Open, ender: int) -> None:
    near, host = open_stream(farewell=b"bye")
    near.program.sendall(b"hello ")
    assert host.program.recv(6) == b"hello "
    (near, host)[ender].program.shutdown(socket.SHUT_WR)
    assert read_all(host.program) == b"bye"
    assert read_all(near.program) == b""
    assert near.is_over.wait(SECONDS)
    assert host.is_over.wait(SECONDS)


def test_the_farewell_is_written_where_the_other_process_was_killed(open_stream: Open) -> None:
    near, host = open_stream(farewell=b"bye")
    host.node.peer_down.report(ProcDown(near.node.uid, "it was killed", expected=True))
    assert read_all(host.program) == b"bye"


def test_a_window_counts_bytes_as_they_are_sent(open_stream: Open) -> None:
    kept = bytearray()

    def in_pairs(data: bytes) -> bytes:
        """Keep back an odd byte, and leave out each second byte of the others."""
        kept.extend(data)
        whole = bytes(kept[: len(kept) // 2 * 2])
        del kept[: len(whole)]
        return whole[::2]

    near, host = open_stream({"change": in_pairs})
    sending = threading.Thread(
        target=lambda: [near.program.sendall(part) for part in (LARGE[:7], LARGE[7:])]
    )
    sending.start()
    received = bytearray()
    while len(received) < len(LARGE) // 2:
        received += host.program.recv(1 << 16)
    sending.join()
    assert received == LARGE[::2]  # No room is lost, though half of all bytes were left out.
