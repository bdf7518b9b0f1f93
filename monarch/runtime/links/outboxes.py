"""All messages that the actors and threads of a process send to actors and channels.

Agents' own messages and the answers to calls do not pass here: they are few, or bounded by the
calls that they answer, and must not wait behind a flood of other messages.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from monarch.config import settings
from monarch.core.fanout import Members, TreePlace
from monarch.core.flow import Window
from monarch.net import cork
from monarch.runtime.context import running
from monarch.runtime.links.bulk_sender import BULK_BYTES, BulkSender
from monarch.runtime.links.flow_marks import marks_along, marks_to
from monarch.runtime.links.network import Gone, Network
from monarch.runtime.links.outbox import Outbox
from monarch.runtime.links.trees import TreeRoute, Trees
from monarch.runtime.links.waiting_switches import BehindFence, WaitingSwitches, ends_fence
from monarch.runtime.uninterrupted import Uninterrupted
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.codec import Bytes, Envelope
from monarch.wire.message import Call, Message, Order, Reply, StopActor

_ACTOR_PATIENCE_SECONDS = 0.1
_LOOP_PATIENCE_SECONDS = 0.02
_LOOP_LIMIT_SECONDS = 0.05

_MAX_BOXES = 1024
"""How many lanes to one process are remembered. A process is not told when an actor or a channel
elsewhere is of no more use, and a program may use millions of them; a lane that is taken up again
counts anew."""
_NUM_LOOKS = 8


class Addressed(Protocol):
    """The members of a mesh of actors, as references know them."""

    uid: Uid
    procs: tuple[ProcAddress, ...]
    place: TreePlace | None


class Outboxes:
    """The outboxes of a process: one for each actor or port that it sends to."""

    def __init__(self, node: Network, trees: Trees, bulk_sender: BulkSender) -> None:
        self._node = node
        self._trees = trees
        self._bulk_sender = bulk_sender
        #: By process, or mesh that a tree leads to, and by actor or ``:port``.
        self._boxes: dict[Uid, dict[str, Outbox]] = {}
        #: How many outboxes to one process are kept; of more, an idle one is forgotten.
        self.max_boxes = _MAX_BOXES
        #: How many outboxes have messages on disk.
        self._num_spilling = 0
        #: Fences that wait behind messages on disk.
        self._switches = WaitingSwitches()
        #: Guards `_boxes` and `_num_spilling`.
        self._lock = threading.Lock()
        #: Watches what is sent while a fence of this process is up.
        self.behind_fence = BehindFence()
        node.on_gone.append(self._forget_gone)
        trees.on_over.append(self.down)

    @property
    def is_spilling(self) -> bool:
        """Whether any message waits on disk."""
        return self._num_spilling > 0

    def call(
        self, mesh: Addressed, rank: int, call: Call, data: Bytes, buffers: Sequence[Bytes]
    ) -> None:
        """Send a call to one member of a mesh, and wait for room in its lane.

        A thread that must not block does not wait.
        """
        if mesh.place is not None:
            self._send_along(mesh, mesh.place, mesh.place.at(rank), call, data, buffers)
        else:
            self.hand(mesh.procs[rank], call, data, buffers)

    def hand(self, to: ProcAddress, call: Call, data: Bytes, buffers: Sequence[Bytes]) -> None:
        """Send a call directly to the process of its actor."""
        size = self._size(data, buffers)
        box = self._box(to, call.actor)
        if not box.is_open:
            self._wait(to.uid, box)
        cork.sent()
        with Uninterrupted():
            box.post(Envelope(to.uid, call, data, buffers), size)
            if self.behind_fence.is_watched:
                self.behind_fence.sent([to.uid], is_stopped=box.is_held)

    def cast(
        self,
        mesh: Addressed,
        make: Callable[[int], Call],
        data: Bytes,
        buffers: Sequence[Bytes],
    ) -> None:
        """Send a call to all members of a mesh; ``make`` returns the message for each rank.

        Two casts of this process reach all receivers in the same order. Each cast first waits for
        room, and only then takes its place in the order. So a slow mesh does not delay casts to
        other meshes.
        """
        if mesh.place is not None:
            self._send_along(mesh, mesh.place, mesh.place.members, make(0), data, buffers)
            return
        size = self._size(data, buffers)
        boxes = [self._box(to, mesh.uid) for to in mesh.procs]
        for to, box in zip(mesh.procs, boxes, strict=True):
            if not box.is_open:
                self._wait(to.uid, box)
        with Uninterrupted(), self._node.casting:
            for rank, (to, box) in enumerate(zip(mesh.procs, boxes, strict=True)):
                box.post(Envelope(to.uid, make(rank), data, buffers), size)
            if self.behind_fence.is_watched:
                is_stopped = any(box.is_held for box in boxes)
                self.behind_fence.sent((to.uid for to in mesh.procs), is_stopped=is_stopped)

    def _send_along(
        self,
        mesh: Addressed,
        place: TreePlace,
        members: Members,
        call: Call,
        data: Bytes,
        buffers: Sequence[Bytes],
    ) -> None:
        """Send a call along a tree. Messages that a member cannot take yet wait at its host."""
        size = self._size(data, buffers)
        node = self._node
        if all(node.failure_of(to.uid) for to in mesh.procs):
            return  # All members are dead, and the way there has been forgotten.
        route = self._trees.route(place.tree)
        port = 0
        if call.port and (call.explicit_response_port or call.port_proc is not None):
            # As many answers as the actor likes, or to another process: they come directly.
            call = msgspec.structs.replace(call, port_proc=call.port_proc or node.address)
        else:
            port, call = call.port, msgspec.structs.replace(call, port=0)
        box = self._tree_box(route, mesh.uid, place)
        if not box.is_open:
            self._wait(place.tree.mesh, box)
        with Uninterrupted():
            note = box.passed(size)
            route.send(members, call, data, buffers, port)
            if note:
                box.mark()
            if self.behind_fence.is_watched:
                self.behind_fence.sent(to.uid for to in mesh.procs)

    def put(self, to: ProcAddress, reply: Reply, data: Bytes, buffers: Sequence[Bytes]) -> None:
        """Send a value into a channel."""
        size = self._size(data, buffers)
        box = self._box(to, f":{reply.port}")
        if not box.is_open:
            self._wait(to.uid, box)
        with Uninterrupted():
            box.post(Envelope(to.uid, reply, data, buffers), size)

    def _size(self, data: Bytes, buffers: Sequence[Bytes]) -> int:
        """Return the size of a message in bytes. Raises ``ValueError`` beyond the limit.

        Called before anything is counted: a message that cannot be sent must take no room.
        """
        size = len(data) + sum(map(len, buffers)) if buffers else len(data)
        if size >= BULK_BYTES:
            self._bulk_sender.check(size)
        return size

    def keep_place(self, to: ProcAddress, envelope: Envelope[Message]) -> bool:
        """If an order must follow messages that still wait for a process, queue it behind them;
        return whether it was queued.

        The order to stop an actor follows all messages to that actor. The order that raises a fence
        follows all earlier messages to actors of the process, and holds back later messages until
        it is sent or withdrawn.
        """
        message = envelope.message
        with self._lock:
            boxes = dict(self._boxes.get(to.uid, {}))
        if isinstance(message, StopActor):
            box = boxes.get(message.actor)
            if box is None or not box.is_spilling:
                return False
            box.post_behind(envelope)
            return True
        if ends_fence(message):
            self._switches.withdraw(to.uid)
        if not (isinstance(message, Order) and message.is_fence):
            return False
        if not any(box.is_spilling for box in boxes.values()):
            return False
        self._switches.hold(
            to.uid,
            message,
            list(boxes.values()),
            lambda fence: self._node.transmit(to, msgspec.structs.replace(envelope, message=fence)),
        )
        return True

    def _forget_gone(self, uid: Uid, how: Gone) -> None:
        if how is not Gone.HANDED_OVER:
            self.down(uid)

    def down(self, uid: Uid) -> None:
        """Forget the outboxes of a process, which is gone or was replaced."""
        with self._lock:
            boxes = self._boxes.pop(uid, {})
        self._switches.forget(uid)
        for box in boxes.values():
            box.close()

    def close(self) -> None:
        for uid in list(self._boxes):
            self.down(uid)

    def _wait(self, to: Uid, box: Outbox) -> None:
        if self._node.loop.is_current():
            return
        is_here = to == self._node.uid
        if _is_on_asyncio():
            # Everything else on the loop waits with us.
            if not is_here:
                box.wait(_LOOP_PATIENCE_SECONDS, _LOOP_LIMIT_SECONDS)
        elif running.get() is not None:
            # The receiver may wait for this actor, and in one process it may be this actor.
            if not is_here:
                box.wait(_ACTOR_PATIENCE_SECONDS)
        else:
            patience = settings().flow_patience_seconds
            box.wait(min(patience, _ACTOR_PATIENCE_SECONDS) if is_here else patience)

    def _box(self, to: ProcAddress, key: str) -> Outbox:
        try:
            return self._boxes[to.uid][key]
        except KeyError:
            return self._make_box(to, key)

    def _make_box(self, to: ProcAddress, key: str) -> Outbox:
        deliver = self._node.way_to(to)
        return self._add_box(to.uid, key, deliver, marks_to(self._node, to.uid, key, deliver))

    def _add_box(
        self,
        uid: Uid,
        key: str,
        deliver: Callable[[Envelope[Message]], None],
        send_mark: Callable[[Outbox], None],
    ) -> Outbox:
        window = Window(settings().flow_window_messages, settings().flow_window_bytes)
        soon = self._node.loop.call_soon
        box = Outbox(window, deliver=deliver, send_mark=send_mark, soon=soon, count=self._count)
        if self._num_spilling and not key.startswith(":"):
            # Values for a channel pass, as an actor that has not reached the switch may need them.
            self._switches.begins(uid, box)
        with self._lock:
            boxes = self._boxes.setdefault(uid, {})
            if len(boxes) >= self.max_boxes and not self._num_spilling:
                _forget_one(boxes)
            return boxes.setdefault(key, box)

    def _tree_box(self, route: TreeRoute, actor: Uid, place: TreePlace) -> Outbox:
        try:
            return self._boxes[route.tree.mesh][actor]
        except KeyError:
            pass
        send_mark = marks_along(self._node, route, place, actor)
        return self._add_box(route.tree.mesh, actor, _nowhere, send_mark)

    def _count(self, change: int) -> None:
        with self._lock:
            self._num_spilling += change


def _forget_one(boxes: dict[str, Outbox]) -> None:
    """Forget one of the oldest outboxes in which nothing waits."""
    for key, box in itertools.islice(boxes.items(), _NUM_LOOKS):
        if box.retire():
            del boxes[key]
            return


def _is_on_asyncio() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _nowhere(message: object) -> None:
    """Raise an error. It is the ``deliver`` of outboxes for trees, which pass nothing on
    themselves: ``_send_along`` sends the messages.
    """
    raise AssertionError("this box passes nothing on")
