"""The target of a look: this folder's allocation, the programs that run in it, or a run."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from monarch.cli.project import no_allocation, noted_job
from monarch.observe.visit import MeshVisit, program_at
from monarch.runs.folder import RUNS, RunFolder, find_run, runs_in
from monarch.runtime.client_agent import client
from monarch.wire.address import ProcAddress

_FLIGHT_LOOKS = 5
_HOSTS_LOOKS = 10  # Not oftener: a scheduler may be asked for them.


def hosts_here() -> dict[str, ProcAddress]:
    """The hosts of this folder's allocation, the programs of its runs, and the one that runs this
    command, as a notebook does: those that run at this moment."""
    hosts = {}
    job = noted_job()
    if job is not None and job.num_running():
        names = job.names_by_url()
        hosts = {names.get(url, url): job.visit(url) for url in job.urls()}
    for run in runs_in(RUNS):
        pid = run.running_pid
        program = program_at(pid) if pid is not None else None
        if program is not None:
            hosts[run.name] = program
    asker = program_at(os.getppid())
    if asker is not None:
        hosts["this program"] = asker
    return hosts


def visit_here() -> MeshVisit:
    """A visit to `hosts_here`. Raises ``JobError`` where there are none."""
    hosts = hosts_here()
    if not hosts:
        raise no_allocation()
    return MeshVisit(client().node, hosts)


class StayHere:
    """The target of views that stay open: now and then ``visit`` goes to the hosts that ``hosts``
    gives by then, so that it sees what has begun, and leaves what has ended."""

    def __init__(
        self, visit: MeshVisit, hosts: Callable[[], Mapping[str, ProcAddress]] = hosts_here
    ) -> None:
        self._visit = visit
        self._hosts = hosts
        self._num_looks = 0

    def look(self) -> Sequence[dict[str, Any]]:
        """Torch's collectives are asked for now and then, too: they tell which ranks wait in
        which."""
        number, self._num_looks = self._num_looks, self._num_looks + 1
        if number and number % _HOSTS_LOOKS == 0:
            self._visit.go_to(self._hosts())
        return self._visit.look(flight=number % _FLIGHT_LOOKS == 0)


def run_here(name: str) -> RunFolder:
    """The run of that name. Raises ``JobError``."""
    return find_run(name)


def run_paths() -> list[Path]:
    """The folders of all runs here."""
    return [run.path for run in runs_in(RUNS)]
