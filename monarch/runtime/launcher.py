"""The host agent's side of a zygote: starts it, has it fork, hears of deaths."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from monarch.net.io_loop import IoLoop
from monarch.runtime.proc_config import ProcConfig
from monarch.wire.address import Uid

__all__ = ["Launcher", "describe_exit"]

_PACKET_BYTES = 64 * 1024
_SEND_BUFFER_BYTES = 1 << 20


class Launcher:
    """One zygote. All methods and callbacks are for the I/O loop.

    ``on_forked(uid, pid)``, ``on_exited(uid, exit_code)`` report procs; when the zygote itself
    dies, every proc of it dies too and is reported with ``exit_code`` ``None``.
    """

    def __init__(
        self,
        loop: IoLoop,
        on_forked: Callable[[Uid, int], None],
        on_exited: Callable[[Uid, int | None], None],
        python: str = "",
    ) -> None:
        self._loop = loop
        self._on_forked = on_forked
        self._on_exited = on_exited
        self._procs: set[Uid] = set()
        self._preloaded: list[Callable[[dict[str, str]], None]] = []
        self.environment = dict(os.environ)
        self.directory = os.getcwd()
        self.modules: set[str] = set()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket = ours
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        # Its own session: the terminal's Ctrl-C is the client's to handle, not the procs'.
        self._process = subprocess.Popen(
            [python or sys.executable, "-m", "monarch.runtime.zygote", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()
        loop.add_reader(ours.fileno(), self._on_readable)

    def fork(self, config: ProcConfig, out: int, err: int) -> None:
        """Make a proc that writes its output to ``out`` and ``err`` (closed here after)."""
        self._procs.add(config.uid)
        data = msgspec.json.encode({"op": "fork", "config": config})
        try:
            socket.send_fds(self._socket, [data], [out, err])
        except OSError:
            self._lost()

    def preload(
        self, modules: Sequence[str], done: Callable[[dict[str, str]], None] | None = None
    ) -> None:
        """Import ``modules`` in the template; ``done`` gets the errors by module name."""
        self.modules.update(modules)
        self._preloaded.append(done or (lambda errors: None))
        self._send({"op": "preload", "modules": list(modules)})

    def kill(self, uid: Uid) -> None:
        self._send({"op": "kill", "uid": uid})

    def _send(self, order: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            self._socket.send(msgspec.json.encode(order))

    def _on_readable(self) -> None:
        data = b""
        with contextlib.suppress(OSError):
            data = self._socket.recv(_PACKET_BYTES)
        if not data:
            self._lost()
            return
        event = msgspec.json.decode(data)
        if event["event"] == "forked":
            self._on_forked(event["uid"], event["pid"])
        elif event["event"] == "exited":
            self._procs.discard(event["uid"])
            self._on_exited(event["uid"], event["code"])
        elif event["event"] == "preloaded":
            self._preloaded.pop(0)(event["errors"])

    def _lost(self) -> None:
        """The zygote is gone, and with it all its procs."""
        self.close()
        lost, self._procs = self._procs, set()
        for uid in lost:
            self._on_exited(uid, None)
        waiting, self._preloaded = self._preloaded, []
        for done in waiting:
            done({"": "the template process died"})

    @property
    def is_alive(self) -> bool:
        return self._socket.fileno() != -1

    def close(self) -> None:
        """End the zygote and every proc of it."""
        if self._socket.fileno() == -1:
            return
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        try:
            self._process.wait(0.2)
        except subprocess.TimeoutExpired:
            # Busy importing, it has not seen the socket close; its procs die with it.
            self._process.kill()
            self._process.wait()


def describe_exit(code: int | None) -> str:
    """An exit code in words."""
    if code is None:
        return "its template process died"
    if code >= 0:
        return f"it exited with status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = str(-code)
    return f"it was killed by {name}"
