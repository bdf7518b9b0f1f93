"""What procs print: read from their pipes, remembered for post-mortems, sent to the client."""

from __future__ import annotations

import functools
import os
from collections import deque
from collections.abc import Callable

from monarch.net.io_loop import IoLoop

__all__ = ["LogStream"]

_READ_BYTES = 64 * 1024
_MAX_LINE_BYTES = 64 * 1024


class LogStream:
    """The stdout and stderr of one proc, line by line.

    ``on_lines(stream, lines)`` gets whole lines, ``stream`` being 1 or 2; ``tail`` holds the
    last few of both. ``drain`` takes what a dead proc left in its pipes.
    """

    def __init__(
        self, loop: IoLoop, tail_lines: int, on_lines: Callable[[int, list[str]], None]
    ) -> None:
        self._loop = loop
        self._on_lines = on_lines
        self._parts: dict[int, bytes] = {1: b"", 2: b""}
        self._ends: dict[int, int] = {}
        self.tail: deque[str] = deque(maxlen=tail_lines)

    def open(self) -> tuple[int, int]:
        """The write ends for stdout and stderr; to be passed on and closed. On the loop."""
        writers = []
        for stream in (1, 2):
            reader, writer = os.pipe()
            os.set_blocking(reader, False)
            self._ends[stream] = reader
            writers.append(writer)
            self._loop.add_reader(reader, functools.partial(self._read, stream))
        return writers[0], writers[1]

    def _read(self, stream: int) -> bool:
        try:
            data = os.read(self._ends[stream], _READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._close(stream)
            return False
        *lines, rest = (self._parts[stream] + data).split(b"\n")
        if len(rest) > _MAX_LINE_BYTES:
            lines.append(rest)
            rest = b""
        self._parts[stream] = rest
        self._emit(stream, lines)
        return True

    def _emit(self, stream: int, lines: list[bytes]) -> None:
        if lines:
            texts = [line.decode("utf-8", "replace").rstrip("\r") for line in lines]
            self.tail.extend(texts)
            self._on_lines(stream, texts)

    def drain(self) -> None:
        """Take all that is left, the unfinished last line included, and close. On the loop."""
        for stream in list(self._ends):
            while stream in self._ends and self._read(stream):
                pass
            self._close(stream)

    def _close(self, stream: int) -> None:
        rest, self._parts[stream] = self._parts[stream], b""
        if rest:
            self._emit(stream, [rest])
        reader = self._ends.pop(stream, None)
        if reader is not None:
            self._loop.remove_reader(reader)
            os.close(reader)
