"""What a look is at: the allocation of this folder, programs that run something in it, or a run."""

from __future__ import annotations

import os
from pathlib import Path

from monarch.cli.project import no_allocation, noted_job
from monarch.observe.visit import MeshVisit, program_at
from monarch.runs.folder import RUNS, RunFolder, find_run, runs_in
from monarch.runtime.client_agent import client


def visit_here() -> MeshVisit:
    """The hosts of this folder's allocation, the programs of its runs, and the one that runs this
    command, as a notebook does.

    Raises ``JobError`` where there is neither."""
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
    if not hosts:
        raise no_allocation()
    return MeshVisit(client().node, hosts)


def run_here(name: str) -> RunFolder:
    """The run of that name. Raises ``JobError``."""
    return find_run(name)


def run_paths() -> list[Path]:
    """The folders of all runs here."""
    return [run.path for run in runs_in(RUNS)]
