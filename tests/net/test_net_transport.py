"""The promises of ``monarch.net.transport``, held by every transport."""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from monarch.net.inproc_transport import InprocNetwork, InprocTransport
from monarch.net.io_loop import IoLoop
from monarch.net.transport import Frames, Transport
from monarch.net.transports import Transports
from monarch.net.unix_transport import UnixTransport
from monarch.net.zmq_transport import ZmqTransport
from monarch.tools.network import free_port
from monarch.wire.keys import JobKeys, KeyPair
from tests.support import scan_port, wait_for

KEYS = JobKeys(bytes(range(32)))
OTHER_KEYS = JobKeys(bytes(32))


class End:
    """A transport with its loop, and what it has received."""

    def __init__(self, make: Callable[[IoLoop, Callable[[Frames], None]], Transport]) -> None:
        self.loop = IoLoop()
        self.loop.start()
        self.received: list[list[bytes]] = []
        self.threads: set[bool] = set()
        self.transport = make(self.loop, self._receive)

    def _receive(self, frames: Frames) -> None:
        self.threads.add(self.loop.is_current())
        self.received.append([bytes(frame) for frame in frames])

    def expect(self, count: int) -> list[list[bytes]]:
        wait_for(lambda: len(self.received) >= count, what=f"{count} messages")
        return self.received

    def close(self) -> None:
        self.transport.close()
        self.loop.stop()


class Kind:
    """Makes ends of one kind of transport, and URLs for them."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.ends: list[End] = []
        self._network = InprocNetwork()
        self._folder = folder
        self._numbers = itertools.count()

    def end(self, **options: Any) -> End:
        if self.name == "inproc":
            end = End(lambda loop, receive: InprocTransport(loop, receive, self._network))
        elif self.name == "unix":
            end = End(lambda loop, receive: UnixTransport(loop, receive, **options))
        else:
            options.setdefault("keys", KEYS if self.name == "tcp with keys" else None)
            end = End(lambda loop, receive: ZmqTransport(loop, receive, **options))
        self.ends.append(end)
        return end

    def url(self) -> str:
        if self.name == "inproc":
            return f"inproc://{next(self._numbers)}"
        if self.name == "unix":
            return f"ipc://{self._folder}/{next(self._numbers)}"
        return f"tcp://127.0.0.1:{free_port()}"


@pytest.fixture(params=["inproc", "unix", "tcp", "tcp with keys"])
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kind]:
    kind = Kind(request.param, tmp_path)
    yield kind
    for end in kind.ends:
        end.close()


def test_frames_arrive_whole_once_and_in_order(kind: Kind) -> None:
    receiver, sender = kind.end(), kind.end()
    connection = sender.transport.connect(receiver.transport.listen(kind.url()))
    sent = [[b"%d" % i, b"", bytes(i % 50) * 100] for i in range(2000)]
    for frames in sent:
        connection.send(frames)
    assert receiver.expect(len(sent)) == sent


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """Within, this process can open nothing."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            os.open(os.devnull, os.O_RDONLY)
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_what_is_sent_without_descriptors_arrives_when_there_are_some_again(kind: Kind) -> None:
    receiver, sender = kind.end(), kind.end()
    url = receiver.transport.listen(kind.url())
    with no_descriptors():
        connection = sender.transport.connect(url)
        for number in range(3):
            connection.send([b"first", b"%d" % number])
    connection.send([b"later"])
    assert receiver.expect(4) == [
        [b"first", b"0"], [b"first", b"1"], [b"first", b"2"], [b"later"],
    ]  # fmt: skip


def test_a_connection_without_descriptors_may_be_closed(kind: Kind) -> None:
    receiver, sender = kind.end(), kind.end()
    url = receiver.transport.listen(kind.url())
    with no_descriptors():
        connection = sender.transport.connect(url)
        connection.send([b"never"])
        connection.close()
        connection.send([b"nor this"])
    sender.transport.connect(url).send([b"another"])
    if kind.name != "inproc":
        assert receiver.expect(1) == [[b"another"]]


@pytest.mark.parametrize("size", [0, 1, 1023, 1024, 64 * 1024, 3_000_000])
def test_frames_of_any_size_arrive(kind: Kind, size: int) -> None:
    receiver, sender = kind.end(), kind.end()
    connection = sender.transport.connect(receiver.transport.listen(kind.url()))
    frames = [b"head", os.urandom(size), bytearray(os.urandom(size))]
    connection.send([frames[0], memoryview(frames[1]), frames[2]])
    assert receiver.expect(1) == [[bytes(frame) for frame in frames]]


