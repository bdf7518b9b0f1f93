"""An actor's answers to its callers: a value, an error, or a refusal to run the call."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

from monarch.core.event_ring import CallsInHand
from monarch.errors import ActorError, GenerationBehind, MeshFailure, SupervisionError
from monarch.mesh import Extent, Point
from monarch.net import cork
from monarch.runtime.cells.endpoint_spec import EndpointSpec
from monarch.runtime.context import ActorRecord
from monarch.runtime.node import Node
from monarch.runtime.port import dump_error
from monarch.wire import payload
from monarch.wire.address import ProcAddress
from monarch.wire.message import Call, Reply, Returned
from monarch.wire.unsendable import answer_words

_log = logging.getLogger("monarch.actor")


class Named(NamedTuple):
    """The part of an actor's record that its answers need."""

    name: str
    title: str


class CellAnswers:
    """Sends the answers to the calls of one actor.

    It also sends refusals: to the caller if it waits for an answer, else to the actor that sent the
    call, if an actor did.
    """

    def __init__(
        self, record: ActorRecord | Named, node: Node, in_hand: CallsInHand | None = None
    ) -> None:
        self._record = record
        self._node = node
        self._in_hand = in_hand or CallsInHand(None, "", 0)

    def returned(self, call: Call, spec: EndpointSpec, value: Any) -> None:
        """Answer that an endpoint has returned ``value``. An endpoint with a port of its own sends
        its answers itself."""
        # Before the answer: a caller that has it, and asks for rows, finds this one.
        self._in_hand.ends(id(call), call.generation, is_ok=True)
        if call.port and not spec.explicit_response_port:
            cork.sent()
            try:
                data = payload.dump(value)
            except Exception as error:
                called = f"{self._record.title}.{call.method}"
                raise TypeError(answer_words(called, value, error)) from error
            self._reply(call, data, failed=False)

    def raised(self, call: Call, error: Exception) -> None:
        """Answer that an endpoint has raised ``error``."""
        self._reply(call, dump_error(error), failed=True)

    def refuse(self, call: Call, failure: MeshFailure | None) -> None:
        """Refuse a call: the actor has failed or, without a ``failure``, was stopped."""
        if call.port:
            data = dump_error(self._refusal(call, failure))
            self._reply(call, data, failed=True, refused=True)

    def refuse_behind(self, call: Call) -> None:
        """Refuse a call from newer code than ours; a caller that waits gets the error."""
        self._refuse_by_name(call, self._node.gate.why_behind)

    def refuse_crossing(self, call: Call) -> None:
        """Refuse a call during which some of its receivers got new code and others did not."""
        self._refuse_by_name(call, "which went to a part of this mesh while the call was under way")

    def _refuse_by_name(self, call: Call, why: str) -> None:
        generation = self._node.gate.generation
        error = GenerationBehind(self._record.title, call.method, generation, call.generation, why)
        call.generation = generation
        if call.port:
            self.raised(call, error)
            return
        _log.error("%s", error)
        if call.sender_actor:
            self._return(call, str(error))

    def give_back(self, call: Call, failure: MeshFailure | None) -> None:
        """Refuse a call that arrived after the end of the actor.

        A caller that waits gets the refusal as its answer; else the sending actor is told, if there
        is one.
        """
        if call.port:
            self.refuse(call, failure)
        elif call.sender_actor:
            self._return(call, failure.report() if failure else "it was stopped")

    def _return(self, call: Call, reason: str) -> None:
        """Tell the sender of a call that expects no answer why it does not run."""
        returned = Returned(call.sender_actor, self._record.title, call.method, reason)
        self._node.send(self._node.address_of(call.sender), returned)

    def receiver_of(self, call: Call) -> ProcAddress:
        """Return the process that the answers to a call go to."""
        return call.port_proc or self._node.address_of(call.sender)

    def _reply(
        self, call: Call, data: payload.Payload, *, failed: bool, refused: bool = False
    ) -> None:
        reply = Reply(
            port=call.port,
            rank=call.rank,
            sender=self._node.uid,
            failed=failed,
            refused=refused,
            generation=call.generation,
        )
        self._node.send(self.receiver_of(call), reply, *data)

    def _refusal(self, call: Call, failure: MeshFailure | None) -> SupervisionError:
        title, name = self._record.title, self._record.name
        endpoint = f"{name}.{call.method or 'initialized'}"
        text = failure.report() if failure else f"The actor {title} has status: stopped"
        message = f"Endpoint call {endpoint}() failed, {text}"
        why = failure or MeshFailure(name, (call.rank,), "it was stopped", members=(title,))
        return SupervisionError(message, endpoint, why)


def failed_in_words(record: ActorRecord, method: str, error: BaseException) -> str:
    """Return the sentence for people which says that an endpoint raised ``error``."""
    ending = "failed." if isinstance(error, Exception) else "failed with BaseException."
    return f"Actor call {record.name}.{method} {ending}"


def error_of_rank(record: ActorRecord, error: Exception, message: str) -> ActorError:
    """Return the error for the caller; it names the rank if the actor is in a mesh."""
    if record.labels:
        where = Point(record.rank, Extent(record.labels, record.sizes))
        message = f"{message} It was rank {record.rank} {where}."
    return ActorError(error, message, rank=record.rank)
