"""TorchFT's lighthouse, which forms the quorum of each step, and the keeper that restarts it.

It is an actor in a proc of its own.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from torchft.coordination import LighthouseServer

from monarch.actor import Actor, ActorError, HostMesh, ProcMesh, SupervisionError, endpoint
from monarch.errors import MonarchError
from monarch.runs.recover.ranks import RunLost
from monarch.runs.recover.restarts import Restarts
from monarch.runtime.ends.process_group import signal_self
from monarch.spmd.surroundings import hosts_beyond
from monarch.tools.network import address_for
from monarch_recipes.replicas.event_log import LIGHTHOUSE, EventLog
from monarch_recipes.replicas.group import first_cause
from monarch_recipes.replicas.placement import ENVIRONMENT, PRELOAD, end_procs

_BUSY = "Address already in use"
_POLL_SECONDS = 0.05
_QUORUM_TICK_MS = 50
_PORT_PATIENCE_SECONDS = 10.0
# All groups wait for the lighthouse, so its restart is never delayed longer.
_LONGEST_DELAY_SECONDS = 1.0


class LighthouseError(MonarchError):
    """The lighthouse cannot be started or reached."""


class LighthouseLost(LighthouseError, RunLost):
    """The lighthouse has died too often."""


class Lighthouse(Actor):
    """The actor that runs TorchFT's lighthouse server. A restarted server gets the same port.

    A group without a heartbeat for ``heartbeat_seconds`` counts as dead. The quorum waits up to
    ``join_seconds`` for a group that sends heartbeats but does not join it.
    """

    def __init__(self, heartbeat_seconds: float, join_seconds: float) -> None:
        self.heartbeat_seconds = heartbeat_seconds
        self.join_seconds = join_seconds
        self.server: LighthouseServer | None = None

    @endpoint
    def serve(self, port: int, patience_seconds: float, peers: tuple[str, ...]) -> tuple[str, int]:
        """Start the server. Return its URL and this process's id. Port 0 takes a free port.

        It accepts every client of this machine, or with ``peers`` every client of the address
        through which these hosts reach this machine. Raises LighthouseError if the port is still in
        use after ``patience_seconds``.
        """
        deadline = time.monotonic() + patience_seconds
        address = address_for(peers)
        while True:
            try:
                self.server = LighthouseServer(
                    bind=f"{address}:{port}",
                    min_replicas=1,
                    join_timeout_ms=round(self.join_seconds * 1000),
                    quorum_tick_ms=_QUORUM_TICK_MS,
                    heartbeat_timeout_ms=round(self.heartbeat_seconds * 1000),
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
        # The server's own URL contains the host's name, which need not resolve.
        return f"http://{address}:{self.server.address().rsplit(':', 1)[1]}", os.getpid()

    @endpoint
    def crash(self) -> None:
        """Kill the lighthouse's process, as an injected fault."""
        signal_self(signal.SIGKILL)

    def __cleanup__(self, error: Exception | None) -> None:
        if self.server is not None:
            self.server.shutdown()


def check_reachable(url: str, timeout_seconds: float) -> None:
    """Raise LighthouseError if no process listens at a lighthouse's URL."""
    host, _, port = url.removeprefix("http://").rstrip("/").rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout_seconds).close()
    except (OSError, ValueError) as error:
        raise LighthouseError(
            f"no lighthouse can be reached at {url} from {socket.gethostname()}: {error}. "
            "Start one there (torchft_lighthouse), or leave `lighthouse` out to have one started"
        ) from None


