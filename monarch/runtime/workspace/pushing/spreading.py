"""How a push's content comes to many hosts: from the author to each, or from host to host.

The author sends small content to each host itself. Larger content it sends to a few hosts, and each
of those passes it on to a share of the others, before it handles the content itself, so that all of
them work at the same time. Answers go to the author directly.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from monarch.config import settings
from monarch.core.fanout import branches
from monarch.net.machine import machine_id
from monarch.runtime.answers import AnswerSink, Response
from monarch.runtime.node import Node
from monarch.runtime.promise import Promise
from monarch.wire.address import ProcAddress
from monarch.wire.codec import Bytes
from monarch.wire.message import Onward, Sync, SyncAnswer
from monarch.wire.payload import Borrowed, Payload

_CROSSES_ONCE_BYTES = 4096
"""Less than this crosses a gateway's slow link once for each host: that saves a hop."""


class Spread:
    """One message to many hosts, each of which answers it."""

    def __init__(
        self,
        node: Node,
        order: Sync,
        data: Bytes,
        blobs: Sequence[Bytes],
        hosts: Sequence[ProcAddress],
    ) -> None:
        self._node = node
        self._order = msgspec.structs.replace(order, sender=node.uid)
        self._data = data
        self._blobs = blobs
        self._hosts = hosts
        self._degree = settings().sync_relay_degree
        self._first = self._degree if node.gateway is None else 1
        self.answers: list[Promise[Response[SyncAnswer]]] = []

    @staticmethod
    def is_worth_it(num_bytes: int, hosts: Sequence[ProcAddress], node: Node) -> bool:
        """Return whether a message of this size should be passed on from host to host, because that
        is faster than to send it to each host from here.
        """
        config = settings()
        if node.gateway is not None:
            return len(hosts) > 1 and num_bytes >= _CROSSES_ONCE_BYTES
        if len(hosts) <= config.sync_relay_degree:
            return False
        num_far = sum(is_far(host) for host in hosts)
        return num_far > 1 and num_bytes * num_far >= config.sync_relay_bytes

    def send(self) -> None:
        """Send the message to some hosts, each of which forwards it to a part of the others.

        ``answers`` then has a promise for every host.
        """
        if len(self._hosts) == 1:
            self.answers = [self._ask(self._hosts[0])]
            return
        sinks = [AnswerSink[SyncAnswer](host.uid, SyncAnswer) for host in self._hosts]
        self.answers = [sink.promise for sink in sinks]
        onward = [
            Onward(host, self._node.open_port(sink, [host.uid]))
            for host, sink in zip(self._hosts, sinks, strict=True)
        ]
        _send_shares(
            self._node, self._order, onward, self._degree, self._data, self._blobs, self._first
        )

    def send_directly(self, number: int) -> None:
        """Send to the host at index ``number``, because a host that should have forwarded may be
        lost.
        """
        self.answers[number] = self._ask(self._hosts[number])

    def _ask(self, host: ProcAddress) -> Promise[Response[SyncAnswer]]:
        return self._node.ask(host, self._order, self._data, self._blobs)

    def behind(self, number: int) -> list[int]:
        """Return the indexes of the hosts to which the host at index ``number`` forwards the
        message, directly or through others.
        """
        start, stop = 0, len(self._hosts)
        degree = self._first
        while True:
            parts = branches(start, stop, degree)
            degree = self._degree
            start, stop = next(part for part in parts if part.start <= number < part.stop)
            if start == number:
                return list(range(start + 1, stop))
            start += 1


def is_far(host: ProcAddress) -> bool:
    """Return whether a host is on another machine."""
    return host.machine != machine_id()


def pass_on(node: Node, order: Sync, data: Bytes, blobs: Sequence[Bytes]) -> None:
    """Send a message that this host has received to the hosts in ``order.onward``, which get it
    through this host. On the loop.
    """
    whole = Payload(data, Borrowed([memoryview(blob) for blob in blobs]))
    parts = branches(0, len(order.onward), order.degree)
    payload = whole.for_many(len(parts))
    _send_shares(node, order, order.onward, order.degree, payload.data, payload.buffers)


def _send_shares(
    node: Node,
    order: Sync,
    onward: Sequence[Onward],
    degree: int,
    data: Bytes,
    blobs: Sequence[Bytes],
    first_degree: int = 0,
) -> None:
    for start, stop in branches(0, len(onward), first_degree or degree):
        first = onward[start]
        part = msgspec.structs.replace(
            order, port=first.port, onward=tuple(onward[start + 1 : stop]), degree=degree
        )
        node.send(first.host, part, data, blobs)
