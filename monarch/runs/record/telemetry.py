"""Stores the records of a run's processes in its folder, for later queries."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

from monarch.config import settings
from monarch.observe.hang_report import hang_report
from monarch.observe.query import PACKED, TELEMETRY, live_rows
from monarch.observe.visit import MeshVisit, hosts_of
from monarch.runtime import process
from monarch.runtime.client_agent import ClientAgent
from monarch.whole_file import OF_PEOPLE, write_whole

HANG_REPORT = "hang.json"
_KEPT_SECONDS = 3600.0

TROUBLE = ("died", "hung", "held")
"""Events of a run after which its telemetry is written, as the run may not reach its end."""


class RunTelemetry:
    """Writes the telemetry of a run's procs into ``folder``.

    It does nothing if telemetry is turned off, or the program runs no mesh.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / TELEMETRY / f"{time.strftime('%Y%m%d-%H%M%S')}{PACKED}"
        self._writing = threading.Lock()

    def begin(self) -> None:
        """Make the hosts keep their procs' records, so that dead procs' last records exist."""
        visit = self._visit()
        if visit is not None:
            visit.keep(_KEPT_SECONDS)

    def write(self) -> None:
        """Gather the records and write them atomically; takes seconds if procs do not answer.

        Raises ``OSError`` if the file cannot be written.
        """
        visit = self._visit()
        if visit is None:
            return
        drained = visit.drain()
        looks = visit.look(flight=True)
        rows = [*drained.packed, live_rows(looks)]
        with self._writing:
            self._path.parent.mkdir(exist_ok=True)
            write_whole(self._path, b"".join(rows), mode=OF_PEOPLE)
            report = hang_report(looks)
            if report.is_hang:
                write_whole(
                    self._path.parent / HANG_REPORT, json.dumps(report.to_data()), mode=OF_PEOPLE
                )

    def write_soon(self) -> None:
        """Write on another thread. Errors are ignored: the write at the run's end reports them."""

        def write() -> None:
            try:
                self.write()
            except (OSError, RuntimeError):
                pass

        threading.Thread(target=write, name="monarch-telemetry", daemon=True).start()

    def _visit(self) -> MeshVisit | None:
        if settings().telemetry_events <= 0 or not process.is_bootstrapped():
            return None
        agent = process.current()
        if not isinstance(agent, ClientAgent) or agent.is_closed:
            return None
        return MeshVisit(agent.node, hosts_of(agent))
