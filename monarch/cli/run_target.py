"""Where a run happens: on the allocation that is up, or on this machine alone."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from monarch.actor import HostMesh, ProcMesh
from monarch.cli.large_files import LargeFiles
from monarch.cli.phases import phase
from monarch.cli.project import PROJECT_FILE, Project, find_job, noted_job
from monarch.cli.volume import is_quiet, say
from monarch.errors import JobError
from monarch.job import JobTrait, LocalJob
from monarch.runs.allocation import RunAllocation
from monarch.runs.code import RunCode
from monarch.runs.recipe import Recipe
from monarch.runtime.client_agent import client
from monarch.runtime.hosts.asking import ask_hosts
from monarch.runtime.workspace.pushing.host_history import HostHistory
from monarch.runtime.workspace.session import session_of
from monarch_sync import SyncReport, Workspace

_LOCAL_PROCS = 2
# A training waits for them between two steps, when it is on a new generation.
_NUM_ASKED = 3
_PATIENCE_SECONDS = 1.0


@dataclass
class RunTarget:
    """Known before anything is started there. ``job`` is ``None`` for this machine alone."""

    job: JobTrait | None
    name: str
    num_hosts: int
    procs_per_host: int

    @property
    def text(self) -> str:
        where = f"allocation '{self.name}'" if self.job else "this machine alone"
        return f"{where}: {count(self.num_hosts, 'host')} x {count(self.procs_per_host, 'proc')}"

    def attach(
        self, project: Project, *, is_agreed: bool = False, may_ask: bool = False
    ) -> tuple[HostMesh, RunCode | None, int]:
        """The hosts, with the workspace of ``monarch.toml`` on them; and its code, and the
        generation of it. Procs of this process's own host import the person's own files.

        Large files are told of before they go, or asked about, unless that ``is_agreed``.
        """
        ours = client().node.uid
        hosts = (self.job or LocalJob())._state()._hosts[self.name]
        is_here = any(address.uid == ours for address in hosts._sync_hosts())
        syncs = has_workspace(project) and not is_here
        with phase(f"waiting for {count(self.num_hosts, 'host')}"):
            asyncio.run(_up(hosts))
        if not syncs:
            return hosts, None, client().generation
        workspace = project.make_workspace()
        large = LargeFiles(
            lambda text, files: say(text), is_agreed=is_agreed, may_ask=may_ask and not is_quiet()
        )

        def bring() -> SyncReport:
            with phase(f"bringing your files to {count(self.num_hosts, 'host')}"):
                return asyncio.run(_bring(hosts, workspace))

        report = large.pushing(workspace, bring)
        say(report.one_line())
        generation = report.generation
        some = {str(address.uid): address for address in hosts._sync_hosts()[:_NUM_ASKED]}
        past = HostHistory(client().node, some, _PATIENCE_SECONDS)
        code = RunCode(past, workspace, generation)
        told = ask_hosts(
            client().node, {one.urls[0]: one for one in some.values() if one.urls}
        ).values()
        code.copies = frozenset(str(one["workspace"]) for one in told if "error" not in one)
        session, addresses = session_of(client()), hosts._sync_hosts()
        code.roll_back = lambda wanted: session.roll_back(addresses, workspace, wanted)
        return hosts, code, generation

    def allocation(self, project: Project, tell: Callable[[str], object]) -> RunAllocation | None:
        """What keeps the hosts of a run; nothing on this machine alone."""
        job = self.job
        if job is None or job._state_path is None:
            return None

        def move(other: JobTrait) -> HostMesh:
            moved, _, _ = dataclasses.replace(self, job=other).attach(project)
            return moved

        return RunAllocation(job, self.name, job._state_path, move=move, tell=tell)

    def spawn(self, hosts: HostMesh, recipe: Recipe) -> ProcMesh:
        """Procs for a recipe that does not spawn its own."""
        preload = recipe.preload or tuple(name for name in ("torch",) if name in sys.modules)
        return hosts.spawn_procs({"procs": self.procs_per_host}, name=recipe.name, preload=preload)


def find_target(procs: int | None, attach: bool | None) -> RunTarget:
    """The first mesh of the running job; without one, or with ``attach=False``, this machine.

    Raises ``JobError`` for ``attach=True`` where no allocation is up.
    """
    job = None if attach is False else find_job() or _brought_up_again()
    if job is None:
        if attach:
            raise JobError("no allocation is up for this folder: start one with `monarch apply`")
        return RunTarget(None, "hosts", 1, procs or _LOCAL_PROCS)
    meshes: dict[str, Any] | None = getattr(job, "meshes", None)
    if meshes:
        name, num_hosts = next(iter(meshes.items()))
    else:
        client()
        name, hosts = next(iter(job._state()._hosts.items()))
        num_hosts = hosts.size()
    return RunTarget(job, name, num_hosts, procs or (_LOCAL_PROCS if num_hosts == 1 else 1))


def _brought_up_again() -> JobTrait | None:
    """The allocation that is short of a host, whole again; nothing where it is gone."""
    job = noted_job()
    if job is None or job.ending is not None or job.num_running() == 0:
        return None
    why = job.why_ended()
    try:
        names = job.repair()
    except JobError:
        return None
    if names:
        say(f"{why}\nbrought up again: {', '.join(names)}")
    return job


def has_workspace(project: Project) -> bool:
    return bool(project.file.workspace.dirs) and (project.directory / PROJECT_FILE).exists()


async def _up(hosts: HostMesh) -> None:
    await hosts.initialized


async def _bring(hosts: HostMesh, workspace: Workspace) -> SyncReport:
    report = await hosts.sync_workspace(workspace)
    report.raise_for_errors()
    return report


def count(number: int, noun: str) -> str:
    """``1 host``, ``2 hosts``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
