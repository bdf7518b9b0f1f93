"""A host agent's part in a tree: it forwards casts, and gathers the answers on their way back.

The contents of a cast are passed on as they are; no user data is unpickled here, and nothing waits
until a message has reached all members. All methods run on the I/O loop.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import msgspec

from monarch.core.fanout import Members, branches, place_of, proc_uid
from monarch.errors import MeshFailure
from monarch.runtime.answers import RawReply
from monarch.runtime.hosts.host_agent import HostAgent
from monarch.runtime.links.broken import broken_payload
from monarch.runtime.links.trees import grow_branches
from monarch.runtime.node import Node
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.codec import Bytes, Envelope, decode
from monarch.wire.message import (
    Call,
    Cast,
    FoldedReply,
    Grow,
    Introduce,
    Message,
    ProcAgain,
    Replies,
    SpawnActor,
    SpawnProcs,
    StopProcs,
    Wither,
)
from monarch.wire.payload import Borrowed, Payload

_log = logging.getLogger("monarch.relay")

_GATHER_SECONDS = 0.002

_MAX_PER_HOST = 4096
"""More procs than a host can have: an order that says so is garbage."""
_GATHER_BYTES = 2**20


@dataclass
class _KnownTree:
    """The part of a sender's tree that begins at this host. ``last`` is the number of the last
    message that came along it.
    """

    grow: Grow
    last: int = 0


class Relay:
    """Forwards the casts that other processes send along trees through this host."""

    def __init__(self, agent: HostAgent) -> None:
        self._agent = agent
        self._node = agent.node
        self._trees: dict[tuple[Uid, Uid], _KnownTree] = {}
        self._dead: set[Uid] = set()
        self._node.on(Grow, self._on_grow)
        self._node.handle(Cast, self._on_cast)
        self._node.on(Wither, self._on_wither)
        self._node.peer_down.on_again.append(self._introduce_again)

    def forget(self) -> None:
        """Forget all trees, because the client has left, and with it all processes that sent
        through here."""
        self._trees.clear()
        self._dead.clear()
        self._agent.forget_client()

    def _introduce_again(self, again: ProcAgain) -> None:
        """Tell a new proc, which has replaced an old proc, which process sends to it through this
        host.
        """
        mesh_of_proc, _ = place_of(again.uid) or ("", 0)
        for (_, mesh), tree in self._trees.items():
            if mesh == mesh_of_proc:
                self._node.send(ProcAddress(again.uid), Introduce(tree.grow.sender))

    def _on_grow(self, grow: Grow) -> None:
        if grow.degree < 1 or grow.start < 0 or not 0 < grow.per_host <= _MAX_PER_HOST:
            raise ValueError(f"no tree: {grow.degree=}, {grow.start=}, {grow.per_host=}")
        self._node.address_book.introduce(grow.sender)
        key = grow.sender.uid, grow.mesh
        earlier = self._trees.get(key)
        self._trees[key] = _KnownTree(grow, earlier.last if earlier else 0)
        below = branches(grow.start + 1, grow.start + len(grow.hosts), grow.degree, grow.dead)
        for host, part in grow_branches(grow, below):
            self._node.send(host, part)
        if earlier is None:
            for number in range(grow.start * grow.per_host, (grow.start + 1) * grow.per_host):
                proc = ProcAddress(proc_uid(grow.mesh, number))
                self._node.send(proc, Introduce(grow.sender))
                self._agent.watchers.watch_end(proc.uid, grow.sender)

    def _on_wither(self, wither: Wither) -> None:
        tree = self._trees.pop((wither.sender, wither.mesh), None)
        if tree is not None:
            grow = tree.grow
            stop = grow.start + len(grow.hosts)
            for start, _ in branches(grow.start + 1, stop, grow.degree, wither.dead):
                self._node.send(grow.hosts[start - grow.start], wither)

    def _on_cast(self, envelope: Envelope[Cast]) -> None:
        cast = envelope.message
        tree = self._trees.get((cast.sender, cast.mesh))
        if tree is None:
            _log.warning("a cast along an unknown tree was dropped")
            return
        if cast.number <= tree.last:
            return  # It came late, around a host that died; its caller has got an error.
        tree.last = cast.number
        grow, members = tree.grow, Members.from_wire(cast.members)
        if not grow.start <= cast.start < cast.stop <= grow.start + len(grow.hosts):
            raise ValueError(f"a cast to hosts {cast.start} to {cast.stop}, which the tree has not")
        self._note_dead(grow, cast.dead)
        below = [
            (branch, count)
            for branch in branches(cast.start + 1, cast.stop, grow.degree, cast.dead)
            if (count := members.count(branch.start * grow.per_host, branch.stop * grow.per_host))
        ]
        first = cast.start * grow.per_host
        members_here = members.within(first, first + grow.per_host)
        if cast.port and cast.parent is not None:
            missing = {proc_uid(grow.mesh, number): 1 for number, _ in members_here}
            for branch, count in below:
                missing[grow.hosts[branch.start - grow.start].uid] = count
            fold = Fold(self._node, cast.parent, cast.port, missing)
            port = self._node.open_port(fold, list(missing))
            cast = msgspec.structs.replace(cast, parent=self._node.address, port=port)
        data = self._to_pass_on(envelope, len(below) + len(members_here))
        for branch, _ in below:
            host = grow.hosts[branch.start - grow.start]
            part = msgspec.structs.replace(cast, start=branch.start, stop=branch.stop)
            self._node.send(host, part, *data)
        self._hand_over(cast, grow, members_here, data)

    def _note_dead(self, grow: Grow, dead: tuple[int, ...]) -> None:
        """Note which hosts the sender counts as lost, and stop waiting for their answers."""
        for index in dead:
            if grow.start <= index < grow.start + len(grow.hosts):
                uid = grow.hosts[index - grow.start].uid
                if uid not in self._dead:
                    self._dead.add(uid)
                    self._node.calls.down(uid, MeshFailure(uid, (), "its client lost it"))

    def _to_pass_on(self, envelope: Envelope[Message], num_receivers: int) -> Payload:
        """Return the message inside a cast; its large parts are copied once for all receivers
        here."""
        data, buffers = envelope.payload, envelope.buffers
        why = self._node.bulk_sender.why_not(len(data) + sum(map(len, buffers)))
        if why:
            # Its receivers get the reason as its contents, and report it to the caller.
            data, buffers = broken_payload(f"on the host {self._agent.name}, {why}"), ()
        borrowed = Borrowed([memoryview(buffer) for buffer in buffers])
        return Payload(data, borrowed).for_many(num_receivers)

    def _hand_over(
        self, cast: Cast, grow: Grow, members_here: list[tuple[int, int]], data: Payload
    ) -> None:
        """Deliver a message to its members on this host."""
        message = decode(cast.inner)
        if isinstance(message, SpawnProcs):
            self._spawn(message, grow, [number for number, _ in members_here], data.data)
            return
        if isinstance(message, StopProcs):
            self._node.dispatch(Envelope(self._node.uid, message))
            return
        for number, rank in members_here:
            proc = ProcAddress(proc_uid(grow.mesh, number))
            if isinstance(message, Call):
                # A call to one member alone has its rank already.
                self._call(proc, message, message.rank + rank, cast.port, data)
            else:
                self._node.send(proc, _for_rank(message, rank), *data)

    def _call(self, proc: ProcAddress, call: Call, rank: int, port: int, data: Payload) -> None:
        if port:
            address = self._node.address
            call = msgspec.structs.replace(call, rank=rank, port=port, port_proc=address)
        else:
            call = msgspec.structs.replace(call, rank=rank)
        self._node.outboxes.hand(proc, call, *data)

    def _spawn(self, spawn: SpawnProcs, grow: Grow, numbers: list[int], setup: Bytes) -> None:
        specs = tuple(
            msgspec.structs.replace(
                spawn.procs[number % grow.per_host], uid=proc_uid(grow.mesh, number), rank=number
            )
            for number in numbers
        )
        order = msgspec.structs.replace(spawn, procs=specs)
        self._node.dispatch(Envelope(self._node.uid, order, setup))


def _for_rank(message: Message, rank: int) -> Message:
    if isinstance(message, SpawnActor):
        # An order for one member alone has its rank already.
        return msgspec.structs.replace(message, rank=message.rank + rank)
    return message


class Fold:
    """Gathers the answers of local procs and of hosts below, and sends them on together.

    ``missing`` counts the expected answers, by member. The answers are sent on when all have
    arrived, or after a moment, so that early answers need not wait for late ones. Large answers are
    sent on at once, because joining them saves nothing.
    """

    def __init__(self, node: Node, parent: ProcAddress, port: int, missing: dict[Uid, int]) -> None:
        self._node = node
        self._parent = parent
        self._port = port
        self._missing = missing
        self._items: list[FoldedReply] = []
        self._frames: list[Bytes] = []
        self._num_bytes = 0

    def receive(self, rank: int, answer: RawReply) -> bool:
        """Take an answer of a proc here, or the answers that a host below has gathered.

        Returns whether no further answers are missing.
        """
        data, buffers = answer.payload, answer.buffers
        size = len(data) + sum(map(len, buffers))
        why = self._node.bulk_sender.why_not(size)
        if why:
            # The caller gets the reason, as no other process knows that there was an answer.
            data, buffers = broken_payload(f"on a host that hands answers on, {why}"), ()
            size = len(data)
        elif self._node.bulk_sender.why_not(self._num_bytes + size):
            self._flush()
        if not self._items:
            self._node.loop.call_later(_GATHER_SECONDS, self._flush)
        self._items.append(
            FoldedReply(
                rank=rank,
                sender=answer.sender,
                failed=answer.failed,
                refused=answer.refused,
                num_buffers=len(buffers),
                generation=answer.generation,
            )
        )
        self._frames.append(data)
        self._frames.extend(buffers)
        self._num_bytes += size
        if self._num_bytes >= _GATHER_BYTES:
            self._flush()
        return self._count(answer.via)

    def down(self, uid: Uid, failure: MeshFailure) -> bool:
        """Handle that the member ``uid`` is gone: wait for no more of its answers. Its failure is
        reported to the caller in another way.

        Returns whether no further answers are missing.
        """
        return self._count(uid, self._missing.get(uid, 0))

    def _count(self, uid: Uid, number: int = 1) -> bool:
        if uid in self._missing:
            self._missing[uid] -= number
            if self._missing[uid] <= 0:
                del self._missing[uid]
        if not self._missing:
            self._flush()
        return not self._missing

    def _flush(self) -> None:
        if self._items:
            replies = Replies(self._port, self._node.uid, tuple(self._items))
            self._node.send(self._parent, replies, b"", self._frames)
            self._items, self._frames, self._num_bytes = [], [], 0
