"""Answers to calls and to control requests: a node puts each into its port."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, Generic, TypeVar, cast

import msgspec

from monarch.errors import MeshFailure
from monarch.runtime.links.failure_detector import FailureDetector
from monarch.runtime.links.network import Network
from monarch.runtime.promise import Promise
from monarch.wire.address import Uid
from monarch.wire.codec import Bytes, Envelope
from monarch.wire.message import Answer, PortMark, Replies, Reply

A = TypeVar("A")
K = TypeVar("K")


class RawReply(msgspec.Struct):
    """An answer as it arrived, still pickled. The thread that wants it unpickles it.

    ``via`` is the process that it came from: its ``sender``, or a host that gathers answers.
    """

    payload: Bytes
    buffers: Any
    failed: bool
    refused: bool
    sender: Uid
    via: Uid
    generation: int


class Response(Generic[A]):
    """The response to a request: an answer, an error text, or both.

    ``is_down``: the process that was asked is gone.
    """

    def __init__(self, answer: A | None, error: str = "", is_down: bool = False) -> None:
        self._answer = answer
        self.error = error
        self.is_down = is_down

    @property
    def answer(self) -> A:
        """Return the answer. There must be one: it is missing if there is only an ``error``."""
        return cast(A, self._answer)

    def or_else(self, answer: A) -> A:
        """Return the answer; ``answer`` if there is only an error."""
        return answer if self._answer is None else self._answer


class AnswerSink(Generic[A]):
    """Waits for the one answer to a request."""

    def __init__(self, target: Uid, answer_type: Any) -> None:
        self._target = target
        self._answer_type = answer_type
        self.promise: Promise[Response[A]] = Promise()

    def receive(self, rank: int, answer: Answer) -> bool:
        body, error = answer.body, answer.error
        if not (error and body is None):
            try:
                body = msgspec.convert(body, self._answer_type)
            except msgspec.ValidationError as wrong:
                body, error = None, f"its answer is not of this version: {wrong}"
        self.promise.set(Response(body, error))
        return True

    def down(self, uid: Uid, failure: MeshFailure) -> bool:
        if uid != self._target:
            return False
        self.promise.set(Response(None, failure.reason, is_down=True))
        return True


class Answers:
    """Passes each answer that arrives to its port."""

    def __init__(self, node: Network, detector: FailureDetector) -> None:
        self._node = node
        self._detector = detector
        node.handle(Reply, self.on_reply)
        node.handle(Replies, self.on_replies)
        node.on(Answer, self.on_answer)
        node.on(PortMark, self.on_port_mark)

    def on_reply(self, envelope: Envelope[Reply]) -> None:
        """Pass one answer of one actor to its port."""
        reply = envelope.message
        raw = RawReply(
            envelope.payload,
            envelope.buffers,
            failed=reply.failed,
            refused=reply.refused,
            sender=reply.sender,
            via=reply.sender,
            generation=reply.generation,
        )
        self._node.calls.receive(reply.port, reply.rank, raw)

    def on_replies(self, envelope: Envelope[Replies]) -> None:
        """Pass the answers of several ranks, which came in one message, to their port."""
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

    def on_answer(self, answer: Answer) -> None:
        """Pass the answer to a control request to its port. It also counts as a heartbeat."""
        self._detector.heard(answer.sender)
        self._node.calls.receive(answer.port, 0, answer)

    def on_port_mark(self, mark: PortMark) -> None:
        """Answer the mark's sender once the port has taken everything sent so far."""
        node = self._node

        def answer() -> None:
            node.send(node.address_of(mark.sender), Reply(mark.answer_port, 0, node.uid))

        node.calls.mark(mark.port, answer)


def collect(
    answers: Mapping[K, Promise[Response[A]]], seconds: float, late: str = "it does not answer"
) -> dict[K, Response[A]]:
    """Wait up to ``seconds`` in all for the answers to a question; return the responses by the
    same keys. A missing answer becomes the error ``late``.
    """
    wait_for(answers.values(), seconds)
    return {
        key: answer.value if answer.is_set else Response(None, late)
        for key, answer in answers.items()
    }


def wait_for(answers: Iterable[Promise[Response[A]]], seconds: float) -> None:
    """Wait until all answers have come, for ``seconds`` at most in all."""
    deadline = time.monotonic() + seconds
    for answer in answers:
        answer.wait(max(0.0, deadline - time.monotonic()))
