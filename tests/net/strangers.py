"""Strangers at an open port: the bytes that they send, and a wire to tamper with."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

from tests.support import wait_for

MECHANISMS = ("NULL", "PLAIN", "CURVE", "GSSAPI", "")


def greeting(mechanism: str, as_server: bool = False) -> bytes:
    """The first 64 bytes of a ZMTP 3.0 peer."""
    name = mechanism.encode().ljust(20, b"\0")
    return b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + name + bytes([as_server]) + bytes(31)


def command(name: bytes, body: bytes = b"") -> bytes:
    data = bytes([len(name)]) + name + body
    return b"\x06" + len(data).to_bytes(8, "big") + data


def frame(data: bytes, more: bool = False) -> bytes:
    return bytes([0x02 | more]) + len(data).to_bytes(8, "big") + data


def message(*frames: bytes) -> bytes:
    last = len(frames) - 1
    return b"".join(frame(data, index < last) for index, data in enumerate(frames))


READY = command(b"READY", b"\x0bSocket-Type\x00\x00\x00\x04PUSH")
HELLO_PLAIN = command(b"HELLO", b"\x04root\x04root")


def address(url: str) -> tuple[str, int]:
    host, port = url.removeprefix("tcp://").split(":")
    return host, int(port)


def connect(url: str) -> socket.socket:
    return socket.create_connection(address(url), timeout=20)


def say(url: str, data: bytes) -> None:
    """Connect, send ``data``, and wait until the other side hangs up."""
    with connect(url) as line:
        try:
            line.sendall(data)
            line.shutdown(socket.SHUT_WR)
            while line.recv(4096):
                pass
        except TimeoutError:
            raise
        except OSError:
            pass  # Turned away before it was done.


class Wire:
    """Relays TCP from a port of its own to ``target``, and keeps what the caller sent.

    ``tamper`` gets each piece from the caller and returns what is passed on.
    """

    def __init__(self, target: str) -> None:
        self._target = address(target)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self.recorded: list[bytes] = []
        self.num_connections = 0
        self.num_closed = 0
        self.tamper: Callable[[bytes], bytes] = lambda data: data
        self._outward: list[socket.socket] = []
        self._lines: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                return
            callee = socket.create_connection(self._target, timeout=20)
            self._lines += [caller, callee]
            self._outward.append(callee)
            self.num_connections += 1
            for source, sink, is_outward in ((caller, callee, True), (callee, caller, False)):
                thread = threading.Thread(
                    target=self._pump, args=(source, sink, is_outward), daemon=True
                )
                self._threads.append(thread)
                thread.start()

    def _pump(self, source: socket.socket, sink: socket.socket, is_outward: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if is_outward:
                    self.recorded.append(data)
                    data = self.tamper(data)
                sink.sendall(data)
        for line in (source, sink):
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
        self.num_closed += not is_outward

    def tamper_once(self, change: Callable[[bytes], bytes]) -> None:
        """Change the next piece alone: the caller may be back before the test takes its hands off,
        and what it says then is to pass."""

        def tamper(data: bytes) -> bytes:
            self.tamper = lambda data: data
            return change(data)

        self.tamper = tamper

    def inject(self, data: bytes) -> None:
        """Send bytes to the target as if the last caller had."""
        self._outward[-1].sendall(data)

    def wait_until_refused(self, num: int = 1) -> None:
        wait_for(lambda: self.num_closed >= num, what="the target hangs up")

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for line in self._lines:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10.0)
        for line in self._lines:
            line.close()
