"""Addresses of procs that lead to ports of other procs' hosts, as long as an actor lives."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from monarch.actor import ActorError, Point, ProcMesh, this_host, this_proc
from monarch.job import PortForwarder
from monarch.tools.network import free_port

SECONDS = 60.0


@pytest.fixture
def procs() -> Iterator[ProcMesh]:
    mesh = this_host().spawn_procs(per_host={"procs": 2})
    yield mesh
    mesh.stop().get(timeout=SECONDS)


class Server:
    """Tells each connection its name, and ends it."""

    def __init__(self, name: bytes) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, args=[name], daemon=True)
        self._thread.start()

    def _serve(self, name: bytes) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                connection.sendall(name)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    made = [Server(b"0"), Server(b"1")]
    yield made
    for server in made:
        server.close()


def read(address: str) -> bytes:
    host, _, port = address.partition(":")
    with socket.create_connection((host, int(port)), timeout=SECONDS) as connection:
        return connection.makefile("rb").read()


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return probe.connect_ex(("127.0.0.1", port)) != 0


def test_each_proc_leads_to_its_own_port_until_it_stops(
    procs: ProcMesh, servers: list[Server]
) -> None:
    forwarder = this_proc().spawn("forwarder", PortForwarder)
    ports = [server.port for server in servers]

    def port_of(point: Point) -> int:
        return ports[point["procs"]]

    found = forwarder.forward.call_one(procs, port_of, procs, "127.0.0.1:0").get(timeout=SECONDS)
    assert [read(address) for address in found] == [b"0", b"1"]
    one = forwarder.forward.call_one(procs.slice(procs=0), servers[1].port, this_proc())
    here = one.get(timeout=SECONDS)
    assert [read(address) for address in here] == [b"1"]
    forwarder.stop().get(timeout=SECONDS)
    for address in found + here:
        with pytest.raises(OSError):
            read(address)


def test_a_client_that_is_gone_ends_what_streams_to_it(procs: ProcMesh) -> None:
    ended = threading.Event()

    def stream(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            while True:
                connection.sendall(bytes(1 << 16))
        ended.set()

    forwarder = this_proc().spawn("forwarder", PortForwarder)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = threading.Thread(target=stream, args=[listener], daemon=True)
        serving.start()
        port = listener.getsockname()[1]
        asked = forwarder.forward.call_one(procs.slice(procs=0), port, procs.slice(procs=1))
        host, _, near = asked.get(timeout=SECONDS)[0].partition(":")
        client = socket.create_connection((host, int(near)), timeout=SECONDS)
        assert client.recv(1)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        gone = ended.wait(SECONDS)
        forwarder.stop().get(timeout=SECONDS)
        serving.join(SECONDS)
    assert gone


def test_procs_of_a_host_may_share_an_address(procs: ProcMesh, servers: list[Server]) -> None:
    forwarder = this_proc().spawn("forwarder", PortForwarder)
    address = f"127.0.0.1:{free_port()}"
    asked = forwarder.forward.call_one(procs, servers[0].port, procs, address)
    assert asked.get(timeout=SECONDS) == [address, address]
    assert [read(address) for _ in range(8)] == [b"0"] * 8
    forwarder.stop().get(timeout=SECONDS)


def test_where_one_cannot_listen_none_does(procs: ProcMesh, servers: list[Server]) -> None:
    forwarder = this_proc().spawn("forwarder", PortForwarder)
    ports = [free_port(), servers[1].port]

    def address_of(point: Point) -> str:
        return f"127.0.0.1:{ports[point['procs']]}"

    with pytest.raises(ActorError, match="Address already in use"):
        forwarder.forward.call_one(procs, 1234, procs, address_of).get(timeout=SECONDS)
    assert is_free(ports[0])
    forwarder.stop().get(timeout=SECONDS)


def test_what_does_not_fit_is_told_in_words(procs: ProcMesh) -> None:
    forwarder = this_proc().spawn("forwarder", PortForwarder)
    with pytest.raises(ActorError, match="must have the same shape"):
        forwarder.forward.call_one(procs, 1234, procs.slice(procs=0)).get(timeout=SECONDS)
    with pytest.raises(ActorError, match="0 is no port to lead to"):
        forwarder.forward.call_one(procs, lambda point: 0, procs).get(timeout=SECONDS)
    with pytest.raises(ActorError, match="no address to listen at"):
        forwarder.forward.call_one(procs, 1234, procs, "here").get(timeout=SECONDS)
    forwarder.stop().get(timeout=SECONDS)
