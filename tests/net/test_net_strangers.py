"""Whoever comes to an open port without the secret changes nothing, and is logged once."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator

import psutil
import pytest
import zmq
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from monarch.errors import WireError
from monarch.net.gate import GateLimits, _caller
from monarch.net.io_loop import IoLoop
from monarch.net.rare_log import RareLog
from monarch.net.transport import Frames, Transport
from monarch.net.transports import Transports
from monarch.net.zmq_transport import ZmqTransport
from monarch.wire.keys import JobKeys, KeyPair
from tests.net.strangers import (
    HELLO_PLAIN,
    READY,
    Wire,
    command,
    connect,
    frame,
    greeting,
    message,
    say,
)
from tests.support import wait_for

KEYS = JobKeys(bytes(range(32)))
OTHER_KEYS = JobKeys(bytes(32))


class Station:
    """A transport with the job's keys, and what reached it."""

    def __init__(
        self, keys: JobKeys | None = KEYS, limits: GateLimits | None = None, **options: int
    ) -> None:
        self.loop = IoLoop()
        self.loop.start()
        self.received: list[list[bytes]] = []
        self.broken: Callable[[list[bytes]], bool] = lambda frames: False
        self.transport: Transport = (
            Transports(self.loop, self._receive, keys, **options)
            if limits is None
            else ZmqTransport(self.loop, self._receive, keys, gate_limits=limits)
        )

    def _receive(self, frames: Frames) -> None:
        copies = [bytes(frame) for frame in frames]
        if self.broken(copies):
            raise WireError("a message that is none")
        self.received.append(copies)

    def expect(self, *messages: list[bytes]) -> None:
        """These messages, and no others, have come."""
        wait_for(lambda: len(self.received) >= len(messages), what="messages")
        assert self.received == list(messages)

    def listen(self, url: str) -> str:
        return self.transport.listen(url)

    def connect(self, url: str) -> None:
        self.transport.connect(url)

    def close(self) -> None:
        self.transport.close()
        self.loop.stop()


