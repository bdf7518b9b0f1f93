"""The pipes that a proc writes to: always drained, so that printing never blocks an actor."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
from collections import deque
from collections.abc import Callable

from monarch.core.log_lines import LineBuffer, Written, clean
from monarch.net.loop import Loop

_READ_BYTES = 256 * 1024
_PIPE_BYTES = 256 * 1024
_MAX_DRAIN_BYTES = 4 << 20
_TAIL_BYTES = 16 * 1024
_MAX_TAIL_LINE = 500

# Written by the proc itself between two lines of its output, so that it takes effect just there.
_MARK, _MARK_END = b"\x1b_monarch-label;", b"\x1b\\"


def label_mark(label: str) -> bytes:
    """Return the bytes that mark where the output of ``label`` begins."""
    name = label.encode()[:200].replace(b"\x1b", b"").replace(b"\n", b" ")
    return _MARK + name + _MARK_END


class LogStream:
    """The stdout and stderr of one proc, as the host agent reads them. All methods run on ``loop``.

    ``on_lines(stream, written)`` is called with whole lines; ``stream`` is 1 or 2. ``labels`` has
    the actor that prints into each stream.
    """

    def __init__(self, loop: Loop, label: str, on_lines: Callable[[int, Written], None]) -> None:
        self._loop = loop
        self._on_lines = on_lines
        self._buffers = {1: LineBuffer(), 2: LineBuffer()}
        self._torn = {1: b"", 2: b""}
        self._ends: dict[int, int] = {}
        self._tail: deque[bytes] = deque()
        self._num_tail_bytes = 0
        self.labels = {1: label, 2: label}

    def open(self) -> tuple[int, int]:
        """Return the write ends for stdout and stderr, which the caller passes on and closes. On
        any thread."""
        writers = []
        for stream in (1, 2):
            reader, writer = os.pipe()
            os.set_blocking(reader, False)
            with contextlib.suppress(OSError):
                # Room for a burst while the reader waits for its turn.
                fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
            self._ends[stream] = reader
            writers.append(writer)
        self._loop.call_soon(self._watch)
        return writers[0], writers[1]

    def _watch(self) -> None:
        for stream, reader in self._ends.items():
            self._loop.add_reader(reader, functools.partial(self._read, stream))

    def _read(self, stream: int) -> int:
        """Read what is in a pipe, at most one buffer full; return how many bytes that was."""
        try:
            data = os.read(self._ends[stream], _READ_BYTES)
        except BlockingIOError:
            return 0
        if not data:
            self._close(stream)
            return 0
        self._take(stream, data)
        return len(data)

    def _take(self, stream: int, data: bytes) -> None:
        data, self._torn[stream] = self._torn[stream] + data, b""
        while (start := data.find(_MARK)) >= 0:
            end = data.find(_MARK_END, start)
            if end < 0:
                data, self._torn[stream] = data[:start], data[start:]
                break
            self._feed(stream, data[:start])
            self.labels[stream] = data[start + len(_MARK) : end].decode("utf-8", "replace")
            data = data[end + len(_MARK_END) :]
        begun = data.rfind(b"\x1b", max(0, len(data) - len(_MARK)))
        if begun >= 0 and not self._torn[stream] and _MARK.startswith(data[begun:]):
            data, self._torn[stream] = data[:begun], data[begun:]
        self._feed(stream, data)

    def _feed(self, stream: int, data: bytes) -> None:
        self._emit(stream, self._buffers[stream].feed(data, self._loop.time()))

    def _emit(self, stream: int, written: Written) -> None:
        if written.shown:
            self._tail.append(written.shown[-_TAIL_BYTES:])
            self._num_tail_bytes += len(self._tail[-1])
            while self._num_tail_bytes - len(self._tail[0]) > _TAIL_BYTES:
                self._num_tail_bytes -= len(self._tail.popleft())
        if written.raw or written.shown:
            self._on_lines(stream, written)

    def tail(self, num_lines: int) -> tuple[str, ...]:
        """Return the last lines of both streams. On any thread."""
        text = clean(b"".join(list(self._tail)).decode("utf-8", "replace"))
        lines = text.split("\n")[:-1][-num_lines:] if num_lines > 0 else []
        return tuple(line[:_MAX_TAIL_LINE] for line in lines)

    def pump(self) -> None:
        """Read what is in the pipes now."""
        for stream in list(self._ends):
            num_bytes = 0
            while stream in self._ends and num_bytes < _MAX_DRAIN_BYTES:
                # A child that the proc has left behind may print for ever.
                if not (num_read := self._read(stream)):
                    break
                num_bytes += num_read

    def drain(self) -> None:
        """Read the rest of the pipes, the unfinished last line included, and close them."""
        self.pump()
        for stream in list(self._ends):
            self._close(stream)

    def _close(self, stream: int) -> None:
        reader = self._ends.pop(stream, None)
        if reader is not None:
            self._loop.remove_reader(reader)
            os.close(reader)
            self._emit(stream, self._buffers[stream].end())
