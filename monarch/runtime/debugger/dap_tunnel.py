"""debugpy in this process, connected to an editor's adapter through our messages: no port is
opened.

debugpy's connection is one end of a socket pair; the bytes at the other end are sent as messages.
The session belongs to the process, so there is one at a time.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

from monarch.errors import MonarchError
from monarch.runtime.links.network import Gone
from monarch.runtime.node import Node
from monarch.wire.address import Uid
from monarch.wire.codec import Envelope
from monarch.wire.message import DapBytes, DapOpened

_MOST_BYTES = 64 * 1024
_LEAVING = (
    b'{"seq":0,"type":"request","command":"disconnect","arguments":{"terminateDebuggee":false}}'
)
_LEAVE = b"Content-Length: %d\r\n\r\n%s" % (len(_LEAVING), _LEAVING)


class DapTunnel:
    """The debugpy of one process, and its sessions with an adapter."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._ours: socket.socket | None = None
        self._channel = ""
        self._client: Uid = ""
        node.handle(DapBytes, self._on_bytes)
        node.on_gone.append(self._forget_gone)

    def open(self, order: DapOpened) -> None:
        """Begin a session; the answer says when debugpy is connected, or why it is not."""
        if self._ours is not None:
            self._node.answer(order, error="an editor is attached there already")
            return
        ours, theirs = socket.socketpair()
        self._ours, self._channel, self._client = ours, order.channel, order.client.uid
        # A command that was killed says no more; the session must not outlive it.
        self._node.failure_detector.watch(
            order.client, order.pid, lambda: self._forget_gone(order.client.uid, Gone.DOWN)
        )
        threading.Thread(
            target=self._pump, args=(ours, order), name="pydevd.monarch-out", daemon=True
        ).start()
        threading.Thread(
            target=self._connect, args=(theirs, order), name="pydevd.monarch", daemon=True
        ).start()

    def _forget_gone(self, uid: Uid, how: Gone) -> None:
        if uid == self._client and how in (Gone.DOWN, Gone.LEFT):
            self._leave()

    def _connect(self, theirs: socket.socket, order: DapOpened) -> None:
        """Import debugpy, which takes a second; return when an editor has attached."""
        has_begun = threading.Event()

        def begun() -> None:
            has_begun.set()
            self._node.answer(order)

        try:
            connect_debugpy(theirs, order.token, order.parent, begun)
            error = ""
        except ImportError:
            error = "there is no debugpy: pip install 'monarch-loop[debug]', or monarch sync --env"
        except Exception as failed:
            error = f"debugpy could not begin: {failed}"
        if error:
            self._close()
            if not has_begun.is_set():
                self._node.answer(order, error=error)
            else:
                sys.stderr.write(f"no editor attaches: {error}\n")

    def _pump(self, ours: socket.socket, order: DapOpened) -> None:
        while True:
            try:
                data = ours.recv(_MOST_BYTES)
            except OSError:
                data = b""
            with contextlib.suppress(MonarchError, OSError):
                self._node.send(order.client, DapBytes(order.channel), data)
            if not data:
                self._close()
                return

    def _on_bytes(self, envelope: Envelope[DapBytes]) -> None:
        message = envelope.message
        ours = self._ours
        if ours is None or message.channel != self._channel:
            return
        if not envelope.payload:
            self._leave()
            return
        with contextlib.suppress(OSError):
            ours.sendall(bytes(envelope.payload))

    def _leave(self) -> None:
        """End debugpy's session, because the editor has disconnected.

        Without that, debugpy would stop a thread that it held before as soon as the next editor
        attaches.
        """
        ours = self._ours
        if ours is not None:
            with contextlib.suppress(OSError):
                ours.sendall(_LEAVE)
        self._close()

    def _close(self) -> None:
        ours, self._ours = self._ours, None
        if ours is not None:
            with contextlib.suppress(OSError):
                ours.shutdown(socket.SHUT_RDWR)
            ours.close()
            self._node.failure_detector.unexpect(self._client)


def connect_debugpy(
    sock: socket.socket, token: str, parent: int, begun: Callable[[], None]
) -> None:
    """Make debugpy use the socket ``sock`` instead of opening a connection.

    ``begun`` is called when it does. Blocks until an editor has attached.
    """
    # It warns of each process's frozen modules, which are Python's own and are not stepped through.
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    import debugpy

    importlib.import_module("debugpy.server.api")  # It brings pydevd.
    module: Any = importlib.import_module("pydevd")
    for thread in threading.enumerate():
        if thread.name.startswith(("monarch-", "pydevd.")):
            # A breakpoint stops all other threads: without these the editor would not hear of it.
            vars(thread).update(is_pydev_daemon_thread=True, pydev_do_not_trace=True)
    start_client_before = module.start_client

    def start_client(host: str, port: int) -> socket.socket:
        module.start_client = start_client_before
        begun()
        return sock

    module.start_client = start_client
    try:
        more = {"parent_session_pid": parent} if parent else {}
        debugpy.connect(("127.0.0.1", 1), access_token=token, **more)
    finally:
        module.start_client = start_client_before
