"""The sending end of a channel, and of the answer to a call."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from monarch.errors import ActorError, SupervisionError
from monarch.runtime.context import sending_actor
from monarch.runtime.current_node import current_node
from monarch.runtime.held import refers
from monarch.wire import payload
from monarch.wire.address import PortAddress
from monarch.wire.message import Reply

T = TypeVar("T")


class Port(Generic[T]):
    """Sends values to a receiver, from any process. A port may be sent to any actor.

    ``return_undeliverable``: if the receiver's process is gone, the sending actor's
    ``_handle_undeliverable_message`` is called.
    """

    def __init__(self, address: PortAddress, rank: int = 0) -> None:
        self._address = address
        self._rank = rank
        self.return_undeliverable = True

    def send(self, obj: T) -> None:
        """Send a value; it is pickled now, and arrives in order of this sender's sends."""
        self._send(payload.dump(obj), failed=False)

    def exception(self, obj: Exception) -> None:
        """Send an exception, which is raised where the value is awaited."""
        self._send(dump_error(obj), failed=True)

    def _send(self, data: payload.Payload, *, failed: bool) -> None:
        node = current_node()
        stamp = node.gate.generation
        reply = Reply(self._address.port, self._rank, node.uid, failed, generation=stamp)
        send = node.outboxes.put if self._address.is_channel else node.send
        send(self._address.proc, reply, data.data, data.buffers)
        failure = node.failure_of(self._address.proc.uid) if self.return_undeliverable else None
        if failure is not None and (sender := sending_actor()):
            node.on_undelivered(sender, repr(self), "", failure.reason)

    def __reduce__(self) -> tuple[Any, ...]:
        return Port, (self._address, self._rank)

    def __repr__(self) -> str:
        return f"Port({self._address.port} at {self._address.proc.uid})"


refers(Port, lambda port: (port._address.proc.uid,))


def dump_error(error: BaseException) -> payload.Payload:
    """Pickle an error. If it cannot be pickled, pickle a plain error with its text instead."""
    try:
        data = payload.dump(error)
        payload.load(*data)
    except Exception:
        if isinstance(error, ActorError):
            plain = RuntimeError(f"{type(error.exception).__name__}: {error.exception}")
            formatted = error.exception_formatted
            return payload.dump(ActorError(plain, error.message, formatted, error.rank))
        return payload.dump(SupervisionError(f"{type(error).__name__}: {error}"))
    return data
