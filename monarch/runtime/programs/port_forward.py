"""A local port that leads to a port of a host, through the existing connection to its agent."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable

from monarch.net.identifiers import new_uid
from monarch.net.io_loop import IoLoop
from monarch.net.machine import machine_id
from monarch.runtime.answers import Response
from monarch.runtime.node import Node
from monarch.runtime.programs.port_connections import StreamedSocket
from monarch.runtime.programs.remote_program import streams_of
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.message import LeaveProgram, Message, OpenPort

_CONNECT_SECONDS = 20.0


class _Forwarded:
    """One connection: data from ``Streams`` goes to its socket, on the forward's loop."""

    def __init__(self, loop: IoLoop, host: ProcAddress, connection: StreamedSocket) -> None:
        self.host = host
        self._loop, self._connection = loop, connection

    def on_data(self, stream: int, data: bytes) -> None:
        self._loop.call_soon(lambda: self._connection.put(data))

    def on_room(self, num_bytes: int) -> None:
        self._loop.call_soon(lambda: self._connection.taken(num_bytes))

    def on_end(self, stream: int) -> None:
        self._loop.call_soon(self._connection.end)

    def on_over(self, status: int, reason: str) -> None:
        self._loop.call_soon(self._connection.close)


class PortForward:
    """Forwards connections from a local port to a port that a host can reach.

    It listens at ``bind`` (address and port; port 0 picks a free one). ``host`` connects to
    ``port_number`` of ``to``, which is a name as ``host`` sees it. ``tell`` gets a line when a
    connection fails. With ``is_shared``, other forwards may listen at the same address.

    Raises ``OSError`` if it cannot listen.
    """

    def __init__(
        self,
        node: Node,
        host: ProcAddress,
        port_number: int,
        *,
        bind: tuple[str, int] = ("127.0.0.1", 0),
        to: str = "127.0.0.1",
        is_shared: bool = False,
        tell: Callable[[str], object] = lambda text: None,
    ) -> None:
        self._node, self._host = node, host
        self._to = to, port_number
        self._tell = tell
        self._open: dict[Uid, StreamedSocket] = {}
        self.num_connections = 0
        self._listener = socket.create_server(bind, backlog=64, reuse_port=is_shared)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._loop = IoLoop("monarch-forward")
        self._loop.start()
        self._thread = threading.Thread(target=self._accept, name="monarch-accept", daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # Closed.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.num_connections += 1
            self._ask(connection)

    def _ask(self, connection: socket.socket) -> None:
        node, uid = self._node, new_uid()
        streams = streams_of(node)

        def send(message: Message, payload: bytes) -> None:
            if node.failure_of(self._host.uid) is None:
                node.send(self._host, message, payload)

        def over() -> None:
            streams.remove(uid)
            self._open.pop(uid, None)
            send(LeaveProgram(uid, node.uid), b"")

        streamed = StreamedSocket(
            loop=self._loop,
            connection=connection,
            uid=uid,
            sends=0,
            receives=1,
            send=send,
            over=over,
        )
        self._open[uid] = streamed
        streams.add(uid, _Forwarded(self._loop, self._host, streamed))
        to, number = self._to
        answer = node.ask(
            self._host,
            OpenPort(uid=uid, owner=node.address, pid=os.getpid(), host=to, port_number=number),
        )
        late = node.loop.call_later(
            _CONNECT_SECONDS, lambda: answer.set(Response(None, "the host gives no answer"))
        )

        def answered() -> None:
            late.cancel()
            if answer.value.error:
                self._tell(answer.value.error)
                self._loop.call_soon(streamed.close)
            else:
                streams.watch(self._host, answer.value.answer)
                self._loop.call_soon(streamed.start)

        answer.on_set(answered)

    def close(self) -> None:
        """Stop listening, and close all open connections."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with contextlib.suppress(Exception):
            self._loop.run_on_loop(self._close_all, timeout=1.0)
        self._loop.stop()

    def _close_all(self) -> None:
        for streamed in list(self._open.values()):
            streamed.close()


def agent_of(proc: ProcAddress) -> ProcAddress:
    """Return the address of a proc's host agent."""
    return ProcAddress(proc.host_uid, proc.host_urls, proc.machine or machine_id())