class LighthouseKeeper:
    """Runs a lighthouse on the first of ``hosts``, unless the config names one."""

    def __init__(self, config: Any, hosts: HostMesh, event_log: EventLog) -> None:
        #: The lighthouse's URL; "" until it is started for the first time.
        self.url: str = config.lighthouse
        #: Whether the lighthouse is started and watched here, not by another program.
        self.is_ours = not config.lighthouse
        #: Counts the lighthouses, since each knows nothing of the one before.
        self.number = 0
        #: The controller changes it when hosts were replaced.
        self.hosts = hosts
        self._config = config
        self._event_log = event_log
        self._restarts = Restarts(
            config.max_restarts, config.restart_window_seconds, _LONGEST_DELAY_SECONDS
        )
        #: The lighthouse's process and actor; None before it is started, and if it is not ours.
        self._procs: ProcMesh | None = None
        self._actor: Any = None
        #: Set while there is a lighthouse to join, as far as is known.
        self.is_up = asyncio.Event()
        #: Set when the present lighthouse has died.
        self._is_down = asyncio.Event()

    async def begin(self) -> None:
        """Start the lighthouse, again if it dies meanwhile.

        Raises LighthouseError if that fails.
        """
        if self.is_ours:
            port = self._config.lighthouse_port
            try:
                await self._start(port, patience_seconds=0.0)
            except SupervisionError as error:
                await self._start_again(port, _why_not(error))
        self.is_up.set()

    async def keep(self, when_lost: Callable[[], None]) -> None:
        """Restart the lighthouse on the same port whenever it dies.

        Raises LighthouseLost after too many deaths. ``when_lost`` is called at each death.
        """
        while True:
            await self._is_down.wait()
            self.is_up.clear()
            self.number += 1
            when_lost()
            port = int(self.url.rsplit(":", 1)[1])
            await self._start_again(port, "its process has died")
            self._event_log.recovery.ready(LIGHTHOUSE, time.monotonic())
            self.is_up.set()

    async def _start_again(self, port: int, why: str) -> None:
        while True:
            self._event_log.died(LIGHTHOUSE, self._event_log.newest_step, why)
            await end_procs(self._procs)
            # The client may have to restart its host first.
            await self._event_log.written()
            delay = self._restarts.next_wait_seconds(time.monotonic())
            if delay is None:
                raise LighthouseLost(
                    f"the lighthouse is given up after {self._restarts.most} restarts "
                    f"within {self._restarts.window_seconds:g} s: {why}"
                )
            await asyncio.sleep(delay)
            try:
                await self._start(port, _PORT_PATIENCE_SECONDS)
                return
            except MonarchError as error:
                why = _why_not(error)

    async def _start(self, port: int, patience_seconds: float) -> None:
        # Its death may have been reported more than once.
        self._is_down.clear()
        self._procs = self.hosts.slice(hosts=0).spawn_procs(
            name=LIGHTHOUSE, env=ENVIRONMENT, preload=PRELOAD
        )
        config = self._config
        self._actor = self._procs.spawn(
            LIGHTHOUSE, Lighthouse, config.heartbeat_timeout_seconds, config.join_timeout_seconds
        )
        try:
            self.url, pid = await self._actor.serve.call_one(
                port, patience_seconds, hosts_beyond(self.hosts)
            )
        except ActorError as error:
            raise error.exception from None
        self._event_log.tell(
            "lighthouse", f"the lighthouse is at {self.url}", url=self.url, pid=pid
        )

    def on_failure(self, mesh_name: str) -> None:
        """Note the failure of a mesh, which may be the lighthouse's.

        No call waits for the lighthouse, so only its owner learns of its death.
        """
        if mesh_name.startswith(LIGHTHOUSE):
            self._is_down.set()

    async def is_another(self, number: int, seconds: float) -> bool:
        """Return whether the lighthouse ``number`` has died; wait up to ``seconds`` for news."""
        deadline = time.monotonic() + seconds
        while self.number == number and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_SECONDS)
        return self.number != number

    def crash(self) -> None:
        """Kill the lighthouse, as an injected fault."""
        if self._actor is not None:
            self._event_log.recovery.ordered(LIGHTHOUSE, time.monotonic())
            self._actor.crash.broadcast()

    async def end(self) -> None:
        """End the process of the lighthouse, if it is ours."""
        await end_procs(self._procs)


def _why_not(error: MonarchError) -> str:
    return f"it cannot be started: {first_cause(error)}"


def peers_of(hosts: HostMesh, lighthouse: str) -> tuple[str, ...]:
    """Return the machines that must reach the groups' processes; () if one machine has everything.

    If other programs run the ``lighthouse``, its machine is among them.
    """
    machine = urlsplit(lighthouse).hostname
    return hosts_beyond(hosts) + ((machine,) if machine else ())
