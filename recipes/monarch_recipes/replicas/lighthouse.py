"""TorchFT's lighthouse, which says who takes part in a step, as an actor in a proc of its own."""

from __future__ import annotations

import os
import signal
import socket
import time
from dataclasses import dataclass

from torchft.coordination import LighthouseServer

from monarch.actor import Actor, endpoint
from monarch.errors import MonarchError
from monarch.runs.ranks import RunLost
from monarch.tools.network import address_for

__all__ = ["Lighthouse", "LighthouseError", "LighthouseLost", "LighthouseTimes", "check_reachable"]

_BUSY = "Address already in use"
_POLL_SECONDS = 0.05


class LighthouseError(MonarchError):
    """No lighthouse can be had."""


class LighthouseLost(LighthouseError, RunLost):
    """It has died too often."""


@dataclass(frozen=True)
class LighthouseTimes:
    """How long it waits, in seconds.

    A group that has sent no heartbeat for ``heartbeat_timeout`` is dead. One that sends some, but
    is not at the quorum, is waited for as long as ``join_timeout``.
    """

    heartbeat_timeout: float
    join_timeout: float
    quorum_tick: float = 0.05


class Lighthouse(Actor):
    """Serves on one port, and on the same again where it is started anew."""

    def __init__(self, times: LighthouseTimes) -> None:
        self.times = times
        self.server: LighthouseServer | None = None

    @endpoint
    def serve(self, port: int, patience_seconds: float, peers: tuple[str, ...] = ()) -> str:
        """Begin, and say at which URL. 0 takes a free port.

        It lets in whoever connects: from this machine, or with ``peers`` by the address that these
        hosts use.
        Raises LighthouseError when the port is still in use after ``patience_seconds``.
        """
        deadline = time.monotonic() + patience_seconds
        address = address_for(peers)
        while True:
            try:
                self.server = LighthouseServer(
                    bind=f"{address}:{port}",
                    min_replicas=1,
                    join_timeout_ms=round(self.times.join_timeout * 1000),
                    quorum_tick_ms=round(self.times.quorum_tick * 1000),
                    heartbeat_timeout_ms=round(self.times.heartbeat_timeout * 1000),
                )
                break
            except RuntimeError as error:
                if _BUSY not in str(error):
                    raise LighthouseError(f"the lighthouse cannot be started: {error}") from None
                if time.monotonic() >= deadline:
                    raise LighthouseError(
                        f"the lighthouse cannot have port {port} of {socket.gethostname()}: "
                        "another program has it. Give another lighthouse_port, or 0 for a free one"
                    ) from None
            time.sleep(_POLL_SECONDS)
        # Its own address has the host's name in it, which need not resolve.
        return f"http://{address}:{self.server.address().rsplit(':', 1)[1]}"

    @endpoint
    def pid(self) -> int:
        """Of the process it lives in."""
        return os.getpid()

    @endpoint
    def crash(self) -> None:
        """A fault on purpose."""
        os.kill(os.getpid(), signal.SIGKILL)

    def __cleanup__(self, error: Exception | None) -> None:
        if self.server is not None:
            self.server.shutdown()


def check_reachable(url: str, timeout_seconds: float) -> None:
    """Raises LighthouseError when nobody listens at a lighthouse's URL."""
    host, _, port = url.removeprefix("http://").rstrip("/").rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout_seconds).close()
    except (OSError, ValueError) as error:
        raise LighthouseError(
            f"no lighthouse can be reached at {url} from {socket.gethostname()}: {error}. "
            "Start one there (torchft_lighthouse), or leave `lighthouse` out to have one started"
        ) from None
