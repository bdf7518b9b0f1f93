"""The interface of a transport: listeners to receive at, and connections to send on.

``UnixTransport`` connects the processes of a machine, ``ZmqTransport`` machines,
``InprocTransport`` the nodes within a process; a contract suite holds all to the same promises:

- Frames sent on one connection arrive whole, once and in order.
- ``send`` may be called from any thread and does not wait for the receiver.
- Frames may be sent before the other side listens; they arrive once it does.
- ``receive`` is called on the I/O loop of the listening transport.
- After ``close``, nothing is received, and sending is silently dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from monarch.wire.keys import JobKeys

Bytes = bytes | bytearray | memoryview
Frames = Sequence[Bytes]
Receive = Callable[[Frames], None]


class Connection(Protocol):
    """A connection to one listener."""

    def send(self, frames: Frames) -> None: ...

    def close(self, linger_seconds: float = 0.0) -> None:
        """Close the connection; messages already sent get ``linger_seconds`` to leave."""
        ...


class Transport(Protocol):
    """All the listeners and connections of one process."""

    def listen(self, url: str) -> str:
        """Receive at ``url``; returns the URL as others reach it (with the port filled in)."""
        ...

    def connect(self, url: str) -> Connection: ...

    def use_keys(self, keys: JobKeys) -> None:
        """Use these keys for listeners and connections made from here on."""
        ...

    def allow_insecure(self) -> None:
        """Listen beyond the machine without keys from here on."""
        ...

    def close(self) -> None: ...
