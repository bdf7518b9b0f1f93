"""The processes to observe: this folder's allocation, the programs that run in it, or a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from monarch.cli.hosts.hosts_here import hosts_here
from monarch.cli.project import no_allocation
from monarch.observe.hang_report import (
    LATE_SECONDS,
    HangReport,
    hang_report,
    settled_report,
)
from monarch.observe.visit import MeshVisit
from monarch.runs.record.folder import RUNS, runs_in
from monarch.runtime.client_agent import client
from monarch.wire.address import ProcAddress

_FLIGHT_LOOKS = 5
_HOSTS_LOOKS = 10  # Not oftener: a scheduler may be asked for them.


def visit_here() -> MeshVisit:
    """Return a visit to what runs for this folder. Raises ``JobError`` if nothing does."""
    hosts = hosts_here()
    if not hosts:
        raise no_allocation()
    return MeshVisit(client().node, hosts)


def hang_here(visit: MeshVisit) -> HangReport:
    """Return who waits for whom; look twice if ranks may only be late for a collective."""
    look = partial(visit.look, flight=True)
    return settled_report(hang_report(look()), look, partial(time.sleep, LATE_SECONDS))


class StayHere:
    """The target of views that stay open.

    Now and then ``visit`` moves to the current result of ``hosts``, so that it sees hosts that have
    started, and leaves those that have ended.
    """

    def __init__(
        self, visit: MeshVisit, hosts: Callable[[], Mapping[str, ProcAddress]] = hosts_here
    ) -> None:
        self._visit = visit
        self._hosts = hosts
        self._num_looks = 0

    def look(self) -> Sequence[dict[str, Any]]:
        """Return the current state of each host.

        Some calls also return torch's last collectives, and look for hosts that have started or
        ended.
        """
        number, self._num_looks = self._num_looks, self._num_looks + 1
        if number and number % _HOSTS_LOOKS == 0:
            self._visit.go_to(self._hosts())
        return self._visit.look(flight=number % _FLIGHT_LOOKS == 0)


def run_paths() -> list[Path]:
    """Return the folders of all runs here."""
    return [run.path for run in runs_in(RUNS)]
