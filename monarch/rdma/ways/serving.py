"""The owner's answers to other processes: tickets for data sockets, remote drops, CUDA handles.

They run on the I/O loop or on threads of their own, also while the owner's actors are busy.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from monarch.config import settings
from monarch.errors import RemoteMemoryError
from monarch.rdma.memory.registry import registry
from monarch.rdma.ways.tcp_server import StreamServer
from monarch.runtime.node import Node
from monarch.wire.codec import Envelope
from monarch.wire.message import AskMemory

Answer = dict[str, Any]

answers: dict[str, Callable[[dict[str, Any]], Answer]] = {}
"""The other requests, by name: a function gets the message's ``about`` on a thread of its own, and
returns the answer."""


class MemoryService:
    """Answers the ``AskMemory`` requests of one node."""

    def __init__(self, node: Node) -> None:
        self._node = weakref.ref(node)
        #: The servers of data sockets, by whether they are encrypted.
        self._servers: dict[bool, StreamServer] = {}
        self._lock = threading.Lock()
        node.handle(AskMemory, self._on_ask)

    def _on_ask(self, envelope: Envelope[AskMemory]) -> None:
        threading.Thread(
            target=self._answer, args=(envelope.message,), name="monarch-rdma-ask", daemon=True
        ).start()

    def _answer(self, ask: AskMemory) -> None:
        node = self._node()
        if node is None:
            return
        try:
            if ask.what == "stream":
                body = self._ticket(node)
            elif ask.what == "drop":
                registry().drop(ask.about["slot"], ask.about["key"])
                body = {}
            else:
                body = answers[ask.what](ask.about)
            node.answer(ask, body)
        except RemoteMemoryError as error:
            node.answer(ask, error=error.reason)
        except Exception as error:
            node.answer(ask, error=f"{type(error).__name__}: {error}")

    def _ticket(self, node: Node) -> Answer:
        encrypted = settings().rdma_tcp_encrypted
        host = _host_of(node)
        with self._lock:
            server = self._servers.get(encrypted)
            if server is None:
                server = self._servers[encrypted] = StreamServer(host, encrypted=encrypted)
        ticket = server.issue()
        address = {"host": host, "port": server.port, "encrypted": encrypted}
        return {**address, "number": ticket.number, "secret": ticket.secret}

    def close(self) -> None:
        with self._lock:
            servers = list(self._servers.values())
            self._servers.clear()
        for server in servers:
            server.close()


def _host_of(node: Node) -> str:
    """Return the host name or address at which others reach this node; the loopback if it has no
    TCP."""
    for url in node.address.urls:
        if url.startswith("tcp://"):
            return urlsplit(url).hostname or "127.0.0.1"
    return "127.0.0.1"
