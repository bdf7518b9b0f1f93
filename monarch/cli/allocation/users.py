"""The users of an allocation: the program that each host serves, and the run that it trains."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from monarch.errors import JobError
from monarch.job import JobTrait
from monarch.runs.record.folder import RUNS, runs_in
from monarch.runtime.client_agent import client
from monarch.runtime.hosts.asking import inspect_hosts
from monarch.runtime.hosts.host_link import who_am_i
from monarch.wire.message import HostState

_WHO = re.compile(r"(?P<program>.*) \((?P<where>pid (?P<pid>\d+), user .*)\)", re.DOTALL)
_PID = re.compile(r"pid (\d+), user ")


def users_of(job: JobTrait) -> list[str]:
    """Return the names of the programs that the job's hosts serve, as `named` gives them.

    This program is left out, and so are hosts that do not answer at once.
    """
    if job.num_running() == 0:
        return []
    addresses = {url: job.visit(url) for url in job.urls()}
    # A host that does not answer at once is not waited for: its user cannot be asked for.
    responses = inspect_hosts(client().node, addresses, silent=addresses)
    states = [response.answer for response in responses.values() if not response.error]
    return list(dict.fromkeys(named(state) for state in states if served(state)))


def served(state: HostState) -> str:
    """Return the name of the program that a host serves; "" if it serves none, or this program."""
    return "" if state.client == who_am_i() else state.client


def named(state: HostState) -> str:
    """Return the name of the program that a host serves, as `served` does.

    If the program trains a run of this folder, the run's name comes first.
    """
    program = served(state)
    match = _WHO.fullmatch(program)
    if match is None:
        return program
    pid = int(match["pid"])
    names = [run.name for run in runs_in(RUNS) if run.running_pid == pid]
    return f"{', '.join(names)} ({match['program']}, {match['where']})" if names else program


def check_free(job: JobTrait | None, command: Sequence[str] = ()) -> None:
    """Raise ``JobError`` if another program uses the hosts of ``job``.

    ``None`` is no allocation, so no hosts. The error names ``command`` as what to run without the
    allocation.
    """
    users = users_of(job) if job is not None else []
    if users:
        raise JobError(in_use_text(users, command))


def in_use_text(users: Sequence[str], command: Sequence[str]) -> str:
    """Return the text for a person who finds the allocation in use.

    It names ``command``, if any, as one that could run without the allocation.
    """
    match = _PID.search(users[0])
    pid = match[1] if match else "PID"
    alternative = f" To run beside it, on this machine alone: {shlex.join(command)} --local"
    return (
        f"the allocation of this folder is in use by {' and '.join(users)}. To end that first: "
        f"Ctrl-C in its terminal, or `kill {pid}`; a run saves before it stops."
    ) + (alternative if command else "")
