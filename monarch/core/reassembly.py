"""Bulk that travels in chunks, and the order of messages around it.

Between chunks, small messages can pass: the next chunks of a bulk are sent only when the receiver
asks for them. A message whose bulk is still arriving keeps its place in its sender's order: later
messages of the sender wait until it is complete.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


def chunks_of(pieces: Sequence[memoryview], chunk_bytes: int) -> Iterator[list[memoryview]]:
    """Yield ``pieces`` cut into chunks of ``chunk_bytes``; each chunk is a list of parts, in
    order."""
    chunk: list[memoryview] = []
    room = chunk_bytes
    for piece in pieces:
        start = 0
        while start < len(piece):
            part = piece[start : start + room]
            chunk.append(part)
            start += len(part)
            room -= len(part)
            if room == 0:
                yield chunk
                chunk, room = [], chunk_bytes
    if chunk:
        yield chunk


class Assembly:
    """Copies the chunks of a message, which arrive in order, into ``places``: the memory of the
    message's pieces.
    """

    def __init__(self, places: Sequence[memoryview]) -> None:
        self._places = deque(place for place in places if len(place))
        self._filled = 0

    @property
    def is_complete(self) -> bool:
        return not self._places

    def feed(self, parts: Sequence[memoryview]) -> bool:
        """Copy the parts of a chunk to their places. Return false if they do not fit, which means
        that the sender is broken."""
        for part in parts:
            if not len(part) or not self._places:
                return False
            end = self._filled + len(part)
            region = self._places[0]
            if end > len(region):
                return False
            region[self._filled : end] = part
            self._filled = end
            if end == len(region):
                self._places.popleft()
                self._filled = 0
        return True


class SenderQueues(Generic[T]):
    """Keeps each sender's messages in order while some of them are incomplete."""

    def __init__(self) -> None:
        self.waiting: dict[str, deque[_Entry[T]]] = {}
        """By sender. Empty almost always, which each message that arrives asks."""

    def __len__(self) -> int:
        return len(self.waiting)

    def holds(self, sender: str) -> bool:
        """Return whether messages of ``sender`` have to wait, because an earlier one is
        incomplete.
        """
        return sender in self.waiting

    def begin(self, sender: str, key: object) -> None:
        """Note that a message of ``sender`` has begun to arrive; ``complete`` refers to it by
        ``key``."""
        self.waiting.setdefault(sender, deque()).append(_Entry(key))

    def add(self, sender: str, message: T) -> None:
        """Queue a whole message that has to wait."""
        entry: _Entry[T] = _Entry(None)
        entry.message = message
        self.waiting[sender].append(entry)

    def complete(self, sender: str, key: object, message: T) -> list[T]:
        """Note that a message is whole. Returns the messages of ``sender`` that may be delivered
        now, in order."""
        waiting = self.waiting.get(sender)
        if waiting is None:
            return []
        for entry in waiting:
            if entry.key == key:
                entry.message = message
        return self._let_go(sender, waiting)

    def skip(self, sender: str, key: object) -> list[T]:
        """Drop a message of ``sender`` that will never be complete, because the process that was
        forwarding it is gone. The sender itself still lives.

        Returns the messages that waited for it and may be delivered now.
        """
        waiting = self.waiting.get(sender)
        if waiting is None:
            return []
        lost = [entry for entry in waiting if entry.key == key]
        for entry in lost:
            waiting.remove(entry)
        return self._let_go(sender, waiting)

    def _let_go(self, sender: str, waiting: deque[_Entry[T]]) -> list[T]:
        free = []
        while waiting and (first := waiting[0].message) is not None:
            free.append(first)
            waiting.popleft()
        if not waiting:
            del self.waiting[sender]
        return free

    def drop(self, sender: str) -> None:
        """Forget ``sender``, which is gone, and drop its messages that wait.

        They wait behind an incomplete message, which will never be whole.
        """
        self.waiting.pop(sender, None)


class _Entry(Generic[T]):
    __slots__ = ("key", "message")

    def __init__(self, key: object) -> None:
        self.key = key
        self.message: T | None = None
