"""Lines that wait for a reader that is slower than the writer: the first and the last are kept."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple


class Block(NamedTuple):
    """Whole lines of one stream; ``num_dropped`` lines before them were dropped.

    ``label`` names the rank that printed them.
    """

    stream: int
    lines: bytes
    num_dropped: int
    label: str = ""


class Backlog:
    """Lines that wait for a reader, of at most ``max_bytes``. If more arrive, the oldest waiting
    lines are dropped.

    Lines that the reader has taken stay, so with a slow reader lines are missing in the middle of
    the output.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._blocks: deque[tuple[int, bytes, str]] = deque()
        self.num_bytes = 0
        self._num_dropped = 0

    def __len__(self) -> int:
        return len(self._blocks)

    def put(self, stream: int, lines: bytes, label: str = "") -> None:
        """Add whole lines; each ends with a newline."""
        if len(lines) > self._max_bytes:
            cut = lines.index(b"\n", len(lines) - self._max_bytes - 1) + 1
            if cut < len(lines):
                while self._blocks:
                    self._drop_first()
                self._num_dropped += lines.count(b"\n", 0, cut)
                lines = lines[cut:]
        self._blocks.append((stream, lines, label))
        self.num_bytes += len(lines)
        while self.num_bytes > self._max_bytes and len(self._blocks) > 1:
            self._drop_first()

    def take(self) -> Block:
        """Remove and return the oldest lines. Raises ``IndexError`` if there are none."""
        stream, lines, label = self._blocks.popleft()
        self.num_bytes -= len(lines)
        num_dropped, self._num_dropped = self._num_dropped, 0
        return Block(stream, lines, num_dropped, label)

    def _drop_first(self) -> None:
        _, lines, _ = self._blocks.popleft()
        self.num_bytes -= len(lines)
        self._num_dropped += lines.count(b"\n")
