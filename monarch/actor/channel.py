"""Channels: a port that can be sent to any process, and a receiver that stays in its own."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

from monarch.actor.future import Future
from monarch.actor.replies import value_of
from monarch.errors import MeshFailure
from monarch.runtime import process
from monarch.runtime.answers import RawReply
from monarch.runtime.node import Node
from monarch.runtime.port import Port
from monarch.runtime.promise import Promise
from monarch.wire.address import PortAddress

T = TypeVar("T")

_Item = tuple[int, RawReply]


class _Queue:
    """The values that have arrived at a channel; without any, the receivers that wait for one."""

    def __init__(self, once: bool) -> None:
        self._once = once
        self._lock = threading.Lock()
        #: Values, and marks to call when all values before them have been taken.
        self.items: deque[_Item | Callable[[], None]] = deque()
        # Weak: a value must not go to a receiver that no longer exists.
        self._waiting: deque[weakref.ref[Promise[_Item]]] = deque()

    def receive(self, rank: int, answer: RawReply) -> bool:
        with self._lock:
            promise = self._next_waiting()
            if promise is None:
                self.items.append((rank, answer))
        if promise is not None:
            promise.set((rank, answer))
        return self._once

    def _next_waiting(self) -> Promise[_Item] | None:
        while self._waiting:
            promise = self._waiting.popleft()()
            if promise is not None:
                return promise
        return None

    def give_up(self, promise: Promise[_Item]) -> None:
        """Remove a receiver that has stopped waiting. If it has a value already, the next receiver
        gets that.
        """
        with self._lock:
            for index, waiting in enumerate(self._waiting):
                if waiting() is promise:
                    del self._waiting[index]
                    return
        promise.on_set(lambda: self._give_back(promise.value))

    def _give_back(self, item: _Item) -> None:
        with self._lock:
            promise = self._next_waiting()
            if promise is None:
                self.items.appendleft(item)
        if promise is not None:
            promise.set(item)

    def mark(self, taken: Callable[[], None]) -> None:
        """Call ``taken`` once all current items have been taken; it may be called more than
        once."""
        with self._lock:
            if self.items:
                self.items.append(taken)
                return
        taken()

    def take(self, taker: _Received[Any]) -> None:
        """Give ``taker`` a claim on the next value; ``taker`` gives the claim up if it is
        interrupted.
        """
        promise: Promise[_Item] = Promise()
        with self._lock:
            for index, item in enumerate(self.items):
                if isinstance(item, tuple):
                    promise.set(item)
                    # No call between these two, so that Ctrl-C cannot come between them.
                    taker._claim = promise
                    del self.items[index]
                    break
            else:
                taker._claim = promise
                self._waiting.append(weakref.ref(promise))
        self._pass_marks()

    def _pass_marks(self) -> None:
        """Call the marks at the head of the queue, and remove each after its call.

        If a call is interrupted, the next receiver that takes a value calls it again.
        """
        while True:
            with self._lock:
                mark = self.items[0] if self.items else ()
            if isinstance(mark, tuple):
                return
            mark()
            with self._lock:
                if self.items and self.items[0] is mark:
                    del self.items[0]


class _Inlet:
    """The sink that the node puts arriving values into; it does not keep the queue alive."""

    def __init__(self, queue: _Queue) -> None:
        self._queue = weakref.ref(queue)

    def receive(self, rank: int, answer: RawReply) -> bool:
        queue = self._queue()
        return queue is None or queue.receive(rank, answer)

    def down(self, uid: str, failure: MeshFailure) -> bool:
        return False

    def mark(self, taken: Callable[[], None]) -> None:
        queue = self._queue()
        if queue is None:
            taken()
        else:
            queue.mark(taken)


def _abandon(node: Node, number: int, items: deque[_Item | Callable[[], None]]) -> None:
    """Close the port of a channel whose receiver is gone, and answer the marks in its queue.

    So its senders need not wait for room.
    """
    node.calls.close(number)
    for item in items:
        if not isinstance(item, tuple):
            # On the loop: this may be any thread, with any lock held.
            node.loop.call_soon(item)


def _ranked_value_of(item: _Item) -> tuple[int, Any]:
    return item[0], value_of(item[1])


class _Received(Future[T]):
    """A value of a channel; the first ``get`` or ``await`` claims it.

    A future that nobody asks takes no value, and of several futures the first that is asked gets
    the first value. A future loses its claim when its wait times out, is cancelled or is
    interrupted; it claims again when it is asked again.
    """

    _queue: _Queue
    #: The promise of the value; ``None`` while nobody waits for it.
    _claim: Promise[_Item] | None
    #: The waits in progress.
    _waits: set[object]
    #: Whether a wait has returned the value.
    _has_returned: bool

    @classmethod
    def of(cls, queue: _Queue, resolve: Callable[[_Item], T]) -> Future[T]:
        future: _Received[T] = object.__new__(cls)
        future._queue = queue
        future._claim = None
        future._waits = set()
        future._has_returned = False
        future._resolve = resolve
        future._lock = threading.Lock()
        future._outcome = None
        return future

    @property
    def _promise(self) -> Promise[Any]:  # type: ignore[override]
        if self._claim is None:
            with self._lock:
                if self._claim is None:
                    self._queue.take(self)
        assert self._claim is not None
        return self._claim

    def get(self, timeout: float | None = None) -> T:
        wait = object()
        try:
            self._begin_wait(wait)
            value, error = self._outcome_within(timeout)
        except BaseException:
            self._end_wait(wait)
            raise
        # Nothing is called from here on, so that Ctrl-C comes before, or when the caller has it.
        self._has_returned = True
        if error is not None:
            raise error
        return value  # type: ignore[return-value]

    def __await__(self) -> Generator[Any, None, T]:
        wait = object()
        try:
            self._begin_wait(wait)
            value, error = yield from self._outcome_awaited()
        except BaseException:
            self._end_wait(wait)
            raise
        self._has_returned = True
        if error is not None:
            raise error
        return value  # type: ignore[return-value]

    def as_asyncio(self) -> asyncio.Future[T]:
        wait = object()
        self._begin_wait(wait)
        observer = super().as_asyncio()
        observer.add_done_callback(lambda _: self._end_observing(wait, observer))
        return observer

    def _begin_wait(self, wait: object) -> None:
        with self._lock:
            self._waits.add(wait)

    def _end_observing(self, wait: object, observer: asyncio.Future[T]) -> None:
        if self._outcome is not None and not observer.cancelled():
            self._has_returned = True
        self._end_wait(wait)

    def _end_wait(self, wait: object) -> None:
        """Give up the claim if no waiter is left and none has got the value."""
        with self._lock:
            self._waits.discard(wait)
            if self._waits or self._has_returned or self._claim is None:
                return
            claim, self._claim, self._outcome = self._claim, None, None
        self._queue.give_up(claim)


class PortReceiver(Generic[T]):
    """The receiving end of a channel. Stays in the process that opened it."""

    def __init__(self, queue: _Queue) -> None:
        self._queue = queue

    def recv(self) -> Future[T]:
        """Return a future of the next value from any sender; it raises if the value is an
        exception.

        The future claims its value when somebody first waits for it.
        """
        return _Received.of(self._queue, lambda item: value_of(item[1]))

    def ranked(self) -> RankedPortReceiver[T]:
        """Return a receiver of the same values, each with the rank of its sender."""
        return RankedPortReceiver(self._queue)


class RankedPortReceiver(Generic[T]):
    """A receiver whose values come with the rank of their sender."""

    def __init__(self, queue: _Queue) -> None:
        self._queue = queue

    def recv(self) -> Future[tuple[int, T]]:
        """Return a future of the next value, as (rank, value); it raises if the value is an
        exception."""
        return _Received.of(self._queue, _ranked_value_of)


class Channel(Generic[T]):
    """A port and its receiver: ``Channel.open()`` makes both."""

    @staticmethod
    def open(once: bool = False) -> tuple[Port[Any], PortReceiver[Any]]:
        """Return a port and its receiver. The port may be sent to other processes; the receiver
        stays in this process. With ``once`` the port takes a single value.
        """
        queue = _Queue(once)
        node = process.current().node
        number = node.open_port(_Inlet(queue), [])
        # Once the receiver is gone, the values can be received by no one else.
        weakref.finalize(queue, _abandon, node, number, queue.items).atexit = False
        return Port(PortAddress(node.address, number, is_channel=True)), PortReceiver(queue)

    @staticmethod
    def open_ranked(once: bool = False) -> tuple[Port[Any], RankedPortReceiver[Any]]:
        """Open a port as ``open`` does; its receiver gives each value with the rank of the
        sender."""
        port, receiver = Channel.open(once)
        return port, receiver.ranked()
