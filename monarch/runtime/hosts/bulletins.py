"""A host's bulletins: kept for a while, and sent to its listeners (publish and subscribe)."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from typing import Any

import msgspec

from monarch.runtime.links.network import Gone
from monarch.runtime.node import Node
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.bulletin import Bulletin
from monarch.wire.message import Heard, Listen, Post

_MAX_KEPT = 100
_MAX_SECONDS = 60.0


class Bulletins:
    """The bulletins of one host agent. All methods run on its I/O loop.

    A bulletin with ``stands`` is kept until its sender withdraws it; of the others, only the latest
    are kept. The numbers of bulletins begin with the agent's start time. So a listener that has
    heard an earlier agent's bulletins gets all bulletins of this agent.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        #: The number of the last bulletin.
        self._number = int(time.time() * 1000)
        self._kept: deque[Bulletin] = deque(maxlen=_MAX_KEPT)
        #: By key: the bulletins that stand, each with its sender.
        self._standing: dict[str, tuple[Uid, Bulletin]] = {}
        #: The questions of listeners that wait for the next bulletin.
        self._waiting: list[Listen] = []
        #: By listener: the number of the last bulletin that it has.
        self._heard: dict[Uid, int] = {}
        node.on_gone.append(self._forget_gone)
        node.on(Post, self._on_post)
        node.on(Listen, self._on_listen)

    @property
    def num_listeners(self) -> int:
        return len(self._waiting)

    @property
    def is_heard(self) -> bool:
        """Whether all listeners have got the last bulletin.

        They have if each has asked for the next one.
        """
        return all(number >= self._number for number in self._heard.values())

    def standing(self) -> list[Bulletin]:
        """Return the bulletins with ``stands`` that were not withdrawn."""
        return [bulletin for _, bulletin in self._standing.values()]

    def add(self, bulletin: Bulletin, sender: Uid = "") -> None:
        """Send a bulletin to all listeners, and keep it."""
        self._number += 1
        numbered = msgspec.structs.replace(bulletin, number=self._number, time=time.time())
        self._standing.pop(numbered.key, None)
        if numbered.stands:
            self._standing[numbered.key] = sender, numbered
        self._kept.append(numbered)
        waiting, self._waiting = self._waiting, []
        for listen in waiting:
            self._answer(listen, [numbered])

    def _forget_gone(self, uid: Uid, how: Gone) -> None:
        """Forget a listener that has left or died."""
        if how in (Gone.DOWN, Gone.LEFT):
            self._node.loop.call_soon(lambda: self._forget_listener(uid))

    def _forget_listener(self, uid: Uid) -> None:
        self._heard.pop(uid, None)
        self.forget(uid)

    def forget(self, sender: Uid) -> None:
        """Withdraw the bulletins with ``stands`` of a sender, and tell the listeners."""
        for by, bulletin in list(self._standing.values()):
            if by == sender:
                changes: dict[str, Any] = {"kind": "left", "text": "", "stands": False, "data": {}}
                self.add(msgspec.structs.replace(bulletin, **changes))

    def _on_post(self, order: Post) -> None:
        self.add(order.bulletin, order.sender)

    def _on_listen(self, order: Listen) -> None:
        if not order.port:
            self._heard.pop(order.sender, None)
            return
        self._heard[order.sender] = order.number
        if order.number:
            news = [bulletin for bulletin in self._kept if bulletin.number > order.number]
        else:
            news = [bulletin for _, bulletin in self._standing.values()]
        seconds = min(order.seconds, _MAX_SECONDS)
        if news or seconds <= 0:
            self._answer(order, news)
            return
        self._waiting.append(order)
        self._node.loop.call_later(seconds, lambda: self._give_up(order))

    def _give_up(self, listen: Listen) -> None:
        if listen in self._waiting:
            self._waiting.remove(listen)
            self._answer(listen, [])

    def _answer(self, listen: Listen, bulletins: Iterable[Bulletin]) -> None:
        self._node.answer(listen, Heard(self._number, tuple(bulletins)))


def post(node: Node, hosts: Iterable[ProcAddress], bulletin: Bulletin) -> None:
    """Send a bulletin to these hosts. A host that is gone is not waited for."""
    for host in hosts:
        if node.failure_of(host.uid) is None:
            node.send(host, Post(bulletin, node.uid))
