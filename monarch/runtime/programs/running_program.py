"""A program that this host runs: its process, its streams, and its viewers."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import pty
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from monarch.net.io_loop import IoLoop
from monarch.runtime.programs import guard
from monarch.runtime.programs.byte_flows import ByteSink, ByteSource
from monarch.runtime.programs.byte_streams import Streams
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.message import (
    Message,
    ProgramEnded,
    RunProgram,
    StreamData,
    StreamEnd,
    StreamRoom,
)

_KEPT_BYTES = 256 * 1024
_MAX_LAG_BYTES = 1 << 20
_SKIPPED = b"\r\n... output was skipped here, faster than it could be shown ...\r\n"


class RunningProgram:
    """A running program; all methods run on ``loop``. ``over`` is called when it and everything it
    started has ended.

    A viewer never delays a kept program: output that a viewer cannot take in time is skipped.
    Raises ``OSError`` if the process cannot be started.
    """

    def __init__(
        self,
        loop: IoLoop,
        order: RunProgram,
        command: Sequence[str],
        env: Mapping[str, str],
        directory: str,
        *,
        streams: Streams,
        over: Callable[[], object],
    ) -> None:
        self.order = order
        #: When it was started, in seconds since 1970.
        self.began = time.time()
        #: Its exit status, as shells have it; None while it runs.
        self.status: int | None = None
        self._loop, self._streams, self._over = loop, streams, over
        #: The clients that see it; of a program that is not kept, its owner.
        self._viewers: dict[Uid, ProcAddress] = {}
        #: By viewer of a kept program: the bytes that were sent and not yet shown.
        self._lags: dict[Uid, int] = {}
        #: The last output of a kept program, for viewers that come later.
        self._last = bytearray()
        #: What the guard has written so far of its last line, which is the exit status.
        self._line = b""
        if not order.is_kept:
            self._viewers[order.owner.uid] = order.owner
        #: Our end of the guard's socket: signals go through it, and its end ends the program.
        self._lifeline, far = socket.socketpair()
        #: Our end of the program's terminal; -1 if it has none.
        self._terminal = -1
        try:
            with far:
                self._process = self._start(command, env, directory, far)
        except BaseException:
            self._lifeline.close()
            raise
        self._lifeline.setblocking(False)
        loop.add_reader(self._lifeline.fileno(), self._on_lifeline)

    def _start(
        self, command: Sequence[str], env: Mapping[str, str], directory: str, far: socket.socket
    ) -> subprocess.Popen[bytes]:
        order = self.order
        has_terminal = order.rows > 0
        slave = -1
        if has_terminal:
            self._terminal, slave = pty.openpty()
            self.resize(order.rows, order.columns)
        streams = slave if has_terminal else subprocess.PIPE
        try:
            arguments = str(far.fileno()), str(int(has_terminal)), directory
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", guard.__file__, *arguments, *command],
                stdin=streams,
                stdout=streams,
                stderr=streams,
                pass_fds=[far.fileno()],
                env=dict(env),
                start_new_session=True,
                bufsize=0,
            )
        except BaseException:
            if has_terminal:
                os.close(self._terminal)
            raise
        finally:
            if slave >= 0:
                os.close(slave)
        if has_terminal:
            fds = {1: self._terminal}
            stdin_fd = self._terminal
        else:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            fds = {1: process.stdout.fileno(), 2: process.stderr.fileno()}
            stdin_fd = process.stdin.fileno()
        self._sources = {
            stream: ByteSource(
                self._loop,
                fd,
                functools.partial(self._on_output, stream),
                functools.partial(self._tell, StreamEnd(order.uid, stream)),
            )
            for stream, fd in fds.items()
        }
        self._sink = ByteSink(self._loop, stdin_fd, self._on_taken, self._end_input)
        for source in self._sources.values():
            source.start()
        return process

    @property
    def pid(self) -> int:
        return self._process.pid

    def describe(self) -> dict[str, Any]:
        """Return a short description of the program, for the host's state."""
        return {
            "uid": self.order.uid,
            "title": self.order.title,
            "pid": self.pid,
            "began": self.began,
            "is_kept": self.order.is_kept,
            "status": self.status,
            "num_viewers": len(self._viewers) if self.order.is_kept else 0,
        }

    def _tell(self, message: Message, payload: bytes = b"") -> None:
        for viewer in self._viewers.values():
            self._streams.send(viewer, message, payload)

    def _on_output(self, stream: int, data: bytes) -> None:
        message = StreamData(self.order.uid, stream)
        if not self.order.is_kept:
            self._tell(message, data)
            return
        self._last += data
        del self._last[: max(0, len(self._last) - _KEPT_BYTES)]
        for uid, viewer in self._viewers.items():
            if self._lags[uid] > _MAX_LAG_BYTES:
                continue
            self._lags[uid] += len(data)
            late = self._lags[uid] > _MAX_LAG_BYTES
            self._streams.send(viewer, message, data + _SKIPPED if late else data)
        self._sources[stream].taken(len(data))

    def view(self, viewer: ProcAddress, rows: int, columns: int) -> None:
        """Show the program to a further viewer, beginning with its last output."""
        self._viewers[viewer.uid], self._lags[viewer.uid] = viewer, 0
        start = self._last.find(b"\n") + 1 if len(self._last) == _KEPT_BYTES else 0
        if start < len(self._last):
            last = bytes(self._last[start:])
            self._streams.send(viewer, StreamData(self.order.uid, 1), last)
        if self.status is not None:
            self._streams.send(viewer, ProgramEnded(self.order.uid, self.status))
        elif rows:
            self.resize(rows, columns)

    def leave(self, viewer: Uid) -> None:
        """Remove a viewer. A program that is not kept ends with its last viewer."""
        self._viewers.pop(viewer, None)
        self._lags.pop(viewer, None)
        if not self.order.is_kept and not self._viewers:
            self.close()

    def is_seen_by(self, viewer: Uid) -> bool:
        return viewer in self._viewers

    def put(self, data: bytes) -> None:
        """Write data to the program's standard input."""
        if self.status is None:
            self._sink.put(data)

    def end(self) -> None:
        """Close the program's standard input."""
        if self.status is None:
            self._sink.end()

    def _on_taken(self, num_bytes: int) -> None:
        self._tell(StreamRoom(self.order.uid, 0, num_bytes))

    def _end_input(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()

    def taken(self, room: StreamRoom) -> None:
        """Note that a viewer has shown so many bytes."""
        if room.sender in self._lags:
            self._lags[room.sender] = max(0, self._lags[room.sender] - room.num_bytes)
        elif not self.order.is_kept and room.stream in self._sources and self.status is None:
            self._sources[room.stream].taken(room.num_bytes)

    def signal(self, number: int) -> None:
        """Send a signal to the program and its children, in a terminal to the foreground group."""
        with contextlib.suppress(OSError, ValueError):
            self._lifeline.send(bytes([number]))

    def resize(self, rows: int, columns: int) -> None:
        if self._terminal >= 0 and 0 < rows < 1 << 16 and 0 < columns < 1 << 16:
            size = struct.pack("HHHH", rows, columns, 0, 0)
            with contextlib.suppress(OSError):
                fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, size)

    def close(self) -> None:
        """End the program, and all that it has started."""
        with contextlib.suppress(OSError):
            self._lifeline.shutdown(socket.SHUT_WR)

    def _on_lifeline(self) -> None:
        try:
            data = self._lifeline.recv(64)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._line += data
        if data and not self._line.endswith(b"\n"):
            return
        self._loop.remove_reader(self._lifeline.fileno())
        self._lifeline.close()
        status = self._line.strip()
        # First the last bytes of output: all processes of the program are gone.
        for source in self._sources.values():
            source.drain()
            source.close()
        self._sink.close()
        code = self._process.wait()
        for file in (self._process.stdin, self._process.stdout, self._process.stderr):
            if file is not None:
                file.close()
        if self._terminal >= 0:
            os.close(self._terminal)
            self._terminal = -1
        self.status = int(status) if status.isdigit() else 128 + signal.SIGKILL
        reason = "" if status.isdigit() else f"its guard was ended on the host (status {code})"
        self._tell(ProgramEnded(self.order.uid, self.status, reason))
        self._over()
