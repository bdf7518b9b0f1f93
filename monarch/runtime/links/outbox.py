"""An outbox: the messages of this process to one actor, or into one port, of another (a lane).

Flow control is by credit (``core.flow``): messages leave at once while the receiver keeps up. When
it does not, senders wait as long as it makes progress (back-pressure). A receiver without progress
may be waiting for its senders, which must not become a deadlock: messages to it go to an overflow
on disk, in order, and the I/O loop sends them as the receiver takes messages.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable

from monarch.core.flow import Lane, Window
from monarch.net.transport import Bytes
from monarch.runtime.links.overflow import Overflow
from monarch.wire.codec import Envelope, pack, unpack
from monarch.wire.message import Message

_COUNTED, _FREE, _STOP = b"\1", b"\0", b"\2"


class Outbox:
    """The lane to one receiver, with its overflow. Any thread may use it; the messages of one
    thread keep their order.

    ``deliver`` sends a message without waiting, and copies its buffers before it returns.
    ``send_mark`` sends a mark after the messages, and has ``answered`` called when its answer
    comes. ``soon`` runs a function on the I/O loop. ``count`` is called with +1 when an overflow
    begins, and with -1 when it ends.
    """

    def __init__(
        self,
        window: Window,
        *,
        deliver: Callable[[Envelope[Message]], None],
        send_mark: Callable[[Outbox], None],
        soon: Callable[[Callable[[], None]], object],
        count: Callable[[int], None],
    ) -> None:
        self._lane = Lane(window)
        self._deliver = deliver
        self._send_mark = send_mark
        self._soon = soon
        self._count = count
        #: The messages that wait on disk; None if none wait.
        self._overflow: Overflow | None = None
        #: What is called when the overflow comes to its stops, in their order.
        self._stops: deque[Callable[[], None]] = deque()
        #: Whether nothing passes, until ``release``.
        self.is_held = False
        #: How many marks were answered: this shows that the receiver makes progress.
        self._num_answered = 0
        #: For how long a sender has waited in vain, so that the next one need not wait too.
        self._stood_still_seconds = 0.0
        self._is_closed = False
        #: Whether a message would leave at once.
        self.is_open = True
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)

    @property
    def is_spilling(self) -> bool:
        return self._overflow is not None

    def post(self, envelope: Envelope[Message], num_bytes: int) -> None:
        """Send a message, or queue it behind waiting messages. Never waits.

        Raises ``MonarchError`` when the disk has no room for a message that must wait.
        """
        with self._lock:
            if not self.is_open:
                self._spill(_COUNTED, envelope)
                return
            is_mark_due = self._lane.sent(num_bytes)
            if is_mark_due:
                self._look()
        try:
            self._deliver(envelope)
        finally:
            # Even if the message was dropped, as the lane counts on the mark.
            if is_mark_due:
                self._send_mark(self)

    def _look(self) -> None:
        """Note whether there is room for more messages.

        This is not done after each message, so more may be sent than the window holds.
        """
        is_clear = self._overflow is None and self._lane.has_room
        self.is_open = is_clear or self._is_closed

    def passed(self, num_bytes: int) -> bool:
        """Count a message that the caller sends itself, past this outbox. Return true if the caller
        must call ``mark`` after it.
        """
        with self._lock:
            is_mark_due = self._lane.sent(num_bytes)
            if is_mark_due:
                self._look()
        return is_mark_due

    def mark(self) -> None:
        self._send_mark(self)

    def post_behind(self, envelope: Envelope[Message]) -> None:
        """Send an order after all messages that wait in this lane. The order is not counted in the
        window.
        """
        with self._lock:
            if self._overflow is not None:
                self._spill(_FREE, envelope)
                return
        self._deliver(envelope)

    def hold(self, reached: Callable[[], None]) -> None:
        """Hold back all later messages until ``release``.

        ``reached`` is called once all earlier messages have left.
        """
        with self._lock:
            is_clear = self._overflow is None
            if self._overflow is not None:
                self._overflow.push([_STOP])
                self._stops.append(reached)
            elif not self._is_closed:
                self._overflow = Overflow()
                self._count(1)
                self.is_held = True
                self._look()
        if is_clear:
            reached()

    def release(self) -> None:
        """Send the messages that were held back."""
        self.is_held = False
        self._soon(self._drain)

    def _spill(self, kind: bytes, envelope: Envelope[Message]) -> None:
        if self._overflow is None:
            overflow = Overflow()
            overflow.push([kind, *pack(envelope)])
            self._overflow = overflow
            self._count(1)
            self._look()
        else:
            self._overflow.push([kind, *pack(envelope)])

    def wait(self, patience_seconds: float, limit_seconds: float | None = None) -> None:
        """Wait for room in the lane. The wait ends when there is room, when the receiver is gone or
        has taken nothing for ``patience_seconds``, or after ``limit_seconds``.
        """
        now = moved = time.monotonic()
        end = math.inf if limit_seconds is None else now + limit_seconds
        with self._changed:
            while not self.is_open and self._stood_still_seconds < patience_seconds and now < end:
                num_answered = self._num_answered
                self._changed.wait(min(moved + patience_seconds, end) - now)
                now = time.monotonic()
                if num_answered != self._num_answered:
                    moved = now
                elif now - moved >= patience_seconds:
                    self._stood_still_seconds = patience_seconds

    def answered(self) -> None:
        """Handle the answer to a mark: there is room again. From any thread."""
        with self._changed:
            if self._is_closed:
                return
            self._lane.answered()
            self._look()
            self._num_answered += 1
            self._stood_still_seconds = 0.0
            self._changed.notify_all()
            if self._overflow is None:
                return
        self._soon(self._drain)

    def _drain(self) -> None:
        """Send waiting messages, as long as there is room. It runs on the I/O loop, so there is
        never more than one call at a time.
        """
        while True:
            with self._lock:
                if self._is_closed or self._overflow is None or self.is_held:
                    return
                if not self._overflow:
                    self._end_overflow()
                    self._changed.notify_all()
                    return
                if not self._lane.has_room:
                    return
                kind, *frames = self._overflow.pop()
                is_mark_due = kind == _COUNTED and self._lane.sent(_num_bytes(frames))
                self.is_held = kind == _STOP
            # Still counted as spilling: no message of another thread may get ahead of it.
            if kind == _STOP:
                self._stops.popleft()()
                continue
            self._deliver(unpack(frames))
            if is_mark_due:
                self._send_mark(self)

    def _end_overflow(self) -> None:
        assert self._overflow is not None
        self._overflow.close()
        self._overflow = None
        self._count(-1)
        self._look()

    def retire(self) -> bool:
        """Close this outbox, so that it can be forgotten, if nothing waits in it.

        Returns whether it is closed. A message that is posted to it later is sent at once.
        """
        with self._lock:
            if self.is_open and not self.is_held:
                self._is_closed = True
            return self._is_closed

    def close(self) -> None:
        """Drop the messages and release the waiting senders, because the receiver is gone."""
        with self._changed:
            self._is_closed = self.is_open = True
            self._stops.clear()
            if self._overflow is not None:
                self._end_overflow()
            self._changed.notify_all()


def _num_bytes(frames: list[Bytes]) -> int:
    return sum(len(frame) for frame in frames[2:])
