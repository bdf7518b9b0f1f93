"""Fences that wait in outboxes behind calls that were sent before them.

A fence follows all messages that wait for actors of its process, and holds back messages that are
sent later. If the switch is cancelled meanwhile, the fence is still sent, because it must be
answered; it then holds back nothing.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Sequence

import msgspec

from monarch.runtime.links.outbox import Outbox
from monarch.wire.address import Uid
from monarch.wire.message import Message, Order


class WaitingSwitches:
    """The waiting switches, at most one for each receiving process."""

    def __init__(self) -> None:
        self._switches: dict[Uid, _WaitingSwitch] = {}
        self._lock = threading.Lock()

    def hold(
        self, to: Uid, fence: Order, boxes: Sequence[Outbox], send: Callable[[Order], None]
    ) -> None:
        """Keep the order ``fence`` until all messages that wait in ``boxes`` have left, and then
        call ``send`` with it.
        """
        waiting = _WaitingSwitch(fence, boxes, send)
        with self._lock:
            self._switches[to] = waiting
        for box in boxes:
            box.hold(functools.partial(waiting.reached, box))

    def begins(self, to: Uid, box: Outbox) -> None:
        """Note a new outbox to the process ``to``.

        If a switch to that process waits, messages in the new outbox are held until the switch is
        sent.
        """
        with self._lock:
            waiting = self._switches.get(to)
        if waiting is not None:
            waiting.begins(box)

    def withdraw(self, to: Uid) -> None:
        """Withdraw a switch that has not been sent, and release the messages that wait for it."""
        waiting = self.forget(to)
        if waiting is not None:
            waiting.withdraw()

    def forget(self, to: Uid) -> _WaitingSwitch | None:
        with self._lock:
            return self._switches.pop(to, None)


class _WaitingSwitch:
    """A switch that waits until all earlier messages have left the outboxes.

    ``_clear`` are the outboxes that have no earlier messages any more; they hold back later
    messages. The lock is held while the switch is sent, so that its withdrawal cannot overtake it.
    """

    def __init__(
        self, fence: Order, boxes: Sequence[Outbox], send: Callable[[Order], None]
    ) -> None:
        self._fence = fence
        self._boxes = list(boxes)
        self._send = send
        self._lock = threading.Lock()
        self._clear: list[Outbox] = []
        self._is_withdrawn = False

    def reached(self, box: Outbox) -> None:
        """Note that all earlier messages in this outbox have left."""
        with self._lock:
            self._clear.append(box)
            is_last = len(self._clear) == len(self._boxes)
            is_withdrawn = self._is_withdrawn
            if is_last:
                # A fence that was withdrawn is sent too, to be answered, but holds back nothing.
                gives_way = self._fence.gives_way and not is_withdrawn
                self._send(msgspec.structs.replace(self._fence, gives_way=gives_way))
        for clear in [box] if is_withdrawn else self._boxes if is_last else ():
            clear.release()

    def begins(self, box: Outbox) -> None:
        with self._lock:
            if len(self._clear) < len(self._boxes) and not self._is_withdrawn:
                self._boxes.append(box)
                self._clear.append(box)
                box.hold(lambda: None)

    def withdraw(self) -> None:
        with self._lock:
            is_sent = len(self._clear) == len(self._boxes)
            self._is_withdrawn = not is_sent
            clear = [] if is_sent else list(self._clear)
        for box in clear:
            box.release()


class BehindFence:
    """Watches what this process sends while one of its fences is up. Any thread may call it.

    A message to a process at the fence waits there, and so does its sender, if it waits for the
    answer. From then on, the fence delays the program, and its time is limited: see
    ``core.code_switch.coordinator``. This is checked at each send; without a fence it costs one
    comparison.
    """

    def __init__(self) -> None:
        self.is_watched = False
        self._sent: Callable[[Iterable[Uid]], None] = lambda procs: None
        self._stopped: Callable[[], None] = lambda: None

    def watch(self, sent: Callable[[Iterable[Uid]], None], stopped: Callable[[], None]) -> None:
        """From now on, call ``sent`` with the procs to which messages are sent, until ``forget`` is
        called.

        ``stopped`` is called if a message must wait at a fence in this process, which a slow actor
        delays. Call this method before the fence is cast. Then no message behind the fence is
        missed, but an earlier message may be reported too.
        """
        self._sent, self._stopped = sent, stopped
        self.is_watched = True

    def forget(self) -> None:
        self.is_watched = False

    def sent(self, procs: Iterable[Uid], *, is_stopped: bool = False) -> None:
        """Record a message to these procs.

        With ``is_stopped``, record instead that a message has to wait at the fence here.
        """
        if self.is_watched and is_stopped:
            self._stopped()
        elif self.is_watched:
            self._sent(procs)


def ends_fence(message: Message) -> bool:
    """Return whether this message lifts the last fence in the process that receives it."""
    return isinstance(message, Order) and message.ends_fence
