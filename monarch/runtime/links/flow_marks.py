"""Marks: pings that follow a lane's messages; their answers say how much the receivers have
taken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from monarch.core.fanout import TreePlace, proc_uid
from monarch.errors import MeshFailure
from monarch.runtime.links.network import Network
from monarch.runtime.links.outbox import Outbox
from monarch.runtime.links.trees import TreeRoute
from monarch.wire import payload
from monarch.wire.address import Uid
from monarch.wire.codec import Envelope
from monarch.wire.message import PING, Call, Message, PortMark

_NO_ARGUMENTS = payload.dump(((), {})).data

SendMark = Callable[[Outbox], None]


def marks_to(
    node: Network, to: Uid, lane: str, deliver: Callable[[Envelope[Message]], None]
) -> SendMark:
    """Return a function that sends a mark after the messages of an outbox.

    ``lane`` is the uid of an actor in the process ``to``, or ``:n`` for its port n. When the mark
    is answered, the function's outbox is told.
    """

    def send(box: Outbox) -> None:
        port = node.open_port(_MarkSink(to, box), [to])
        mark = (
            PortMark(int(lane[1:]), port, node.uid)
            if lane.startswith(":")
            else Call(actor=lane, method=PING, rank=0, sender=node.uid, port=port)
        )
        deliver(Envelope(to, mark, _NO_ARGUMENTS))

    return send


def marks_along(node: Network, route: TreeRoute, place: TreePlace, actor: Uid) -> SendMark:
    """Return a function that sends a mark along a tree to the members of ``actor``.

    The mark comes after the messages of an outbox. When all living members have answered, that
    outbox is told.
    """
    targets = [proc_uid(route.tree.mesh, member) for member in place.whole]

    def send(box: Outbox) -> None:
        port = node.open_port(_ManyMarksSink(targets, box), targets)
        if node.calls.sink(port) is not None:
            mark = Call(actor=actor, method=PING, rank=0, sender=node.uid)
            route.send(place.whole, mark, _NO_ARGUMENTS, (), port)

    return send


class _MarkSink:
    """Tells an outbox that a mark was answered, or that the process to which it went is gone."""

    def __init__(self, target: Uid, box: Outbox) -> None:
        self._target = target
        self._box = box

    def receive(self, rank: int, answer: Any) -> bool:
        self._box.answered()
        return True

    def down(self, uid: Uid, failure: MeshFailure) -> bool:
        if uid != self._target:
            return False
        self._box.close()
        return True


class _ManyMarksSink:
    """Waits for the answers of a whole mesh to a mark; dead members need not answer."""

    def __init__(self, targets: Sequence[Uid], box: Outbox) -> None:
        self._targets = targets
        self._missing = set(range(len(targets)))
        self._box = box

    def receive(self, rank: int, answer: Any) -> bool:
        self._missing.discard(rank)
        return self._is_over()

    def down(self, uid: Uid, failure: MeshFailure) -> bool:
        self._missing -= {rank for rank in self._missing if self._targets[rank] == uid}
        return self._is_over()

    def _is_over(self) -> bool:
        if not self._missing:
            self._box.answered()
        return not self._missing
