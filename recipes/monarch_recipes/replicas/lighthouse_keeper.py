"""Keeps a lighthouse alive, in a proc of its own, on one port."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from monarch.actor import ActorError, HostMesh, ProcMesh, SupervisionError
from monarch.errors import MonarchError
from monarch.runs.restarts import Restarts
from monarch.spmd.surroundings import hosts_beyond
from monarch_recipes.replicas.chronicle import LIGHTHOUSE, Chronicle
from monarch_recipes.replicas.group import first_cause
from monarch_recipes.replicas.lighthouse import Lighthouse, LighthouseLost, LighthouseTimes
from monarch_recipes.replicas.processes import ENVIRONMENT, PRELOAD, end_procs

__all__ = ["LighthouseKeeper"]

_PORT_PATIENCE_SECONDS = 10.0


class LighthouseKeeper:
    """On the first of ``hosts``; or none, where there is a ``url`` that somebody else keeps.

    ``number`` counts the lighthouses: each knows nothing of the one before.
    """

    def __init__(
        self,
        hosts: HostMesh,
        url: str,
        port: int,
        times: LighthouseTimes,
        restarts: Restarts,
        chronicle: Chronicle,
    ) -> None:
        self.url = url
        self.number = 0
        self._hosts = hosts
        self._is_ours = not url
        self._port = port
        self._times = times
        self._restarts = restarts
        self._chronicle = chronicle
        self._procs: ProcMesh | None = None
        self._actor: Any = None
        self._is_up = asyncio.Event()
        self._is_down = asyncio.Event()

    async def begin(self) -> None:
        """Start it, again where it dies meanwhile; LighthouseError when that is not possible."""
        if self._is_ours:
            try:
                await self._start(self._port, patience_seconds=0.0)
            except SupervisionError as error:
                await self._start_again(self._port, _why_not(error))
        self._is_up.set()

    async def keep(self, when_lost: Callable[[], None]) -> None:
        """Start it again, on the same port, whenever it dies; LighthouseLost after too many."""
        while True:
            await self._is_down.wait()
            self._is_up.clear()
            self.number += 1
            when_lost()
            port = int(self.url.rsplit(":", 1)[1])
            await self._start_again(port, "its process has died")
            self._chronicle.recovery.ready(LIGHTHOUSE, time.monotonic())
            self._is_up.set()

    async def _start_again(self, port: int, why: str) -> None:
        while True:
            self._chronicle.died(LIGHTHOUSE, self._chronicle.newest_step, why)
            await end_procs(self._procs)
            # The client may have to bring its host up again.
            await self._chronicle.written()
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
        # Its death may have been told more than once.
        self._is_down.clear()
        self._procs = self._hosts.slice(hosts=0).spawn_procs(
            name=LIGHTHOUSE, env=ENVIRONMENT, preload=PRELOAD
        )
        self._actor = self._procs.spawn(LIGHTHOUSE, Lighthouse, self._times)
        try:
            self.url = await self._actor.serve.call_one(
                port, patience_seconds, hosts_beyond(self._hosts)
            )
            pid = await self._actor.pid.call_one()
        except ActorError as error:
            raise error.exception from None
        self._chronicle.tell(
            "lighthouse", f"the lighthouse is at {self.url}", url=self.url, pid=pid
        )

    def is_told(self, mesh_name: str) -> None:
        """Something has failed; perhaps this. Nobody calls it, so only its owner is told."""
        if mesh_name.startswith(LIGHTHOUSE):
            self._is_down.set()

    async def wait_until_up(self) -> None:
        """Until there is one to join."""
        await self._is_up.wait()

    def crash(self) -> None:
        """A fault on purpose."""
        if self._actor is not None:
            self._chronicle.recovery.ordered(LIGHTHOUSE, time.monotonic())
            self._actor.crash.broadcast()

    async def end(self) -> None:
        """End ours."""
        await end_procs(self._procs)


def _why_not(error: MonarchError) -> str:
    return f"it cannot be started: {first_cause(error)}"
