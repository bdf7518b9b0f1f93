"""Channels: a port that may be sent to anybody, and a receiver that stays."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, Generic, TypeVar

from monarch.actor.future import Future, make_future
from monarch.actor.replies import value_of
from monarch.errors import MeshFailure
from monarch.runtime import process
from monarch.runtime.node import RawReply
from monarch.runtime.port import Port
from monarch.runtime.promise import Promise
from monarch.wire.address import PortAddress

__all__ = ["Channel", "PortReceiver", "RankedPortReceiver"]

T = TypeVar("T")

_Item = tuple[int, RawReply]


class _Queue:
    """What has arrived, and who waits for what comes next; one of the two is empty."""

    def __init__(self, once: bool) -> None:
        self._once = once
        self._lock = threading.Lock()
        self._items: deque[_Item] = deque()
        self._waiting: deque[Promise[_Item]] = deque()

    def receive(self, rank: int, answer: RawReply) -> bool:
        with self._lock:
            promise = self._waiting.popleft() if self._waiting else None
            if promise is None:
                self._items.append((rank, answer))
        if promise is not None:
            promise.set((rank, answer))
        return self._once

    def down(self, uid: str, failure: MeshFailure) -> bool:
        return False

    def take(self) -> Promise[_Item]:
        promise: Promise[_Item] = Promise()
        with self._lock:
            if self._items:
                promise.set(self._items.popleft())
            else:
                self._waiting.append(promise)
        return promise


class PortReceiver(Generic[T]):
    """The receiving end of a channel. Stays in the process that opened it."""

    def __init__(self, queue: _Queue) -> None:
        self._queue = queue

    def recv(self) -> Future[T]:
        """The next value, whoever sent it; an exception that was sent is raised."""
        return make_future(self._queue.take(), lambda item: value_of(item[1]))

    def ranked(self) -> RankedPortReceiver[T]:
        return RankedPortReceiver(self._queue)


class RankedPortReceiver(Generic[T]):
    """A receiver whose values come with the rank of their sender."""

    def __init__(self, queue: _Queue) -> None:
        self._queue = queue

    def recv(self) -> Future[tuple[int, T]]:
        return make_future(self._queue.take(), lambda item: (item[0], value_of(item[1])))


class Channel(Generic[T]):
    """``Channel.open()`` gives a port and its receiver."""

    @staticmethod
    def open(once: bool = False) -> tuple[Port[Any], PortReceiver[Any]]:
        queue = _Queue(once)
        node = process.current().node
        number = node.open_port(queue, [])
        return Port(PortAddress(node.address, number)), PortReceiver(queue)

    @staticmethod
    def open_ranked(once: bool = False) -> tuple[Port[Any], RankedPortReceiver[Any]]:
        port, receiver = Channel.open(once)
        return port, receiver.ranked()