@pytest.fixture
def stations() -> Iterator[Callable[..., Station]]:
    made: list[Station] = []

    def make(*args: object, **options: int) -> Station:
        made.append(Station(*args, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for station in made:
        station.close()


@pytest.fixture
def host(stations: Callable[..., Station]) -> Station:
    return stations()


@pytest.fixture
def url(host: Station) -> str:
    return host.transport.listen("tcp://127.0.0.1:0")


@pytest.fixture
def member(stations: Callable[..., Station]) -> Station:
    return stations()


@pytest.fixture
def wire(url: str) -> Iterator[Wire]:
    wire = Wire(url)
    yield wire
    wire.close()


def still_serves(host: Station, member: Station, url: str) -> None:
    member.transport.connect(url).send([b"member"])
    host.expect([b"member"])


CALL = message(b"", b"\x01\x92\x07\xa2me", b"")

KNOCKS = {
    "nothing": b"",
    "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(600),
    "SSH": b"SSH-2.0-OpenSSH_9.6\r\n",
    "zeros": bytes(10_000),
    "noise": bytes(range(256)) * 100,
    "half a greeting": greeting("CURVE")[:30],
    "a greeting only": greeting("CURVE"),
    "NULL": greeting("NULL") + READY + CALL,
    "PLAIN": greeting("PLAIN") + HELLO_PLAIN + command(b"INITIATE") + CALL,
    "GSSAPI": greeting("GSSAPI") + command(b"INITIATE") + CALL,
    "no mechanism": greeting("") + READY + CALL,
    "both servers": greeting("CURVE", as_server=True) + READY + CALL,
    "CURVE without HELLO": greeting("CURVE") + CALL,
    "CURVE that skips on": greeting("CURVE") + READY + CALL,
    "CURVE with a made-up HELLO": greeting("CURVE")
    + command(b"HELLO", b"\x01\x00" + bytes(72) + bytes(range(32)) + bytes(8) + bytes(80))
    + CALL,
    "CURVE with a short HELLO": greeting("CURVE") + command(b"HELLO", b"\x01\x00"),
    "ZMTP 2": b"\xff" + bytes(8) + b"\x7f\x01\x08\x00\x00" + CALL,
    "ZMTP 1": b"\x01\x00" + b"\x06\x00hello",
    "a frame without end": greeting("CURVE") + b"\x06" + b"\x7f" + b"\xff" * 7 + bytes(1000),
    "a huge frame": greeting("CURVE") + b"\x02" + (2**40).to_bytes(8, "big") + bytes(1000),
}


@pytest.mark.parametrize("knock", KNOCKS.values(), ids=KNOCKS)
def test_a_stranger_gets_nothing_in_and_is_logged_once(
    knock: bytes, host: Station, member: Station, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "monarch.net"):
        for _ in range(5):
            say(url, knock)
        still_serves(host, member, url)
        wait_for(lambda: caplog.records, what="a line in the log")
    (record,) = caplog.records
    # One that was gone before we could look has no address any more.
    assert re.search(f"turned away (127.0.0.1|somebody), which came to {url}", record.getMessage())


def test_a_peer_that_is_killed_in_the_handshake_is_not_called_a_stranger(
    stations: Callable[..., Station], caplog: pytest.LogCaptureFixture
) -> None:
    def leaves_in_the_handshake(url: str) -> None:
        with connect(url) as peer:
            peer.sendall(greeting("CURVE"))

    def host_that_accuses_after(seconds: float) -> str:
        host = stations(limits=GateLimits(seconds_to_accuse=seconds))
        url = host.listen("tcp://127.0.0.1:0")
        still_serves(host, stations(), url)
        return url

    with caplog.at_level(logging.WARNING, "monarch.net"):
        # Far longer than this takes on a machine that is busy.
        url = host_that_accuses_after(600)
        for _ in range(5):
            leaves_in_the_handshake(url)
        say(url, b"")
        assert not caplog.records
        leaves_in_the_handshake(host_that_accuses_after(0))
        wait_for(lambda: caplog.records, what="a line in the log")


@examples(max_examples=60, deadline=None)
@given(data=st.data())
def test_random_bytes_get_nothing_in(data: st.DataObject) -> None:
    pieces = st.sampled_from([greeting("CURVE"), greeting("NULL"), READY, CALL, HELLO_PLAIN])
    host, member = Station(), Station()
    try:
        url = host.transport.listen("tcp://127.0.0.1:0")
        say(url, b"".join(data.draw(st.lists(pieces | st.binary(max_size=200), max_size=5))))
        still_serves(host, member, url)
    finally:
        host.close()
        member.close()


def test_those_who_keep_silent_are_hung_up_on(stations: Callable[..., Station]) -> None:
    host, member = stations(limits=GateLimits(handshake_ms=300)), stations()
    url = host.transport.listen("tcp://127.0.0.1:0")
    silent = [connect(url) for _ in range(20)]
    for number, line in enumerate(silent):
        line.sendall(greeting("CURVE")[: number * 4])
    still_serves(host, member, url)
    for line in silent:
        with line:
            try:
                while line.recv(1000):
                    pass
            except ConnectionError:
                pass


def test_a_flood_of_connects_leaves_nothing(host: Station, member: Station, url: str) -> None:
    me = psutil.Process()

    def flood(num_rounds: int) -> None:
        for number in range(num_rounds):
            lines = [connect(url) for _ in range(100)]
            for line in lines:
                line.sendall(greeting("CURVE") if number % 2 else b"\xff\0\0")
            for line in lines:
                line.close()

    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = descriptors()
    flood(10)
    wait_for(lambda: descriptors() <= before, what="the descriptors are given back")
    grown = []
    for _ in range(3):
        memory = me.memory_info().rss
        flood(20)
        wait_for(lambda: descriptors() <= before, what="the descriptors are given back")
        grown.append(me.memory_info().rss - memory)
        if grown[-1] < 2_000_000:
            break
    # 2,000 connections that each left a kilobyte would show, each time; what Python's and the
    # system's allocators take for themselves comes once.
    assert min(grown) < 2_000_000
    still_serves(host, member, url)


def test_silent_callers_do_not_keep_members_out(host: Station, member: Station, url: str) -> None:
    lines = [connect(url) for _ in range(500)]
    still_serves(host, member, url)
    for line in lines:
        line.close()


@pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="the system does not say who is silent")
def test_only_so_many_may_keep_silent_at_once(
    stations: Callable[..., Station], member: Station
) -> None:
    host = stations(limits=GateLimits(max_knocking=20))
    url = host.listen("tcp://127.0.0.1:0")
    connection = member.transport.connect(url)
    connection.send([b"before"])
    host.expect([b"before"])
    silent = [connect(url) for _ in range(60)]
    try:

        def num_left() -> int:
            count = 0
            for one in silent:
                one.setblocking(False)
                try:
                    while one.recv(100):
                        pass  # The greeting.
                except BlockingIOError:
                    count += 1
                except OSError:
                    pass
            return count

        wait_for(lambda: num_left() <= 20, 4, what="those beyond the limit to be hung up on")
        connection.send([b"after"])
        host.expect([b"before"], [b"after"])
    finally:
        for one in silent:
            one.close()


def test_more_callers_than_descriptors_end_nothing(program: Callable[..., object]) -> None:
    """A process that is out of descriptors turns callers away, and goes on when they leave."""
    target = program(
        """
        import resource, sys
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
        from monarch.net.io_loop import IoLoop
        from monarch.net.zmq_transport import ZmqTransport
        from monarch.wire.keys import JobKeys
        loop = IoLoop(); loop.start()
        receive = lambda frames: print("got", bytes(frames[0]), flush=True)
        transport = ZmqTransport(loop, receive, JobKeys(bytes(range(32))))
        print("at", transport.listen("tcp://127.0.0.1:0"), flush=True)
        import threading; threading.Event().wait()
        """
    )
    url = target.line("at")  # type: ignore[attr-defined]
    lines = [connect(url) for _ in range(200)]
    for line in lines:
        line.close()
    member = Station()
    try:
        member.transport.connect(url).send([b"member"])
        assert target.line("got") == "b'member'"  # type: ignore[attr-defined]
    finally:
        member.close()


def test_a_key_of_another_job_is_logged_with_the_address(
    host: Station, member: Station, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with zmq.Context() as context, caplog.at_level(logging.WARNING, "monarch.net"):
        for pair in (OTHER_KEYS.connector, KEYS.listener, KeyPair(*zmq.curve_keypair())):
            stranger = context.socket(zmq.PUSH)
            stranger.setsockopt(zmq.LINGER, 0)
            stranger.setsockopt(zmq.CURVE_SERVERKEY, KEYS.listener.public)
            stranger.setsockopt(zmq.CURVE_PUBLICKEY, pair.public)
            stranger.setsockopt(zmq.CURVE_SECRETKEY, pair.private)
            stranger.connect(url)
            with contextlib.suppress(zmq.Again):  # It may have been turned away already.
                stranger.send(b"let me in", zmq.NOBLOCK)
            wait_for(lambda: "not of this job" in caplog.text, what="a line in the log")
            stranger.close(0)
        still_serves(host, member, url)
    told = [record.getMessage() for record in caplog.records if "key" in record.getMessage()]
    assert [line for line in told if "not of this job" in line and "127.0.0.1" in line] == told[:1]


# Where a member knocks, and strangers answer.


class Other:
    """A TCP server that is no host: it says ``words`` to whoever comes."""

    def __init__(self, words: bytes) -> None:
        self._words = words
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._lines: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                line, _ = self._listener.accept()
                self._lines.append(line)
                line.sendall(self._words)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10.0)
        for line in self._lines:
            line.close()


@pytest.mark.parametrize(
    "words",
    [b"SSH-2.0-OpenSSH_9.6\r\n", greeting("NULL") + READY, bytes(1000)],
    ids=["ssh", "a host without keys", "zeros"],
)
def test_nobody_waits_for_ever_to_send_to_who_is_no_member(
    words: bytes, member: Station, caplog: pytest.LogCaptureFixture
) -> None:
    other = Other(words)
    connection = member.transport.connect(other.url)

    def send_until_told() -> None:
        wait_for(lambda: connection.send([b"hello"]) or other.url in caplog.text)

    try:
        with caplog.at_level(logging.WARNING, "monarch.net"):
            sending = threading.Thread(target=send_until_told, daemon=True)
            sending.start()
            sending.join(30.0)
        assert not sending.is_alive(), "it hangs in send"
        [told] = [record.getMessage() for record in caplog.records]
        assert f"what listens at {other.url} is no member of this job" in told
    finally:
        other.close()


# On the wire between two members.


def test_a_recorded_conversation_cannot_be_replayed(
    host: Station, member: Station, wire: Wire, url: str
) -> None:
    member.transport.connect(wire.url).send([b"once"])
    host.expect([b"once"])
    wire.tamper = lambda data: b""
    recorded = b"".join(wire.recorded)
    assert len(recorded) > 200, "nothing was recorded"
    for _ in range(3):
        say(url, recorded)
    member.transport.connect(url).send([b"after"])
    host.expect([b"once"], [b"after"])


def test_a_recorded_message_cannot_be_sent_again(
    host: Station, member: Station, wire: Wire
) -> None:
    connection = member.transport.connect(wire.url)
    connection.send([b"first"])
    host.expect([b"first"])
    num_before = len(wire.recorded)
    connection.send([b"second"])
    host.expect([b"first"], [b"second"])
    wire.inject(b"".join(wire.recorded[num_before:]))
    # The connection is ended for it; the member comes back over a new one.
    wire.wait_until_refused()
    connection.send([b"third"])
    host.expect([b"first"], [b"second"], [b"third"])


@pytest.mark.parametrize(
    "forge",
    [
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        lambda data: data[:20] + bytes([data[20] ^ 0x80]) + data[21:],
        lambda data: data[: len(data) // 2] * 2 + data[-1:],
        lambda data: frame(b"forged", more=False),
        lambda data: message(b"", b"\x01\x92\x07\xa2me", b""),
        lambda data: b"\x00" * len(data),
    ],
    ids=["last bit", "nonce", "halves", "a plain frame", "a plain message", "zeros"],
)
def test_a_forged_message_ends_its_connection_and_gets_nowhere(
    host: Station, member: Station, wire: Wire, forge: Callable[[bytes], bytes]
) -> None:
    connection = member.transport.connect(wire.url)
    connection.send([b"first"])
    host.expect([b"first"])
    wire.tamper_once(forge)
    connection.send([b"changed on its way" * 10])
    wire.wait_until_refused()
    wait_for(lambda: wire.num_connections >= 2, what="the member comes back")
    connection.send([b"last"])
    wait_for(lambda: [b"last"] in host.received, what="the last message")
    assert host.received == [[b"first"], [b"last"]]


def test_a_message_that_was_cut_short_is_not_delivered(
    host: Station, member: Station, wire: Wire
) -> None:
    connection = member.transport.connect(wire.url)
    connection.send([b"first"])
    host.expect([b"first"])
    wire.tamper_once(lambda data: data[:-5])
    connection.send([b"cut"])
    connection.close(0.0)
    wire.wait_until_refused()
    member.transport.connect(wire.url).send([b"last"])
    host.expect([b"first"], [b"last"])


# From peers that are let in, and broken.


def test_what_is_no_message_is_logged_once_with_its_address(
    host: Station, member: Station, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    host.broken = lambda frames: frames[0] == b"broken"
    connection = member.transport.connect(url)
    with caplog.at_level(logging.WARNING, "monarch.net"):
        for _ in range(50):
            connection.send([b"broken"])
        connection.send([b"whole"])
        host.expect([b"whole"])
    (record,) = caplog.records
    assert "127.0.0.1" in record.getMessage()
    assert "a message that is none" in record.getMessage()


def test_a_rare_log_counts_what_it_does_not_say(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    rare = RareLog(logging.getLogger("monarch.net"), 60.0, lambda: now[0])
    with caplog.at_level(logging.WARNING, "monarch.net"):
        for second in range(100):
            now[0] = float(second)
            rare.warning("door", "a knock at %d", second)
        rare.warning("window", "another")
        now[0] = 1000.0
        rare.warning("door", "a knock at %d", 1000)
    # An earlier test of this process may have asked who it is: records then say so.
    told = [
        record.getMessage().removeprefix(getattr(record, "actor_prefix", ""))
        for record in caplog.records
    ]
    assert told == [
        "a knock at 0",
        "a knock at 60 (and 59 more of this kind before)",
        "another",
        "a knock at 1000 (and 39 more of this kind before)",
    ]


def test_a_rare_log_is_not_outwitted_by_ever_new_kinds(caplog: pytest.LogCaptureFixture) -> None:
    rare = RareLog(logging.getLogger("monarch.net"), 60.0, lambda: 0.0)
    with caplog.at_level(logging.WARNING, "monarch.net"):
        for number in range(10_000):
            rare.warning(number, "kind %d", number)
    assert len(caplog.records) < 300
    assert len(rare._kinds) < 300


# Unix sockets.


def as_another_user(action: Callable[[], None]) -> int:
    """The exit status of ``action`` in a process of another user."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.setgroups([])
            os.setuid(65534)
            action()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


only_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")


@only_root
def test_the_kernel_keeps_other_users_out_whatever_the_modes_say(
    stations: Callable[..., Station],
) -> None:
    folder = f"/tmp/mt-others-{os.getpid()}"
    os.mkdir(folder, 0o755)
    try:
        host = stations(None)
        url = host.transport.listen(f"ipc://{folder}/s")
        # As bad as it can be made.
        os.chmod(f"{folder}/s", 0o777)

        def push() -> None:
            with socket.socket(socket.AF_UNIX) as line:
                line.settimeout(10)
                line.connect(f"{folder}/s")
                line.sendall(greeting("NULL") + READY + message(b"evil"))
                while line.recv(1000):
                    pass

        assert as_another_user(push) in (0, 1)
        stations(None).transport.connect(url).send([b"mine"])
        host.expect([b"mine"])
    finally:
        host.close()
        os.rmdir(folder)


@only_root
def test_a_folder_or_socket_of_another_user_is_refused(stations: Callable[..., Station]) -> None:
    folder = f"/tmp/mt-trap-{os.getpid()}"
    os.mkdir(folder, 0o777)
    try:
        os.chown(folder, 65534, 65534)
        for use in (Station.listen, Station.connect):
            with pytest.raises(PermissionError, match="others can write"):
                use(stations(None), f"ipc://{folder}/s")
        os.chown(folder, 0, 0)
        os.chmod(folder, 0o1777)
        with socket.socket(socket.AF_UNIX) as trap:
            trap.bind(f"{folder}/s")
            os.chown(f"{folder}/s", 65534, 65534)
            with pytest.raises(PermissionError, match="another user"):
                Station.connect(stations(None), f"ipc://{folder}/s")
        os.unlink(f"{folder}/s")
    finally:
        os.rmdir(folder)


def test_an_abstract_name_is_refused(stations: Callable[..., Station]) -> None:
    for use in (Station.listen, Station.connect):
        with pytest.raises(PermissionError, match="abstract"):
            use(stations(None), "ipc://@monarch")


def test_a_socket_is_private_from_its_first_moment(
    stations: Callable[..., Station], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = f"/tmp/mt-private-{os.getpid()}"
    os.mkdir(folder, 0o700)
    modes = []
    real = socket.socket.bind

    def bind(self: socket.socket, path: str) -> None:
        before = os.umask(0)
        try:
            real(self, path)
            modes.append(os.stat(path).st_mode & 0o777)
        finally:
            os.umask(before)

    monkeypatch.setattr("monarch.net.unix_socket.RawSocket.bind", bind, raising=False)
    try:
        stations(None).listen(f"ipc://{folder}/s")
        assert modes == [0o600]
        os.unlink(f"{folder}/s")
    finally:
        os.rmdir(folder)


def test_a_process_out_of_descriptors_says_so_once_and_listens_again(
    program: Callable[..., object],
) -> None:
    folder = f"/tmp/mt-full-{os.getpid()}"
    os.mkdir(folder, 0o700)
    target = program(
        f"""
        import os, resource, sys, threading, time
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        from monarch.net.io_loop import IoLoop
        from monarch.net.unix_transport import UnixTransport
        loop = IoLoop(); loop.start()
        transport = UnixTransport(loop, lambda frames: print("got", bytes(frames[0]), flush=True))
        print("at", transport.listen("ipc://{folder}/s"), flush=True)
        threading.Event().wait()
        """
    )
    try:
        url = target.line("at")  # type: ignore[attr-defined]
        lines = []
        for _ in range(100):
            line = socket.socket(socket.AF_UNIX)
            line.connect(url.removeprefix("ipc://"))
            lines.append(line)
        errors = target.errors  # type: ignore[attr-defined]
        wait_for(lambda: errors, what="a line in the log")
        member = Station(None)
        try:
            member.transport.connect(url).send([b"member"])
            for line in lines:
                line.close()
            assert target.line("got") == "b'member'"  # type: ignore[attr-defined]
        finally:
            member.close()
        assert len(errors) == 1
        assert "Too many open files" in errors[0]
    finally:
        target.close()  # type: ignore[attr-defined]
        for name in os.listdir(folder):
            os.unlink(f"{folder}/{name}")
        os.rmdir(folder)


def test_a_number_that_a_local_socket_has_taken_over_is_nobody() -> None:
    here, there = socket.socketpair()
    with here, there:
        assert _caller(here.fileno()) == ("somebody", 0)
