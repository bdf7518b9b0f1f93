"""The allocation that a run goes on: others may end it, put another in its place, or fix it.

Its state as it is kept is what holds; each look reads it anew. A host that is lost is brought up
again; where that cannot be, the run goes on with those that are left, waits, or ends, as the person
says, or the policy.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from monarch.actor import HostMesh
from monarch.errors import HostBusy, JobError, MonarchError
from monarch.job import JobTrait, job_load
from monarch.job.ended import how_ended
from monarch.job.kinds.scheduled import ScheduledJob
from monarch.job.places import record_of
from monarch.runs.recover.ranks import RunLost
from monarch.runtime.client_agent import client
from monarch_sync.words import counted

# Between the end of an allocation and the next one in its place lies the start of its processes.
_REPLACED_WITHIN_SECONDS = 20.0
_LOOK_SECONDS = 0.05
_REPLACED = "the allocation was replaced by another"

_WAIT_SECONDS = 1.0  # between two looks for a host that is to come back

Sleep = Callable[[float], object]
OnHostLoss = Literal["fewer", "wait", "end"]


class AllocationLost(RunLost):
    """There are no hosts to go on with; with some, the run could."""


class RunAllocation:
    """``mesh`` of the job whose state ``path`` names.

    ``move`` brings what a run needs to so many hosts of another job; ``tell`` gets a line for
    people. ``choose`` says what to do where a host cannot be brought up again, of which it gets the
    text; ``why_unfit`` says why a run could not go on with so many hosts, if that is so.
    ``is_part`` where the run was not given all hosts of the mesh.
    """

    def __init__(
        self,
        job: JobTrait,
        mesh: str,
        path: Path,
        *,
        move: Callable[[JobTrait, int], HostMesh],
        tell: Callable[[str], object],
        choose: Callable[[str], OnHostLoss] = lambda text: "end",
        why_unfit: Callable[[int], str] = lambda num_hosts: "",
        is_stopping: Callable[[], bool] = lambda: False,
        is_part: bool = False,
        sleep: Sleep = time.sleep,
    ) -> None:
        self._job = job
        self._apply_id = job.apply_id
        self._mesh = mesh
        self._path = record_of(path)
        self._move = move
        self._tell = tell
        self._choose = choose
        self._why_unfit = why_unfit
        self._is_stopping = is_stopping
        self._is_part = is_part
        self._sleep = sleep
        self._unrepaired = ""  # what was told of hosts that cannot be brought up
        self._may_be_elsewhere = False  # Hosts were brought up again, and nobody attached anew.

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

    def after_loss(self, hosts: HostMesh, *, any_number: bool = False) -> HostMesh:
        """The hosts to go on with, after something on ``hosts`` was lost: these, where they are
        all there, or brought up again; those of the allocation that took their place; or fewer.

        Raises ``AllocationLost`` where there are none, or not to be fewer; ``KeyboardInterrupt``
        where the run is to stop while it waits for one.
        """
        deadline = time.monotonic() + _REPLACED_WITHIN_SECONDS
        while True:
            job = self._read()
            why = self.why_gone()
            if job is not None and job.apply_id != self._apply_id:
                return self._move_to(job, hosts)
            if job is not None and not why:
                return self._repaired(job, hosts, any_number)
            is_replaced = job is not None and (job.ending or {}).get("how") == "replaced"
            if not is_replaced or time.monotonic() > deadline:
                raise AllocationLost(why or "the allocation was ended")
            self._sleep(_LOOK_SECONDS)

    def repair(self, *, is_loss_known: bool = True) -> None:
        """Bring up again what has ended, without going on: a run that holds on it can be pushed to
        then. ``after_loss`` sees to the rest once it goes on, also where this cannot be.

        Where a loss is not known, a scheduler is not asked about it."""
        job = self._read()
        if job is None or job.apply_id != self._apply_id or job.ending:
            return
        if (isinstance(job, ScheduledJob) and not is_loss_known) or job.is_whole():
            return
        why = job.why_ended()
        try:
            names = job.repair()
        except JobError as error:
            if (told := f"{why}\n{error}".strip()) != self._unrepaired:
                self._tell(told)
                self._unrepaired = told
            return
        if names:
            self._tell_repaired(job, why, names)
            self._may_be_elsewhere = isinstance(job, ScheduledJob)

    def _read(self) -> JobTrait | None:
        try:
            return job_load(self._path)
        except (FileNotFoundError, JobError):
            return None

    def _move_to(self, job: JobTrait, hosts: HostMesh) -> HostMesh:
        there = getattr(job, "meshes", {}).get(self._mesh)
        if there is not None and (there < len(hosts) if self._is_part else there != len(hosts)):
            raise AllocationLost(
                f"{_REPLACED}: it has {counted(there, 'host')} in "
                f"{self._mesh!r}, and this run began on {len(hosts)}"
            )
        self._tell(f"{_REPLACED}: the run moves over to that")
        deadline = time.monotonic() + _REPLACED_WITHIN_SECONDS
        while True:
            try:
                moved = self._move(job, len(hosts))
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

    def _repaired(self, job: JobTrait, hosts: HostMesh, any_number: bool) -> HostMesh:
        """Have the hosts that have ended brought up again; nothing where all are up."""
        if job.is_whole():
            return self._attached_again(job, hosts) if self._may_be_elsewhere else hosts
        why = job.why_ended()
        try:
            names = job.repair()
        except JobError as error:
            left = hosts._among(job.running_urls())
            if len(left) == len(hosts):
                return hosts  # What has ended was none of this run's.
            words = "is" if len(left) == 1 else "are"
            lost = (
                f"hosts of the allocation have ended, and {error}; {len(left)} of "
                f"{counted(len(hosts), 'host')} {words} left\n{why}"
            ).rstrip()
            return self._without(left, hosts, lost, any_number)
        if names:
            self._tell_repaired(job, why, names)
            if isinstance(job, ScheduledJob):
                return self._attached_again(job, hosts)
        return hosts

    def _tell_repaired(self, job: JobTrait, why: str, names: list[str]) -> None:
        first = why.partition("\n")[0].partition(";")[0] or f"{names[0]} is gone"
        others = f", as {counted(len(names) - 1, 'other host')} did" if names[1:] else ""
        told = f"{first}{others}: brought up again"
        if isinstance(job, ScheduledJob) and job.replaced:
            pairs = (f"{now} in the place of {was}" for now, was in job.replaced.items())
            told += f", {', '.join(pairs)}"
        self._tell(told)

    def _attached_again(self, job: JobTrait, hosts: HostMesh) -> HostMesh:
        """Hosts that a scheduler has placed anew may be elsewhere, and have nothing of the run's
        files."""
        try:
            moved = self._move(job, len(hosts))
        except MonarchError as error:
            raise AllocationLost(f"hosts were brought up again, but {error}") from None
        self._job, self._may_be_elsewhere = job, False
        return moved

    def _without(self, left: HostMesh, hosts: HostMesh, lost: str, any_number: bool) -> HostMesh:
        """The hosts to go on with, after some of ``hosts`` were lost for good, as ``lost``
        tells."""
        if not len(left):
            raise AllocationLost(lost)
        why = "" if any_number else self._why_unfit(len(left))
        if why:
            lost += f"\nit cannot go on with {counted(len(left), 'host')}: {why}"
        choice = self._choose(lost)
        if choice == "wait":
            return self._waited(hosts, any_number)
        if choice == "end" or why:
            fewer = "" if why else f"\n`--hosts {len(left)}` goes on with what is left"
            raise AllocationLost(f"{lost}{fewer}")
        first, _, more = lost.partition("\n")
        self._tell(f"{first}: going on with {counted(len(left), 'host')}\n{more}".rstrip())
        self._is_part = True
        return left

    def _waited(self, hosts: HostMesh, any_number: bool) -> HostMesh:
        """As ``after_loss``, once the hosts are up again, or the allocation is another."""
        self._tell("waiting for the hosts to come back; Ctrl-C stops the run")
        while True:
            self._sleep(_WAIT_SECONDS)
            if self._is_stopping():
                raise KeyboardInterrupt
            job = self._read()
            if job is None or job.apply_id != self._apply_id or job.ending or job.is_running():
                return self.after_loss(hosts, any_number=any_number)
            with contextlib.suppress(JobError):
                job.repair()
