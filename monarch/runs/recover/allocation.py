"""The allocation of a run: others may end it, replace it, or fix it.

The kept state is authoritative; each look reads it again. A lost host is restarted; if that is
impossible, the run continues with the remaining hosts, waits, or ends, as the person or the policy
says.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
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

# Between the end of an allocation and its replacement, the new processes must start.
_REPLACED_WITHIN_SECONDS = 20.0
_LOOK_SECONDS = 0.05
_REPLACED = "the allocation was replaced by another"

_WAIT_SECONDS = 1.0  # between two looks for a host that may come back

Sleep = Callable[[float], object]
OnHostLoss = Literal["fewer", "wait", "end"]


class AllocationLost(RunLost):
    """There are no hosts to continue on; with hosts, the run could continue."""


@dataclass(eq=False)
class RunAllocation:
    """The hosts of a run: the mesh ``mesh`` of ``job``, whose state is in the file ``path``.

    ``move`` sends what a run needs to the hosts of another job; ``tell`` gets a line for people.
    ``choose`` gets a text about a host that cannot be restarted, and decides what to do.
    ``why_unfit`` returns why a run could not continue with so many hosts, or "". ``is_stopping``
    returns whether the run must stop. With ``is_part`` the run has only some hosts of the mesh, so
    it may move to an allocation with more hosts.
    """

    job: JobTrait
    mesh: str
    path: Path
    _: KW_ONLY
    move: Callable[[JobTrait, int], HostMesh]
    tell: Callable[[str], object]
    choose: Callable[[str], OnHostLoss] = lambda text: "end"
    why_unfit: Callable[[int], str] = lambda num_hosts: ""
    is_stopping: Callable[[], bool] = lambda: False
    is_part: bool = False
    sleep: Sleep = time.sleep
    #: The last message about hosts that cannot be restarted.
    _unrepaired: str = field(default="", init=False)
    #: Whether hosts were restarted by a scheduler, and not yet attached to.
    _may_be_elsewhere: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        #: The id of the allocation on which the run continues.
        self._apply_id = self.job.apply_id
        self.path = record_of(self.path)

    def why_gone(self) -> str:
        """Return why the allocation on which the run began has ended or was replaced; else "".

        If there is a reason, the end of its hosts is no longer reported as a failure.
        """
        reason = self._why_gone(self._read())
        if reason:
            for url in self.job.urls():
                client().expect_end(url)
        return reason

    def _why_gone(self, job: JobTrait | None) -> str:
        if job is not None and job.apply_id != self._apply_id:
            return _REPLACED
        ending = how_ended(self.path, self._apply_id) if job is None else job.ending
        if ending:
            return f"the allocation was {ending.get('how')} by {ending.get('by')}"
        return "the allocation was ended" if job is None else ""

    def after_loss(self, hosts: HostMesh, *, any_number: bool = False) -> HostMesh:
        """Return the hosts to continue on, after something on ``hosts`` was lost.

        These are the same hosts, if all run or were restarted; or the hosts of the allocation that
        replaced them; or fewer. Raises ``AllocationLost`` if there are none, or too few;
        ``KeyboardInterrupt`` if the run must stop while it waits for hosts.
        """
        deadline = time.monotonic() + _REPLACED_WITHIN_SECONDS
        while True:
            job = self._read()
            reason = self.why_gone()
            if job is not None and job.apply_id != self._apply_id:
                return self._move_to(job, hosts)
            if job is not None and not reason:
                return self._repaired(job, hosts, any_number)
            is_replaced = job is not None and (job.ending or {}).get("how") == "replaced"
            if not is_replaced or time.monotonic() > deadline:
                raise AllocationLost(reason or "the allocation was ended")
            self.sleep(_LOOK_SECONDS)

    def repair(self, *, is_loss_known: bool = True) -> None:
        """Restart hosts that have ended, while the run holds, so that a fix can be pushed to them.

        If hosts cannot be restarted now, ``after_loss`` tries again when the run continues. If no
        loss is known, a scheduler is not asked whether its hosts have ended.
        """
        job = self._read()
        if job is None or job.apply_id != self._apply_id or job.ending:
            return
        if (isinstance(job, ScheduledJob) and not is_loss_known) or job.is_whole():
            return
        reason = job.why_ended()
        try:
            names = job.repair()
        except JobError as error:
            if (text := f"{reason}\n{error}".strip()) != self._unrepaired:
                self.tell(text)
                self._unrepaired = text
            return
        if names:
            self._tell_repaired(job, reason, names)
            self._may_be_elsewhere = isinstance(job, ScheduledJob)

    def _read(self) -> JobTrait | None:
        try:
            return job_load(self.path)
        except (FileNotFoundError, JobError):
            return None

    def _move_to(self, job: JobTrait, hosts: HostMesh) -> HostMesh:
        num_hosts = getattr(job, "meshes", {}).get(self.mesh, len(hosts))
        if num_hosts < len(hosts) or (num_hosts > len(hosts) and not self.is_part):
            raise AllocationLost(
                f"{_REPLACED}: it has {counted(num_hosts, 'host')} in "
                f"{self.mesh!r}, and this run began on {len(hosts)}"
            )
        self.tell(f"{_REPLACED}: the run moves over to that")
        deadline = time.monotonic() + _REPLACED_WITHIN_SECONDS
        while True:
            try:
                moved = self.move(job, len(hosts))
                break
            except HostBusy as error:
                # The program that started it may still be checking that it runs.
                if time.monotonic() > deadline:
                    raise AllocationLost(f"{_REPLACED}: {error}") from None
                self.sleep(_LOOK_SECONDS)
            except MonarchError as error:
                raise AllocationLost(f"{_REPLACED}: {error}") from None
        self.job, self._apply_id = job, job.apply_id
        return moved

    def _repaired(self, job: JobTrait, hosts: HostMesh, any_number: bool) -> HostMesh:
        """Restart the hosts that have ended, and return the hosts to continue on."""
        if job.is_whole():
            return self._attached_again(job, hosts) if self._may_be_elsewhere else hosts
        reason = job.why_ended()
        try:
            names = job.repair()
        except JobError as error:
            remaining = hosts._among(job.running_urls())
            if len(remaining) == len(hosts):
                return hosts  # The hosts that have ended were not this run's.
            verb = "is" if len(remaining) == 1 else "are"
            lost = (
                f"hosts of the allocation have ended, and {error}; {len(remaining)} of "
                f"{counted(len(hosts), 'host')} {verb} left\n{reason}"
            ).rstrip()
            return self._without(remaining, hosts, lost, any_number)
        if names:
            self._tell_repaired(job, reason, names)
            if isinstance(job, ScheduledJob):
                return self._attached_again(job, hosts)
        return hosts

    def _tell_repaired(self, job: JobTrait, reason: str, names: list[str]) -> None:
        text = reason.partition("\n")[0].partition(";")[0] or f"{names[0]} is gone"
        text += f", as {counted(len(names) - 1, 'other host')} did" if names[1:] else ""
        text += ": brought up again"
        if isinstance(job, ScheduledJob) and job.replaced:
            pairs = (f"{new} in the place of {old}" for new, old in job.replaced.items())
            text += f", {', '.join(pairs)}"
        self.tell(text)

    def _attached_again(self, job: JobTrait, hosts: HostMesh) -> HostMesh:
        """Attach to hosts that a scheduler has restarted, perhaps on other machines; return them.

        Also send the run's files to them. Raises ``AllocationLost`` if that fails.
        """
        try:
            moved = self.move(job, len(hosts))
        except MonarchError as error:
            raise AllocationLost(f"hosts were brought up again, but {error}") from None
        self.job, self._may_be_elsewhere = job, False
        return moved

    def _without(
        self, remaining: HostMesh, hosts: HostMesh, lost: str, any_number: bool
    ) -> HostMesh:
        """Return the hosts to continue on, after some of ``hosts`` were lost and cannot be
        restarted.

        ``remaining`` are the hosts that still run; ``lost`` is the text about the loss. Raises
        ``AllocationLost`` if none runs, if they are too few, or if the answer of ``choose`` is to
        end.
        """
        if not len(remaining):
            raise AllocationLost(lost)
        unfit = "" if any_number else self.why_unfit(len(remaining))
        if unfit:
            lost += f"\nit cannot go on with {counted(len(remaining), 'host')}: {unfit}"
        choice = self.choose(lost)
        if choice == "wait":
            return self._waited(hosts, any_number)
        if choice == "end" or unfit:
            advice = "" if unfit else f"\n`--hosts {len(remaining)}` goes on with what is left"
            raise AllocationLost(f"{lost}{advice}")
        first, _, details = lost.partition("\n")
        self.tell(f"{first}: going on with {counted(len(remaining), 'host')}\n{details}".rstrip())
        self.is_part = True
        return remaining

    def _waited(self, hosts: HostMesh, any_number: bool) -> HostMesh:
        """Wait until the hosts run again, or the allocation has ended or was replaced.

        Then return the result of ``after_loss``.
        """
        self.tell("waiting for the hosts to come back; Ctrl-C stops the run")
        while True:
            self.sleep(_WAIT_SECONDS)
            if self.is_stopping():
                raise KeyboardInterrupt
            job = self._read()
            if job is None or job.apply_id != self._apply_id or job.ending or job.is_running():
                return self.after_loss(hosts, any_number=any_number)
            with contextlib.suppress(JobError):
                job.repair()
