"""The hosts and programs that run for this folder at this moment."""

from __future__ import annotations

import os

from monarch.cli.project import noted_job
from monarch.observe.visit import program_at
from monarch.runs.record.folder import RUNS, runs_in
from monarch.wire.address import ProcAddress


def hosts_here() -> dict[str, ProcAddress]:
    """Return what runs for this folder, by name: hosts of its allocation, and programs.

    The programs are those of its runs, and the parent of this process, such as a notebook.
    """
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
