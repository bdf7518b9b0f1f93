"""The allocation of a run: others may end it, replace it, or fix it.

The kept state is authoritative; each look reads it again. A lost host is restarted; if that is
impossible, the run continues with the remaining hosts, waits, or ends, as the person or the policy
says.
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

# Between the end of an allocation and its replacement, the new processes have to start.
_REPLACED_WITHIN_SECONDS = 20.0
_LOOK_SECONDS = 0.05
_REPLACED = "the allocation was replaced by another"

_WAIT_SECONDS = 1.0  # between two looks for a host that is to come back

Sleep = Callable[[float], object]
OnHostLoss = Literal["fewer", "wait", "end"]


class AllocationLost(RunLost):
    """There are no hosts to continue on; with hosts, the run could continue."""


class RunAllocation:
    """The hosts of a run: ``mesh`` of the job whose state ``path`` names.

    ``move`` sends what a run needs to the hosts of another job; ``tell`` gets a line for people.
    ``choose`` decides, from the text, what to do if a host cannot be restarted; ``why_unfit``
    returns why a run could not continue with so many hosts, or "". ``is_part``: the run has only
    some hosts of the mesh.
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
        """Return why the allocation on which the run began has ended or was replaced; "" if
        neither.

        In that case the loss of its hosts is no failure any more.
        """
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
        """Return the hosts to continue on, after something on ``hosts`` was lost.

        They are these, if all run or were restarted; those of the allocation that replaced them; or
        fewer. Raises ``AllocationLost`` if there are none, or too few; ``KeyboardInterrupt`` if the
        run must stop while it waits for one.
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
        """Restart what has ended, without continuing the run, so that a fix can be pushed to it.

        ``after_loss`` does the rest when the run continues, also if this fails. If no loss is
        known, a scheduler is not asked about it.
        """
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
                # The program that started it may still be checking that it runs.
                if time.monotonic() > deadline:
                    raise AllocationLost(f"{_REPLACED}: {error}") from None
                self._sleep(_LOOK_SECONDS)
            except MonarchError as error:
                raise AllocationLost(f"{_REPLACED}: {error}") from None
        self._job, self._apply_id = job, job.apply_id
        return moved

    def _repaired(self, job: JobTrait, hosts: HostMesh, any_number: bool) -> HostMesh:
        """Restart the hosts that have ended, and return the hosts to continue on."""
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
        """Attach again to hosts that a scheduler has placed: they may be elsewhere, without the
        run's files."""
        try:
            moved = self._move(job, len(hosts))
        except MonarchError as error:
            raise AllocationLost(f"hosts were brought up again, but {error}") from None
        self._job, self._may_be_elsewhere = job, False
        return moved

    def _without(self, left: HostMesh, hosts: HostMesh, lost: str, any_number: bool) -> HostMesh:
        """Return the hosts to continue on, after some of ``hosts`` were lost for good, as ``lost``
        says."""
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
        """Wait until the hosts run again, or the allocation is another, and then do as
        ``after_loss``."""
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
