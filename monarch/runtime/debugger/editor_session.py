"""debugpy in this process, connected to an editor's adapter through our messages: no port is
opened.

debugpy's connection is one end of a socket pair; the other end is streamed to the adapter.
"""

from __future__ import annotations

import importlib
import os
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

from monarch.net.io_loop import IoLoop
from monarch.runtime.node import Node
from monarch.runtime.programs.byte_streams import streams_of
from monarch.runtime.programs.streamed_socket import StreamedSocket
from monarch.wire.message import DapOpened, ProcDown

# Without it, debugpy would stop a thread that it held before as soon as the next editor attaches.
_LEAVING = (
    b'{"seq":0,"type":"request","command":"disconnect","arguments":{"terminateDebuggee":false}}'
)
_LEAVE = b"Content-Length: %d\r\n\r\n%s" % (len(_LEAVING), _LEAVING)


class EditorSession:
    """The session of an editor with this process's debugpy: at most one at a time."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._session: StreamedSocket | None = None

    def open(self, order: DapOpened) -> None:
        """Begin a session; the answer says when debugpy is connected, or why it is not."""
        node = self._node
        if self._session is not None:
            node.answer(order, error="an editor is attached there already")
            return
        assert isinstance(node.loop, IoLoop), "an editor needs a loop of the operating system"
        ours, theirs = socket.socketpair()
        self._session = session = StreamedSocket(
            streams_of(node), node.loop, ours, order.uid, order.client,
            over=lambda: self._over(order), is_at_host=True, farewell=_LEAVE,
        )  # fmt: skip
        # A command that was killed says no more; the session must not outlive it.
        down = ProcDown(order.client.uid, "the editor's command ended", expected=True)
        node.failure_detector.watch(order.client, order.pid, lambda: node.peer_down.report(down))
        session.start()
        threading.Thread(
            target=self._connect, args=(theirs, order, session), name="pydevd.monarch", daemon=True
        ).start()

    def _over(self, order: DapOpened) -> None:
        self._session = None
        self._node.failure_detector.unexpect(order.client.uid)

    def _connect(self, theirs: socket.socket, order: DapOpened, session: StreamedSocket) -> None:
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
            session.close()
            if not has_begun.is_set():
                self._node.answer(order, error=error)
            else:
                sys.stderr.write(f"no editor attaches: {error}\n")


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
