"""A host's bulletins: kept for a while, and sent to its listeners (publish and subscribe)."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable

import msgspec

from monarch.runtime.links.network import Gone
from monarch.runtime.node import Node
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.bulletin import Bulletin
from monarch.wire.message import Heard, Listen, Post

_MAX_KEPT = 100
_MAX_SECONDS = 60.0


class Bulletins:
    """The bulletins of one host agent; on its I/O loop.

    A bulletin that stands is never dropped. Numbers begin with the agent's start time, so that a
    listener of an earlier agent gets all of them.
    """

    def __init__(self, node: Node, clock: Callable[[], float] = time.time) -> None:
        self._node = node
        self._clock = clock
        self._number = int(clock() * 1000)
        self._kept: deque[Bulletin] = deque(maxlen=_MAX_KEPT)
        self._standing: dict[str, tuple[Uid, Bulletin]] = {}
        self._waiting: list[Listen] = []
        self._heard: dict[Uid, int] = {}  # by listener: what its last question says that it has
        node.on_gone.append(self._forget_gone)
        node.on(Post, self._on_post)
        node.on(Listen, self._on_listen)

    @property
    def num_listeners(self) -> int:
        return len(self._waiting)

    @property
    def is_heard(self) -> bool:
        """Whether all listeners have the last bulletin, as each has asked for the next one. A sent
        answer may still be lost if this process ends."""
        return all(number >= self._number for number in self._heard.values())

    def standing(self) -> list[Bulletin]:
        """Return the bulletins that stand now."""
        return [one for _, one in self._standing.values()]

    def add(self, bulletin: Bulletin, sender: Uid = "") -> None:
        """Send a bulletin to all listeners, and keep it."""
        self._number += 1
        told = msgspec.structs.replace(bulletin, number=self._number, time=self._clock())
        self._standing.pop(told.key, None)
        if told.stands:
            self._standing[told.key] = sender, told
        self._kept.append(told)
        waiting, self._waiting = self._waiting, []
        for listen in waiting:
            self._answer(listen, [told])

    def _forget_gone(self, uid: Uid, how: Gone) -> None:
        """Forget a listener that has left, such as a watch, which is no client."""
        if how in (Gone.DOWN, Gone.LEFT):
            self._node.loop.call_soon(lambda: self._forget_listener(uid))

    def _forget_listener(self, uid: Uid) -> None:
        self._heard.pop(uid, None)
        self.forget(uid)

    def forget(self, sender: Uid) -> None:
        """Withdraw the standing bulletins of a sender."""
        for by, one in list(self._standing.values()):
            if by == sender:
                left = msgspec.structs.replace(one, kind="left", text="", stands=False, data={})
                self.add(left)

    def _on_post(self, order: Post) -> None:
        self.add(order.bulletin, order.sender)

    def _on_listen(self, order: Listen) -> None:
        if not order.port:
            self._heard.pop(order.sender, None)
            return
        self._heard[order.sender] = order.number
        if order.number:
            found = [one for one in self._kept if one.number > order.number]
        else:
            found = [one for _, one in self._standing.values()]
        seconds = min(order.seconds, _MAX_SECONDS)
        if found or seconds <= 0:
            self._answer(order, found)
            return
        self._waiting.append(order)
        self._node.loop.call_later(seconds, lambda: self._give_up(order))

    def _give_up(self, listen: Listen) -> None:
        if listen in self._waiting:
            self._waiting.remove(listen)
            self._answer(listen, [])

    def _answer(self, listen: Listen, found: Iterable[Bulletin]) -> None:
        self._node.answer(listen, Heard(self._number, tuple(found)))


def post(node: Node, hosts: Iterable[ProcAddress], bulletin: Bulletin) -> None:
    """Send a bulletin to these hosts. A host that is gone is not waited for."""
    for host in hosts:
        if node.failure_of(host.uid) is None:
            node.send(host, Post(bulletin, node.uid))
