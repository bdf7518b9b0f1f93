"""The way in through one machine: connections pass over one stream, which may break."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Iterator

import pytest

from monarch.net.gateway import Gateway, GatewayError
from tests.support import wait_for

WAIT_SECONDS = 20.0


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    made = Gateway(["sh", "-c"], "here", sys.executable)
    yield made
    made.close()


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of a server that sends back what it gets."""
    server = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []

    def answer(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while data := connection.recv(1 << 16):
                connection.sendall(data)

    def serve() -> None:
        while True:
            try:
                connection = server.accept()[0]
            except OSError:
                return
            thread = threading.Thread(target=answer, args=(connection,))
            thread.start()
            threads.append(thread)

    serving = threading.Thread(target=serve)
    serving.start()
    yield server.getsockname()[1]
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    serving.join()
    for thread in threads:
        thread.join()


def _connected(gateway: Gateway, port: int) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(WAIT_SECONDS)
    connection.connect(gateway.way_to(f"tcp://127.0.0.1:{port}").removeprefix("ipc://"))
    return connection


def _received(connection: socket.socket, num_bytes: int) -> bytes:
    got = bytearray()
    while len(got) < num_bytes:
        data = connection.recv(1 << 16)
        assert data, f"it hung up after {len(got)} bytes"
        got += data
    return bytes(got)


def test_connections_lead_to_what_the_gateway_reaches(gateway: Gateway, echo: int) -> None:
    with _connected(gateway, echo) as one, _connected(gateway, echo) as another:
        one.sendall(b"one")
        another.sendall(b"another")
        assert (_received(one, 3), _received(another, 7)) == (b"one", b"another")


def test_others_get_in_where_the_gateway_listens(gateway: Gateway, echo: int) -> None:
    host, _, port = gateway.listen("tcp://127.0.0.1:9", echo).removeprefix("tcp://").partition(":")
    assert int(port) != echo
    with socket.create_connection((host, int(port)), WAIT_SECONDS) as caller:
        caller.sendall(b"hello")
        assert _received(caller, 5) == b"hello"


@pytest.mark.parametrize("num_breaks", [1, 3])
def test_a_stream_that_breaks_loses_nothing(gateway: Gateway, echo: int, num_breaks: int) -> None:
    data = os.urandom(6_000_000)
    with _connected(gateway, echo) as connection:
        sending = threading.Thread(target=connection.sendall, args=(data,))
        sending.start()
        got = b""
        for _ in range(num_breaks):
            got += _received(connection, 1_000_000)
            assert gateway._process is not None
            broken = gateway._process.pid
            gateway._process.kill()
            wait_for(
                lambda pid=broken: gateway._process is not None and gateway._process.pid != pid,  # type: ignore[misc]
                what="another stream",
            )
        got += _received(connection, len(data) - len(got))
        sending.join()
        assert got == data


def test_a_receiver_that_stands_still_holds_up_no_other(gateway: Gateway, echo: int) -> None:
    with _connected(gateway, echo) as still, _connected(gateway, echo) as lively:
        still.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while still.send(bytes(1 << 16)):
                pass  # It is never asked for its answers.
        lively.sendall(b"here")
        assert _received(lively, 4) == b"here"


def test_a_closed_port_is_told_from_an_open_one(gateway: Gateway, echo: int) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"tcp://127.0.0.1:{closed.getsockname()[1]}"
        assert gateway.knock(url, WAIT_SECONDS) == "Connection refused"
    assert gateway.knock(f"tcp://127.0.0.1:{echo}", WAIT_SECONDS) == ""


def test_garbage_over_the_stream_ends_the_stream_and_not_the_far_end(
    gateway: Gateway, echo: int
) -> None:
    with _connected(gateway, echo) as connection:
        connection.sendall(b"before")
        assert _received(connection, 6) == b"before"
        first = gateway._process
        gateway._end.post(lambda: gateway._end._stream._push(b"\xff" * 64))
        wait_for(
            lambda: gateway._process is not None and gateway._process is not first,
            what="another stream",
        )
        connection.sendall(b"after")
        assert _received(connection, 5) == b"after"


def test_a_gateway_that_cannot_be_reached_says_so_in_its_own_words() -> None:
    with pytest.raises(GatewayError, match="nosuch: no such host"):
        Gateway(["sh", "-c", "echo no such host >&2; exit 255"], "nosuch")
    with pytest.raises(GatewayError, match="cannot run `no-such-program`: No such file"):
        Gateway(["no-such-program"], "nosuch")
    with pytest.raises(GatewayError, match=r"no-such-python.*not found"):
        Gateway(["sh", "-c"], "bare", "no-such-python")


@pytest.mark.long
def test_a_login_that_says_nothing_is_told_by_its_end_or_by_how_long_it_was_waited_for() -> None:
    with pytest.raises(GatewayError, match=r"^mute: .* ended with status 3 and said nothing"):
        Gateway(["sh", "-c", "exit 3"], "mute")
    with pytest.raises(GatewayError, match=r"^deaf: no answer within 1 s"):
        Gateway(["sh", "-c", "exec sleep 600"], "deaf", first_seconds=1.0)


def test_nothing_stays_at_the_far_end(tmp_path: os.PathLike[str], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setenv("MONARCH_RUNTIME_DIR", str(tmp_path))
    made = Gateway(["sh", "-c"], "here", sys.executable)
    folder = os.path.join(tmp_path, f"gateway-{os.getuid()}")
    assert len(os.listdir(folder)) == 1
    made.close()
    wait_for(lambda: not os.listdir(folder), what="the far end to end")
