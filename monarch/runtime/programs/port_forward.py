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
from monarch.runtime.programs.byte_streams import streams_of
from monarch.runtime.programs.streamed_socket import StreamedSocket
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.message import OpenPort

_CONNECT_SECONDS = 20.0


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
        node, streams, uid = self._node, streams_of(self._node), new_uid()
        streamed = self._open[uid] = StreamedSocket(
            streams,
            self._loop,
            connection,
            uid,
            self._host,
            over=lambda: self._open.pop(uid, None),
        )
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
            else:
                streams.watch(self._host, answer.value.answer)

        answer.on_set(answered)
        streamed.start_when(answer)

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
            streamed.close_now()


def agent_of(proc: ProcAddress) -> ProcAddress:
    """Return the address of a proc's host agent."""
    return ProcAddress(proc.host_uid, proc.host_urls, proc.machine or machine_id())
