"""Answers to calls and to control requests: a node puts each into its port."""

from __future__ import annotations

from typing import Any

from monarch.errors import MeshFailure
from monarch.runtime.links.failure_detector import FailureDetector
from monarch.runtime.links.network import Network
from monarch.runtime.promise import Promise
from monarch.wire.address import Uid
from monarch.wire.codec import Bytes, Envelope
from monarch.wire.message import Answer, PortMark, Replies, Reply


class RawReply:
    """An answer as it arrived: unpickled on the thread that wants it."""

    __slots__ = ("buffers", "failed", "generation", "payload", "refused", "sender", "via")

    def __init__(
        self,
        payload: Bytes,
        buffers: Any,
        *,
        failed: bool,
        refused: bool,
        sender: Uid = "",
        via: Uid = "",
        generation: int = 0,
    ) -> None:
        self.payload = payload
        self.buffers = buffers
        self.failed = failed
        self.refused = refused
        self.sender = sender
        self.via = via or sender
        self.generation = generation


class Response:
    """The response to a control request: a body, or an error text.

    ``is_down``: the process that was asked is gone.
    """

    def __init__(self, body: dict[str, Any], error: str = "", is_down: bool = False) -> None:
        self.body = body
        self.error = error
        self.is_down = is_down


class AnswerSink:
    """Waits for the one answer to a control message."""

    def __init__(self, target: Uid) -> None:
        self._target = target
        self.promise: Promise[Response] = Promise()

    def receive(self, rank: int, answer: Response) -> bool:
        self.promise.set(answer)
        return True

    def down(self, uid: Uid, failure: MeshFailure) -> bool:
        if uid != self._target:
            return False
        self.promise.set(Response({}, failure.reason, is_down=True))
        return True


class Answers:
    """Puts what arrives into the port that it is for."""

    def __init__(self, node: Network, detector: FailureDetector) -> None:
        self._node = node
        self._detector = detector
        node.handle(Reply, self.on_reply)
        node.handle(Replies, self.on_replies)
        node.handle(Answer, self.on_answer)
        node.handle(PortMark, self.on_port_mark)

    def on_reply(self, envelope: Envelope[Reply]) -> None:
        """One answer of one actor."""
        reply = envelope.message
        raw = RawReply(
            envelope.payload,
            envelope.buffers,
            failed=reply.failed,
            refused=reply.refused,
            sender=reply.sender,
            generation=reply.generation,
        )
        self._node.calls.receive(reply.port, reply.rank, raw)

    def on_replies(self, envelope: Envelope[Replies]) -> None:
        """Answers of several ranks, gathered on the way."""
        replies = envelope.message
        frames, start = envelope.buffers, 0
        for item in replies.items:
            end = start + 1 + item.num_buffers
            raw = RawReply(
                frames[start],
                frames[start + 1 : end],
                failed=item.failed,
                refused=item.refused,
                sender=item.sender,
                via=replies.sender,
                generation=item.generation,
            )
            start = end
            self._node.calls.receive(replies.port, item.rank, raw)

    def on_answer(self, envelope: Envelope[Answer]) -> None:
        """The answer to a control request; it is a sign of life, too."""
        answer = envelope.message
        self._detector.heard(answer.sender)
        self._node.calls.receive(answer.port, 0, Response(answer.body, answer.error))

    def on_port_mark(self, envelope: Envelope[PortMark]) -> None:
        """A sender into a port asks to be told when everything so far has been taken."""
        mark = envelope.message
        node = self._node

        def answer() -> None:
            node.send(node.address_of(mark.sender), Reply(mark.answer_port, 0, node.uid))

        node.calls.mark(mark.port, answer)
