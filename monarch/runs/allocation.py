"""The allocation that a run goes on: others may end it, put another in its place, or mend it.

The content of its state file is what holds; each look reads it anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from monarch.actor import HostMesh
from monarch.errors import HostBusy, JobError, MonarchError
from monarch.job import JobTrait, job_load
from monarch.job.ended import how_ended
from monarch.runs.ranks import RunLost
from monarch.runtime.client_agent import client
from monarch_sync.words import counted

# Between the end of an allocation and the next one in its place lies the start of its processes.
_REPLACED_WITHIN_SECONDS = 20.0
_LOOK_SECONDS = 0.05
_REPLACED = "the allocation was replaced by another"

Sleep = Callable[[float], object]


class AllocationLost(RunLost):
    """There are no hosts to go on with; with some, the run could."""


class RunAllocation:
    """``mesh`` of the job whose state file lies at ``path``.

    ``move`` brings what a run needs to the hosts of another job; ``tell`` gets a line for people.
    """

    def __init__(
        self,
        job: JobTrait,
        mesh: str,
        path: Path,
        *,
        move: Callable[[JobTrait], HostMesh],
        tell: Callable[[str], object],
        sleep: Sleep = time.sleep,
    ) -> None:
        self._job = job
        self._apply_id = job.apply_id
        self._mesh = mesh
        self._path = path.absolute()
        self._move = move
        self._tell = tell
        self._sleep = sleep

    def why_gone(self) -> str:
        """In words, where the allocation that the run began on has been ended, or replaced: then
        it is no failure any more that its hosts are lost."""
        why = self._why_gone(self._read())
        if why:
            for url in self._job.urls():
                client().expect_end(url)
        return why

    def _why_gone(self, job: JobTrait | None) -> str:
        if job is not None and job.apply_id != self._apply_id:
            return _REPLACED
        ending = how_ended(self._path, self._apply_id) if job is None else job.ending
        if ending:
            return f"the allocation was {ending.get('how')} by {ending.get('by')}"
        return "the allocation was ended" if job is None else ""

    def after_loss(self, hosts: HostMesh) -> HostMesh:
        """The hosts to go on with, after something on ``hosts`` was lost: these, where they are
        all there, or brought up again; or those of the allocation that took their place.

        Raises ``AllocationLost`` where there are none.
        """
        deadline = time.monotonic() + _REPLACED_WITHIN_SECONDS
        while True:
            job = self._read()
            why = self.why_gone()
            if job is not None and job.apply_id != self._apply_id:
                return self._move_to(job, hosts)
            if job is not None and not why:
                self._repair(job)
                return hosts
            is_replaced = job is not None and (job.ending or {}).get("how") == "replaced"
            if not is_replaced or time.monotonic() > deadline:
                raise AllocationLost(why or "the allocation was ended")
            self._sleep(_LOOK_SECONDS)

    def _read(self) -> JobTrait | None:
        try:
            return job_load(self._path)
        except (FileNotFoundError, JobError):
            return None

    def _move_to(self, job: JobTrait, hosts: HostMesh) -> HostMesh:
        there = getattr(job, "meshes", {}).get(self._mesh)
        if there is not None and there != len(hosts):
            raise AllocationLost(
                f"{_REPLACED}: it has {counted(there, 'host')} in "
                f"{self._mesh!r}, and this run began on {len(hosts)}"
            )
        self._tell(f"{_REPLACED}: the run moves over to that")
        deadline = time.monotonic() + _REPLACED_WITHIN_SECONDS
        while True:
            try:
                moved = self._move(job)
                break
            except HostBusy as error:
                # The program that brought it up may still look whether it is.
                if time.monotonic() > deadline:
                    raise AllocationLost(f"{_REPLACED}: {error}") from None
                self._sleep(_LOOK_SECONDS)
            except MonarchError as error:
                raise AllocationLost(f"{_REPLACED}: {error}") from None
        self._job, self._apply_id = job, job.apply_id
        return moved

    def _repair(self, job: JobTrait) -> None:
        """Have the hosts that have ended brought up again; nothing where all are up."""
        if job.is_running():
            return
        why = job.why_ended()
        try:
            names = job.repair()
        except JobError as error:
            left, num_hosts = job.num_running(), len(job.urls())
            raise AllocationLost(
                f"hosts of the allocation have ended, and {error}; {left} of "
                f"{counted(num_hosts, 'host')} {'is' if left == 1 else 'are'} left\n{why}".rstrip()
            ) from None
        if names:
            first = why.partition("\n")[0].partition(";")[0]
            others = f", as {counted(len(names) - 1, 'other host')} did" if names[1:] else ""
            self._tell(f"{first}{others}: brought up again")
