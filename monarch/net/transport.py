"""The interface of a transport, and what all transports do alike.

``UnixTransport`` connects the processes of a machine, ``ZmqTransport`` machines,
``InprocTransport`` the nodes within a process; a contract suite holds all to the same promises:

- Frames sent on one connection arrive whole, once and in order.
- ``send`` may be called from any thread and does not wait for the receiver.
- Frames may be sent before the other side listens; they arrive once it does.
- ``receive`` is called on the I/O loop of the listening transport.
- After ``close``, nothing is received, and sending is silently dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from monarch.errors import WireError
from monarch.net.loop import Loop
from monarch.net.rare_log import RareLog
from monarch.wire.keys import JobKeys

Bytes = bytes | bytearray | memoryview
Frames = Sequence[Bytes]
Receive = Callable[[Frames], None]

_LINGER_SECONDS = 0.5
_LOOP_SECONDS = 1.0


class Connection(Protocol):
    """A connection to one listener."""

    def send(self, frames: Frames) -> None: ...

    def close(self, linger_seconds: float = 0.0) -> None:
        """Close the connection; messages already sent get ``linger_seconds`` to leave."""
        ...


class Transport(Protocol):
    """All the listeners and connections of one process."""

    def listen(self, url: str) -> str:
        """Receive at ``url``; return the URL as others reach it (with the port filled in)."""
        ...

    def connect(self, url: str) -> Connection: ...

    def use_keys(self, keys: JobKeys) -> None:
        """Use these keys for listeners and connections made from here on."""
        ...

    def allow_insecure(self) -> None:
        """Listen beyond the machine without keys from here on."""
        ...

    def close(self) -> None: ...


def take(receive: Receive, frames: Frames, peer: Callable[[], str], rare: RareLog) -> None:
    """Call ``receive`` with a message. An error that it raises is logged, once for each kind, with
    the name of the ``peer``.

    The connection stays open, because a bad message does not affect the next one.
    """
    try:
        receive(frames)
    except WireError as error:
        rare.warning(str(error)[:20], "dropped a message from %s: %s", peer(), error)
    except Exception as error:
        rare.exception(type(error).__name__, "could not take a message from %s", peer())


def close_all(
    loop: Loop, connections: Iterable[Connection], close_watched: Callable[[], None]
) -> bool:
    """Close all connections and watched descriptors of a transport. Messages already sent get half
    a second to leave.

    Return False if the loop is stuck: the descriptors that it watches stay open, and the caller
    must not wait for them.
    """
    for connection in list(connections):
        connection.close(linger_seconds=_LINGER_SECONDS)
    try:
        loop.run_on_loop(close_watched, timeout=_LOOP_SECONDS)
    except TimeoutError:
        return False
    except RuntimeError:
        # The loop has ended, and watches nothing any more.
        close_watched()
    return True
