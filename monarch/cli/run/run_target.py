"""The hosts of a run: those of the running allocation, or this machine alone."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from monarch.actor import HostMesh, ProcMesh
from monarch.cli.large_files import LargeFiles
from monarch.cli.own_output import without_own_output
from monarch.cli.project import PROJECT_FILE, Project, find_job, noted_job
from monarch.cli.terminal.phases import phase
from monarch.cli.terminal.volume import is_quiet, say
from monarch.errors import JobError
from monarch.job import JobTrait, LocalJob
from monarch.runs import Record
from monarch.runs.detached import THERE_VARIABLE
from monarch.runs.recipe.recipe import Recipe
from monarch.runs.record.code import RunCode
from monarch.runs.recover.allocation import OnHostLoss, RunAllocation
from monarch.runs.roles import procs_on_host
from monarch.runtime.client_agent import client
from monarch.runtime.hosts.asking import inspect_hosts
from monarch.runtime.observe.machine_state import num_visible_gpus
from monarch.runtime.workspace.pushing.host_history import HostHistory
from monarch.runtime.workspace.session import session_of
from monarch.wire.message import LookAtHost
from monarch_sync import SyncReport, Workspace
from monarch_sync.words import counted

_LOCAL_PROCS = 2
# A training waits for them between two steps, when it is on a new generation.
_NUM_ASKED = 3
_PATIENCE_SECONDS = 1.0


@dataclass
class RunTarget:
    """The place of a run, known before anything is started there.

    ``job`` is ``None`` for this machine alone. ``is_part``: these are the first hosts of the mesh,
    not all.
    """

    job: JobTrait | None
    name: str
    num_hosts: int
    procs_per_host: int
    is_part: bool = False

    @property
    def text(self) -> str:
        where = f"allocation '{self.name}'" if self.job else "this machine alone"
        return (
            f"{where}: {counted(self.num_hosts, 'host')} x {counted(self.procs_per_host, 'proc')}"
        )

    def attach(
        self, project: Project, *, is_agreed: bool = False, may_ask: bool = False
    ) -> tuple[HostMesh, RunCode | None, int]:
        """Send the workspace of ``monarch.toml`` to the hosts; return hosts, code and generation.

        The code is ``None`` without a workspace, or if this process is the host: its procs import
        your own files. Large files are reported before they are sent, or asked about, unless
        ``is_agreed``.
        """
        own_uid = client().node.uid
        hosts = (self.job or LocalJob())._state()._hosts[self.name]
        if self.job is not None and self.is_part:
            running = set(self.job.running_urls())
            urls = [host.url for host in hosts._hosts if host.url in running]
            hosts = hosts._among(urls[: self.num_hosts])
        is_here = any(address.uid == own_uid for address in hosts._sync_hosts())
        syncs = has_workspace(project) and not is_here
        with phase(f"waiting for {counted(self.num_hosts, 'host')}"):
            asyncio.run(_up(hosts))
        if not syncs:
            return hosts, None, client().generation
        if THERE_VARIABLE in os.environ:
            return self._as_it_is_there(hosts)
        workspace = without_own_output(project.make_workspace())
        large = LargeFiles(
            lambda text, files: say(text), is_agreed=is_agreed, may_ask=may_ask and not is_quiet()
        )

        def bring() -> SyncReport:
            with phase(f"bringing your files to {counted(self.num_hosts, 'host')}"):
                return asyncio.run(_bring(hosts, workspace))

        report = large.pushing(workspace, bring)
        say(report.one_line())
        generation = report.generation
        # If the hosts had everything, nothing was switched here: the run still begins with it.
        client().generation = max(client().generation, generation)
        code = _code_of(hosts, workspace, generation)
        session, addresses = session_of(client()), hosts._sync_hosts()
        code.roll_back = lambda generation_wanted: session.roll_back(
            addresses, workspace, generation_wanted
        )
        return hosts, code, generation

    def _as_it_is_there(self, hosts: HostMesh) -> tuple[HostMesh, RunCode | None, int]:
        """Return hosts, code and generation of a run in a host's copy of the workspace.

        Its author is on another machine, so nothing is sent. Without a generation the code is
        ``None``.
        """
        generation = client().generation
        if not generation:
            return hosts, None, generation
        return hosts, _code_of(hosts, Workspace([os.getcwd()]), generation), generation

    def allocation(
        self,
        project: Project,
        record: Record,
        choose: Callable[[str], OnHostLoss],
        why_unfit: Callable[[int], str],
    ) -> RunAllocation | None:
        """Return the run's allocation, which replaces lost hosts.

        ``None`` if the run has none, or one whose state is not kept.
        """
        job = self.job
        if job is None or job._state_path is None:
            return None

        def move(other: JobTrait, num_hosts: int) -> HostMesh:
            size = getattr(other, "meshes", {}).get(self.name, num_hosts)
            target = dataclasses.replace(
                self, job=other, num_hosts=num_hosts, is_part=num_hosts < size
            )
            moved, _, _ = target.attach(project)
            return moved

        return RunAllocation(
            job,
            self.name,
            job._state_path,
            move=move,
            tell=record.message,
            choose=choose,
            why_unfit=why_unfit,
            is_stopping=lambda: record.is_stopping,
            is_part=self.is_part,
        )

    def spawn(self, hosts: HostMesh, recipe: Recipe) -> ProcMesh:
        """Spawn and return the procs for a recipe that does not spawn its own."""
        preload = recipe.preload or tuple(name for name in ("torch",) if name in sys.modules)
        return hosts.spawn_procs({"procs": self.procs_per_host}, name=recipe.name, preload=preload)


def _code_of(hosts: HostMesh, workspace: Workspace, generation: int) -> RunCode:
    asked_hosts = {str(address.uid): address for address in hosts._sync_hosts()[:_NUM_ASKED]}
    past = HostHistory(client().node, asked_hosts, _PATIENCE_SECONDS)
    code = RunCode(past, workspace, generation, lambda: client().gate.code_generation)
    responses = inspect_hosts(
        client().node, {host.urls[0]: host for host in asked_hosts.values() if host.urls}
    ).values()
    code.copies = frozenset(host.answer.workspace for host in responses if not host.error)
    return code


def find_target(
    procs: int | None,
    attach: bool | None,
    hosts: int | None = None,
    roles: Mapping[str, int] | None = None,
) -> RunTarget:
    """Return the first mesh of the running job, or ``hosts`` hosts of it; without a job, or with
    ``attach=False``, this machine.

    Raises ``JobError`` for ``attach=True`` without an allocation, and if the allocation has too few
    hosts.
    """
    job = None if attach is False else find_job() or _brought_up_again(hosts)
    if job is None:
        if attach:
            raise JobError("no allocation is up for this folder: start one with `monarch apply`")
        if hosts is not None and hosts > 1:
            raise JobError(f"--hosts {hosts}: this machine alone is one host")
        on_host = procs or _for_roles(roles, 1) or num_visible_gpus(os.environ) or _LOCAL_PROCS
        return RunTarget(None, "hosts", 1, on_host)
    meshes: dict[str, Any] | None = getattr(job, "meshes", None)
    if meshes:
        name, num_hosts = next(iter(meshes.items()))
    else:
        client()
        name, mesh = next(iter(job._state()._hosts.items()))
        num_hosts = mesh.size()
    num_wanted = num_hosts if hosts is None else hosts
    if num_wanted > num_hosts:
        raise JobError(
            f"--hosts {num_wanted}: the allocation has {counted(num_hosts, 'host')} in {name!r}"
        )
    on_host = procs or _for_roles(roles, num_wanted) or _procs_on_host(job, num_hosts)
    return RunTarget(job, name, num_wanted, on_host, is_part=num_wanted < num_hosts)


def _for_roles(roles: Mapping[str, int] | None, num_hosts: int) -> int:
    return procs_on_host(roles, num_hosts) if roles else 0


def _procs_on_host(job: JobTrait, num_hosts: int) -> int:
    """Return one proc for each GPU that a host sees; without GPUs one, or two on a single host.

    ``num_hosts`` is the size of the whole mesh: a run on some of its hosts has as many procs on
    each.
    """
    node = client().node
    for url in job.running_urls()[:1]:
        answer = node.ask(job.visit(url), LookAtHost())
        if answer.wait(_PATIENCE_SECONDS) and not answer.value.error:
            # Hosts of kind process share one machine.
            num_sharing = num_hosts if job.kind == "process" else 1
            num_gpus = int(answer.value.answer.machine.get("num_gpus", 0))
            if num_gpus:
                return max(1, num_gpus // num_sharing)
    return _LOCAL_PROCS if num_hosts == 1 else 1


def _brought_up_again(num_wanted: int | None) -> JobTrait | None:
    """Restart the lost hosts of an allocation; return its job, or ``None`` if it is gone.

    If a host cannot be restarted, ``num_wanted`` hosts are enough (``None``: all are needed).
    Raises ``JobError`` if fewer are left.
    """
    job = noted_job()
    if job is None or job.ending is not None:
        return None
    num_left = job.num_running()
    if num_left == 0 and not job.is_running():
        return None
    reason = job.why_ended()
    try:
        names = job.repair()
    except JobError as error:
        if num_wanted is not None and num_wanted <= num_left:
            return job
        raise JobError(
            f"hosts of the allocation have ended, and {error}; {num_left} of "
            f"{counted(len(job.urls()), 'host')} {'is' if num_left == 1 else 'are'} left: --hosts "
            f"{num_left} takes what is left, and --local runs on this machine alone\n{reason}"
        ) from None
    if names:
        say(f"{reason}\nbrought up again: {', '.join(names)}")
    return job


def has_workspace(project: Project) -> bool:
    return bool(project.file.workspace.dirs) and (project.directory / PROJECT_FILE).exists()


async def _up(hosts: HostMesh) -> None:
    await hosts.initialized


async def _bring(hosts: HostMesh, workspace: Workspace) -> SyncReport:
    report = await hosts.sync_workspace(workspace)
    report.raise_for_errors()
    return report