def test_any_thread_may_send_and_its_own_order_is_kept(kind: Kind) -> None:
    receiver, sender = kind.end(), kind.end()
    connection = sender.transport.connect(receiver.transport.listen(kind.url()))

    def send(who: int) -> None:
        for i in range(300):
            connection.send([b"%d" % who, b"%d" % i, b"end"])

    threads = [threading.Thread(target=send, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    received = receiver.expect(1200)
    assert all(len(frames) == 3 and frames[2] == b"end" for frames in received)
    for who in range(4):
        mine = [int(frames[1]) for frames in received if frames[0] == b"%d" % who]
        assert mine == list(range(300))


def test_what_is_sent_before_the_other_listens_arrives_once_it_does(kind: Kind) -> None:
    sender = kind.end()
    url = kind.url()
    connection = sender.transport.connect(url)
    for i in range(5000):
        connection.send([b"%d" % i])
    receiver = kind.end()
    receiver.transport.listen(url)
    connection.send([b"last"])
    received = receiver.expect(5001)
    assert [frames[0] for frames in received] == [b"%d" % i for i in range(5000)] + [b"last"]


def test_received_on_the_loop_of_the_listener(kind: Kind) -> None:
    receiver, sender = kind.end(), kind.end()
    sender.transport.connect(receiver.transport.listen(kind.url())).send([b"x"])
    receiver.expect(1)
    assert receiver.threads == {True}


def test_many_may_send_to_one_and_one_to_many(kind: Kind) -> None:
    hub = kind.end()
    url = hub.transport.listen(kind.url())
    others = [kind.end() for _ in range(3)]
    for number, other in enumerate(others):
        other.transport.connect(url).send([b"from %d" % number])
        hub.transport.connect(other.transport.listen(kind.url())).send([b"to %d" % number])
    assert sorted(frames[0] for frames in hub.expect(3)) == [b"from 0", b"from 1", b"from 2"]
    for number, other in enumerate(others):
        assert other.expect(1) == [[b"to %d" % number]]


def test_a_change_after_sending_is_not_seen_in_small_frames(kind: Kind) -> None:
    receiver, sender = kind.end(), kind.end()
    connection = sender.transport.connect(receiver.transport.listen(kind.url()))
    frame = bytearray(b"before")
    connection.send([frame])
    frame[:] = b"after!"
    assert receiver.expect(1) == [[b"before"]]


def test_an_address_is_listened_at_once(kind: Kind) -> None:
    url = kind.end().transport.listen(kind.url())
    with pytest.raises(OSError, match="in use"):
        kind.end().transport.listen(url)


def test_after_a_connection_is_closed_sending_is_dropped(kind: Kind) -> None:
    receiver, sender = kind.end(), kind.end()
    url = receiver.transport.listen(kind.url())
    closed, witness = sender.transport.connect(url), sender.transport.connect(url)
    closed.send([b"first"])
    receiver.expect(1)
    closed.close()
    closed.close()
    closed.send([b"dropped"])
    witness.send([b"witness"])
    assert receiver.expect(2) == [[b"first"], [b"witness"]]


def test_what_was_sent_leaves_before_a_lingering_close(kind: Kind) -> None:
    receiver, sender = kind.end(), kind.end()
    connection = sender.transport.connect(receiver.transport.listen(kind.url()))
    for i in range(100):
        connection.send([b"%d" % i])
    connection.close(linger_seconds=5.0)
    assert len(receiver.expect(100)) == 100


def test_after_close_nothing_is_received_and_sending_is_dropped(kind: Kind) -> None:
    receiver, sender, witness = kind.end(), kind.end(), kind.end()
    url = receiver.transport.listen(kind.url())
    connection = sender.transport.connect(url)
    back = receiver.transport.connect(witness.transport.listen(kind.url()))
    connection.send([b"first"])
    receiver.expect(1)
    receiver.transport.close()
    connection.send([b"late"])
    back.send([b"late"])
    sender.transport.connect(witness.transport.listen(kind.url())).send([b"witness"])
    assert witness.expect(1) == [[b"witness"]]
    assert receiver.received == [[b"first"]]


def test_an_address_is_free_again_after_close(kind: Kind) -> None:
    first, sender = kind.end(), kind.end()
    url = first.transport.listen(kind.url())
    first.transport.close()
    second = kind.end()
    second.transport.listen(url)
    sender.transport.connect(url).send([b"to the second"])
    assert second.expect(1) == [[b"to the second"]]


def test_a_listener_that_comes_back_gets_what_is_sent_then(kind: Kind) -> None:
    first, sender = kind.end(), kind.end()
    url = first.transport.listen(kind.url())
    connection = sender.transport.connect(url)
    connection.send([b"one"])
    first.expect(1)
    first.close()
    second = kind.end()
    second.transport.listen(url)

    def arrives() -> bool:
        connection.send([b"two"])
        return bool(second.received)

    wait_for(arrives)


# What only ZeroMQ promises.


@pytest.fixture
def tcp(tmp_path: Path) -> Iterator[Kind]:
    kind = Kind("tcp with keys", tmp_path)
    yield kind
    for end in kind.ends:
        end.close()


@pytest.mark.parametrize("url", ["tcp://0.0.0.0:0", "tcp://10.255.255.1:0"])
def test_no_listener_beyond_loopback_without_keys(tcp: Kind, url: str) -> None:
    with pytest.raises(PermissionError, match="without a job secret"):
        tcp.end(keys=None).transport.listen(url)


def test_beyond_loopback_with_keys_or_on_request(tcp: Kind) -> None:
    assert tcp.end().transport.listen("tcp://0.0.0.0:0").startswith("tcp://0.0.0.0:")
    assert tcp.end(keys=None, insecure=True).transport.listen("tcp://0.0.0.0:0")


def test_port_zero_becomes_a_free_port(tcp: Kind) -> None:
    url = tcp.end().transport.listen("tcp://127.0.0.1:0")
    assert int(url.rpartition(":")[2]) > 0


def test_localhost_may_be_written_by_name(tcp: Kind) -> None:
    receiver = tcp.end()
    port = receiver.transport.listen("tcp://localhost:0").rpartition(":")[2]
    tcp.end().transport.connect(f"tcp://localhost:{port}").send([b"hello"])
    assert receiver.expect(1) == [[b"hello"]]


class Stranger:
    """Somebody who tries to get a message in, and notices being turned away."""

    def __init__(self, url: str, server: bytes | None, pair: KeyPair | None) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUSH)
        self._socket.setsockopt(zmq.LINGER, 0)
        if server is not None and pair is not None:
            self._socket.setsockopt(zmq.CURVE_SERVERKEY, server)
            self._socket.setsockopt(zmq.CURVE_PUBLICKEY, pair.public)
            self._socket.setsockopt(zmq.CURVE_SECRETKEY, pair.private)
        self._monitor = self._socket.get_monitor_socket()
        self._socket.connect(url)

    def wait_until_refused(self) -> None:
        refused = {
            zmq.EVENT_HANDSHAKE_FAILED_AUTH,
            zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL,
            zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
            zmq.EVENT_DISCONNECTED,
        }
        while True:
            assert self._monitor.poll(10_000), "neither admitted nor refused"
            event = recv_monitor_message(self._monitor)["event"]
            assert event != zmq.EVENT_HANDSHAKE_SUCCEEDED, "a stranger was let in"
            if event in refused:
                return

    def close(self) -> None:
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(0)
        self._context.term()


@pytest.mark.parametrize(
    ("server", "pair"),
    [
        (None, None),
        (OTHER_KEYS.listener.public, OTHER_KEYS.connector),
        (KEYS.listener.public, OTHER_KEYS.connector),
        (KEYS.listener.public, KeyPair(*zmq.curve_keypair())),
        (OTHER_KEYS.listener.public, KEYS.connector),
    ],
    ids=["no keys", "another job", "another connector", "made-up keys", "wrong listener"],
)
def test_strangers_deliver_nothing_and_members_do(
    tcp: Kind, server: bytes | None, pair: KeyPair | None
) -> None:
    receiver, member = tcp.end(), tcp.end()
    url = receiver.transport.listen("tcp://127.0.0.1:0")
    stranger = Stranger(url, server, pair)
    try:
        stranger.wait_until_refused()
        member.transport.connect(url).send([b"member"])
        assert receiver.expect(1) == [[b"member"]]
    finally:
        stranger.close()


def test_a_listener_without_the_secret_gets_nothing(tcp: Kind) -> None:
    impostor, sender = tcp.end(keys=OTHER_KEYS), tcp.end()
    url = impostor.transport.listen("tcp://127.0.0.1:0")
    sender.transport.connect(url).send([b"secret"])
    witness = tcp.end(keys=OTHER_KEYS)
    witness.transport.connect(url).send([b"witness"])
    assert impostor.expect(1) == [[b"witness"]]


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n", b"", b"\xff" * 5000, b"\xff\0\0"])
@pytest.mark.parametrize("keys", [None, KEYS], ids=["open", "keys"])
def test_a_port_scanner_changes_nothing(tcp: Kind, garbage: bytes, keys: JobKeys | None) -> None:
    receiver, sender = tcp.end(keys=keys), tcp.end(keys=keys)
    url = receiver.transport.listen("tcp://127.0.0.1:0")
    scan_port(url, garbage)
    sender.transport.connect(url).send([b"hello"])
    assert receiver.expect(1) == [[b"hello"]]


@pytest.mark.parametrize("keys", [None, KEYS], ids=["open", "keys"])
def test_a_frame_that_is_too_big_is_refused_and_others_pass(
    tcp: Kind, keys: JobKeys | None
) -> None:
    """Of a member that has no limit, and so does not see that nobody would take it."""
    limit = 5 * 2**20
    receiver, big, small = tcp.end(max_frame_bytes=limit, keys=keys), tcp.end(), tcp.end()
    for one in (big, small):
        one.transport._keys = keys  # type: ignore[attr-defined]
    url = receiver.transport.listen("tcp://127.0.0.1:0")
    big.transport.connect(url).send([bytes(limit + 1)])
    small.transport.connect(url).send([bytes(limit - 100), bytes(limit - 100)])
    assert [len(frame) for frame in receiver.expect(1)[0]] == [limit - 100] * 2


def test_who_sends_a_frame_that_nobody_would_take_is_told_so(tcp: Kind) -> None:
    receiver, sender = (tcp.end(max_frame_bytes=5 * 2**20) for _ in range(2))
    connection = sender.transport.connect(receiver.transport.listen("tcp://127.0.0.1:0"))
    with pytest.raises(ValueError, match="MONARCH_MAX_FRAME_BYTES"):
        connection.send([b"head", bytes(6 * 2**20)])
    connection.send([b"whole", b"message"])
    assert receiver.expect(1) == [[b"whole", b"message"]]


def test_a_limit_below_that_of_a_chunk_keeps_no_chunk_out(tcp: Kind) -> None:
    receiver, sender = tcp.end(max_frame_bytes=1000), tcp.end(max_frame_bytes=1000)
    url = receiver.transport.listen("tcp://127.0.0.1:0")
    sender.transport.connect(url).send([bytes(2 * 2**20)])
    assert len(receiver.expect(1)[0][0]) == 2 * 2**20


def test_only_the_user_can_use_a_unix_socket_and_it_is_removed(tmp_path: Path) -> None:
    kind = Kind("unix", tmp_path)
    end = kind.end()
    path = end.transport.listen(f"ipc://{tmp_path}/socket").removeprefix("ipc://")
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    end.close()
    assert not os.path.exists(path)


def test_a_stale_socket_file_is_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(path))
    kind = Kind("unix", tmp_path)
    receiver, sender = kind.end(), kind.end()
    receiver.transport.listen(f"ipc://{path}")
    sender.transport.connect(f"ipc://{path}").send([b"hello"])
    assert receiver.expect(1) == [[b"hello"]]
    receiver.close()
    sender.close()


def test_two_that_are_the_first_at_the_same_time_share_one_transport(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What only the one that was lost knew would never be closed."""
    both = threading.Barrier(2)
    made = []

    def make(*about: Any, **options: Any) -> ZmqTransport:
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.2)
        made.append(ZmqTransport(*about, **options))
        return made[-1]

    monkeypatch.setattr("monarch.net.zmq_transport.ZmqTransport", make)
    loop = IoLoop()
    loop.start()
    transports = Transports(loop, lambda frames: None)
    url = f"tcp://127.0.0.1:{free_port()}"
    threads = [threading.Thread(target=transports.connect, args=(url,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    try:
        assert len(made) == 1
    finally:
        for one in made:
            one.close()
        loop.stop()
