"""All groups of a run: starts a group, calls its ranks, ends it, and knows the step of each."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from monarch.actor import Actor, ActorError, HostMesh, SupervisionError
from monarch.errors import MonarchError
from monarch.runs.hold.run_memory import HostCopies, RunMemory
from monarch.runs.record.places import in_short
from monarch.runs.record.slowness import Patience, Slowness, told_as_slow
from monarch.runs.recover.clock import unheld_time
from monarch.runs.recover.ranks import RunLost
from monarch.runs.recover.recovery import NotMade
from monarch.runs.recover.restarts import Restarts
from monarch.runs.recover.saving import shown
from monarch.runs.recover.witness import looks_of, stacks_of, tell_stacks
from monarch.tools.backends import ON_GPUS, backend_for, why_not_nccl
from monarch_recipes.replicas.event_log import EventLog
from monarch_recipes.replicas.group import (
    Disconnected,
    Group,
    GroupLate,
    GroupLost,
    LighthouseOutOfReach,
    first_cause,
)
from monarch_recipes.replicas.lighthouse import LighthouseError, LighthouseKeeper, peers_of
from monarch_recipes.replicas.messages import TaskError, TrainerReady, Unsaved
from monarch_recipes.replicas.placement import end_procs, most_procs_on_a_host, place_groups
from monarch_recipes.replicas.torchft_cures import BehindOthers

_LOOK_SECONDS = 0.2
_STACK_SECONDS = 1.0
_ANSWER_SECONDS = 5.0
_COME_BACK_SECONDS = 8.0
# When the run must stop: after the first time without an answer, a group is asked whether it lives;
# after the second, only a save is waited for.
_STOP_SECONDS = 2.0
_LONGEST_STOP_SECONDS = 10.0


NO_ANSWER = (MonarchError, ActorError, TimeoutError, asyncio.TimeoutError)
"""The errors of a call to a group that is dead, fails, or does not answer in time."""


class GroupsError(RunLost):
    """The groups cannot continue."""


class StoppedUnsaved(GroupsError):
    """The run was asked to stop, and no group was left to save its steps."""


class Groups:
    """All groups of a run, on ``hosts``.

    ``config`` is that of the recipe. The trainers are actors of ``trainer_class``, made with it.
    """

    def __init__(
        self,
        config: Any,
        trainer_class: type[Actor],
        hosts: HostMesh,
        *,
        procs_per_host: int,
        checkpoint_dir: Path,
        event_log: EventLog,
        keeper: LighthouseKeeper,
    ) -> None:
        places = place_groups(
            config.num_groups, config.procs_per_group, hosts.size(), procs_per_host
        )
        #: The groups by number, also those that are lost or given up.
        self.all = [
            Group(number, place, Restarts(config.max_restarts, config.restart_window_seconds))
            for number, place in enumerate(places)
        ]
        #: Where new groups are started. The controller changes it when hosts were replaced.
        self.hosts = hosts
        self.event_log = event_log
        #: The step and the path of the last checkpoint of this run; 0 and None before the first.
        self.saved_step = 0
        self.saved_path: Path | None = None
        #: Whether a group writes a checkpoint now.
        self.is_saving = False
        #: The key of the value that made the last save fail; None if it did not.
        self.unsavable: str | None = None
        #: When the run was asked to stop, by `unheld_time`; None before that.
        self.stopping_since: float | None = None
        self._config = config
        self._trainer_class = trainer_class
        self._checkpoint_dir = checkpoint_dir
        self._keeper = keeper
        #: The number of procs, of all groups, on the fullest host.
        self._num_procs_here = most_procs_on_a_host(places)
        #: The owner of the groups' copies in the hosts' memory.
        self._memory_owner = RunMemory.new_owner()
        #: Whether the groups that train now meet over NCCL.
        self._uses_nccl = False
        self._has_told_of_backend = False

    @property
    def peers(self) -> tuple[str, ...]:
        """The machines that must reach the groups' processes."""
        return peers_of(self.hosts, self._config.lighthouse)

    def is_over(self) -> bool:
        """Return whether a group has finished. From then on no group may begin."""
        return any(group.has_finished for group in self.all)

    def training(self) -> list[Group]:
        """Return the groups that take part, or will as soon as there is a lighthouse."""
        return [group for group in self.all if group.is_training]

    def newest_step(self) -> int:
        """Return the last step that a living group has committed, or that is saved."""
        living = (group for group in self.all if group.is_training or group.has_finished)
        return max([self.saved_step, *(group.step for group in living)])

    def step_of_others(self, group: Group) -> int:
        """Return the last step that a living group other than this one has committed."""
        others = (
            other.step
            for other in self.all
            if other is not group and (other.is_training or other.has_finished)
        )
        return max(others, default=0)

    async def start(self, group: Group) -> None:
        """Start a group: new processes build the model, and load the last checkpoint of this run.

        If no group is left to heal from, they load newer copies in the host's memory instead.
        Before there is a checkpoint of this run, they load the one that the config names.
        """
        group.lighthouse_number = self._keeper.number
        again = f" again, for the {_ordinal(group.num_starts)} time" if group.num_starts else ""
        group.does(f"is being started{again}")
        group.spawn(
            self.hosts,
            len(self.all),
            self._trainer_class,
            self._config,
            self._checkpoint_dir,
            copies_of=self._memory_of(group).owner,
            num_procs_here=self._num_procs_here,
        )
        await self.ask(group, group.trials.report.call())  # The trials see events from now on.
        copies = await self.copies_of(group)
        ready = await self.set_up(group, self.saved_path, copies)
        if copies is None and (copies := await self.copies_of(group)) is not None:
            # The groups from which it was to heal have been lost since.
            ready = await self.set_up(group, self.saved_path, copies)
        first = ready[0]
        if self.saved_path is None and not first.is_from_memory:
            self.saved_step, self.saved_path = first.step, first.resumed_from
            self.event_log.history = self.event_log.history or first.history
        self.event_log.recovery.ready(group.name, time.monotonic())
        for text in first.skipped:
            self.event_log.tell("skipped", text)
        is_new = group.num_starts == 1
        text = f"{group.name} is {'there' if is_new else 'there again'}"
        if first.resumed_from is not None:
            text += f", with {shown(first.resumed_from)}, after step {first.step}"
        elif first.is_from_memory:
            text += f", and goes on from step {first.step}, from the host's memory"
        self.event_log.tell(
            "started" if is_new else "respawned",
            text,
            group=group.number,
            step=first.step,
            pids=[rank.pid for rank in ready],
            hosts=[rank.hostname for rank in ready],
            num_parameters=first.num_parameters,
        )
        group.is_set_up = True

    async def copies_of(self, group: Group) -> HostCopies | None:
        """Return the copies of this group's earlier processes in its hosts' memory, if they are
        needed.

        Returns None if another group lives, or the copies are incomplete or older than the last
        checkpoint.
        """
        is_one_left = any(other.is_training or other.has_finished for other in self.all)
        if is_one_left or not group.lost_by:
            return None
        return await _newest_in(self._memory_of(group))

    async def goes_on_from(self) -> str:
        """Return in words what all groups would continue from, if all were restarted."""
        copies = [await self.copies_of(group) for group in self.all if not group.is_given_up]
        step = max((copy.step for copy in copies if copy is not None), default=None)
        return "the last checkpoint" if step is None else f"step {step}, from the host's memory"

    def _memory_of(self, group: Group) -> RunMemory:
        return RunMemory(
            f"{self._memory_owner}.{group.number}",
            group.hosts_of(self.hosts),
            group.place.num_procs,
            needs_all=True,
            saved_step=lambda: self.saved_step,
        )

    async def set_up(
        self, group: Group, checkpoint: Path | None, copies: HostCopies | None = None
    ) -> list[TrainerReady]:
        """Let a group's ranks build the model and load ``copies``, else ``checkpoint`` or a newer
        one.

        The copies are used only if all ranks have theirs. Sets ``group.step`` to the step that all
        have.
        """
        setup = group.trainers.setup
        ready: list[TrainerReady] = await self.ask(
            group, setup.call(checkpoint) if copies is None else setup.call(checkpoint, copies)
        )
        if copies is not None and not all(rank.is_from_memory for rank in ready):
            return await self.set_up(group, checkpoint)
        least = min(ready, key=lambda rank: rank.step)
        group.step, group.resumed_from = least.step, least.resumed_from
        group.gpus = tuple(rank.gpu for rank in ready)
        return ready

    def uses_nccl(self, group: Group) -> bool:
        """Return whether a joining group meets the others over NCCL.

        If no group trains yet, they meet over NCCL if each process of all groups has its own GPU.
        If one trains already, the earlier choice holds. Raises GroupLost if the others use NCCL,
        but this group shares a GPU.
        """
        others = [other for other in self.all if other is not group and other.gpus]
        gpus = [gpu for member in (group, *others) for gpu in member.gpus]
        can_all = backend_for(gpus) == ON_GPUS
        if not any(other.is_training for other in others):
            self._uses_nccl = can_all
            why = why_not_nccl(gpus)
            if why and not self._has_told_of_backend:
                self._has_told_of_backend = True
                self.event_log.tell("backend", why)
        elif self._uses_nccl and not can_all:
            raise GroupLost("it has no GPU of its own, and the others meet over NCCL")
        return self._uses_nccl

    def begin_together(self, groups: Collection[Group]) -> None:
        """Record from which step a run begins when no group trains: the step of the furthest group.

        That may be before the last checkpoint, if it was lost with a host's own disk. Then this
        group's checkpoint counts as the last one, and an event says so.
        """
        furthest = max(groups, key=lambda group: group.step)
        if furthest.step >= self.saved_step:
            if furthest.step < self.event_log.newest_step:
                self.event_log.rolled_back(furthest.step)
            return
        text = f"no host that is left has the checkpoint after step {self.saved_step}"
        self.saved_step, self.saved_path = furthest.step, furthest.resumed_from
        text += f": going on from {self._saved_words()}"
        self.event_log.tell("skipped", text, step=furthest.step)
        self.event_log.rolled_back(furthest.step)

    async def lose(self, group: Group, why: str, details: str = "") -> None:
        """End the processes of a group, and report why."""
        group.lost_by, was_accused = why, group.accused_of is not None
        self.event_log.died(group.name, group.step, why, details, group=group.number)
        self.event_log.fingerprints.forget(group.number)
        await end_procs(group.let_go())
        if was_accused:
            self._memory_of(group).forget()  # Its copies may differ as well.
        # The client may have to restart its host first.
        await self.event_log.written()

    async def may_restart(self, group: Group) -> bool:
        """Wait until a group may be started again. Return False if its restarts are used up."""
        if group.is_given_up:
            return False
        budget = group.restarts
        delay = budget.next_wait_seconds(time.monotonic())
        # Starts that take long to fail would never use up the window's budget.
        is_vain = group.num_vain_restarts >= budget.most
        if delay is None or is_vain:
            group.is_given_up = True
            within = "without a step of it" if is_vain else f"within {budget.window_seconds:g} s"
            self.event_log.tell(
                "given_up",
                f"{group.name} is given up after {budget.most} restarts {within}: {group.lost_by}",
                group=group.number,
                reason=group.lost_by,
            )
            return False
        group.num_vain_restarts += 1
        group.does(f"is started again in {delay:.1f} s, or sooner")
        deadline = time.monotonic() + delay
        while (seconds := deadline - time.monotonic()) > 0 and not self.is_over():  # noqa: ASYNC110
            await asyncio.sleep(min(seconds, _LOOK_SECONDS))
        return True

    def give_up_elsewhere(self, hosts: Collection[int]) -> None:
        """Give up the groups that are not on ``hosts``, because only these hosts are left."""
        for group in self.all:
            if not group.is_given_up and not set(group.place.hosts).issubset(hosts):
                group.is_given_up = True
                text = f"{group.name} is given up: its host is lost, and the others go on without"
                self.event_log.tell("given_up", text, group=group.number)

    async def save(self, group: Group) -> Path:
        """Let a group write a checkpoint, and return its path. Raises Unsaved if that fails.

        First wait until the group's steps are recorded: if the client dies afterwards, a run that
        resumes from the checkpoint does not record them again.
        """
        await self.event_log.written()
        first = group.trainers.slice(ranks=0)
        self.is_saving = True
        try:
            path: Path = (await self.ask(group, first.save.call(self.event_log.history)))[0]
        finally:
            self.is_saving = False
        self.saved_step, self.saved_path, self.unsavable = group.step, path, None
        self.event_log.tell(
            "saved", f"saved {shown(path)}", step=group.step, path=str(path), group=group.number
        )
        return path

    def accuse(self, complaints: dict[int, str]) -> None:
        """Mark the groups whose parameters differ, so that they are started again."""
        for number, difference in complaints.items():
            self.all[number].accused_of = f"its parameters have come apart: {difference}"

    def tell_unsaved(self, group: Group, error: Unsaved) -> str:
        """Report that a checkpoint could not be saved, and return the text. The run goes on.

        A state that cannot be saved is tried again after each step, but reported once.
        """
        path = self.saved_path
        text = f"{error}; " + (
            f"the last good one is {shown(path)}" if path else "there is none yet"
        )
        if error.key is None or error.key != self.unsavable:
            self.event_log.tell("unsaved", text, step=group.step, group=group.number)
        self.unsavable = error.key
        return text

    def how_to_go_on(self) -> str:
        """Return a sentence that tells a person how to continue after the run has ended."""
        return (
            f"What happened is in events.jsonl; the same command goes on from {self._saved_words()}"
        )

    def _saved_words(self) -> str:
        return "the beginning" if self.saved_path is None else str(shown(self.saved_path))

    async def end(self) -> None:
        """End the processes of all groups, and free their copies in the hosts' memory."""
        await end_procs(*(group.let_go() for group in self.all))
        with contextlib.suppress(MonarchError, RuntimeError):  # as where the hosts are gone
            for group in self.all:
                self._memory_of(group).forget()

    async def ask(
        self,
        group: Group,
        call: Any,
        patience: Callable[[], Patience | None] = lambda: None,
        tell: Callable[[str], object] = lambda text: None,
        is_given_up: Callable[[], bool] = lambda: False,
    ) -> list[Any]:
        """Return the answers of all ranks of a group, by rank.

        Raises GroupLost if they cannot answer, or take too long. ``patience`` returns how long new
        code may take; None if there is no new code. New code that takes longer but makes progress
        is reported with ``tell``, and goes on. Without progress, or when ``is_given_up`` returns
        true, it is interrupted, which raises TaskError.
        """
        answers = call.as_asyncio()
        asked_at = looked_at = tried_at = unheld_time()
        told_after = 0.0  # seconds from `asked_at` to the last report
        others_at = self.step_of_others(group)
        interrupted: TaskError | None = None
        slowness = Slowness(0 if group.witnesses is None else len(group.witnesses), asked_at)
        try:
            while True:
                done, _ = await asyncio.wait({answers}, timeout=_LOOK_SECONDS)
                if done:
                    return list(answers.result().values())
                now, on_trial = unheld_time(), patience()
                why = self.why_hung(group, asked_at, now, others_at)
                if await self.keeps_from_stopping(group, asked_at, now):
                    raise GroupLost("it does not come to its end, and the run is to stop")
                if on_trial is None:
                    if why is not None:
                        raise GroupLost(why, await _stacks(group))
                    continue
                # A rank that makes progress is slow, not hung, even if other groups are ahead.
                if now - looked_at >= on_trial.look_seconds:
                    looked_at = now
                    looks = await asyncio.to_thread(looks_of, group.witnesses, _STACK_SECONDS)
                    slowness.seen(now, looks)
                seconds = now - asked_at
                is_over = slowness.is_over(now, on_trial)
                if not is_over and seconds >= max(on_trial.told, 2 * told_after):
                    told_after, doing = seconds, f"{group.name}, step {group.step + 1},"
                    tell(told_as_slow(doing, seconds, on_trial, slowness.looks, len(group.trials)))
                is_late = is_over or slowness.is_stuck(now, on_trial) or is_given_up()
                if not is_late or (tried_at > asked_at and now - tried_at < on_trial.told):
                    continue
                tried_at = now
                if interrupted is None:
                    interrupted = await self.interrupt(group, seconds)
                elif why is not None:
                    raise GroupLost(why, await _stacks(group))
        except SupervisionError as error:
            raise _why_gone(group, error) from None
        except ActorError as error:
            raise interrupted or self.meaning_of(group, error.exception) from None
        finally:
            answers.cancel()

    async def keeps_from_stopping(self, group: Group, asked_at: float, now: float) -> bool:
        """Return whether the run, which must stop, should no longer wait for this group's answer.

        A group that saves is waited for as long as its processes answer.
        """
        if self.stopping_since is None:
            return False
        seconds = now - max(asked_at, self.stopping_since)
        if seconds > _LONGEST_STOP_SECONDS and not self.is_saving:
            return True
        if seconds < _STOP_SECONDS:
            return False
        try:
            await answers_within(_ANSWER_SECONDS, group.trials.report.call())
        except NO_ANSWER:
            return True
        return False

    async def is_alive(self, group: Group) -> None:
        """Raise GroupLost if the group's processes do not live."""
        await self.ask(group, group.trials.report.call())

    async def interrupt(self, group: Group, seconds: float) -> TaskError | None:
        """Interrupt new code in the ranks that do not wait for others.

        Return the error to raise for it. Returns None if all ranks wait. Raises GroupLost if the
        code cannot be interrupted.
        """
        reason = f"it has not ended within {seconds:.1f} s"
        try:
            reports = await answers_within(_ANSWER_SECONDS, group.trials.report.call())
            stuck = [report for report in reports if report.is_running and not report.is_waiting]
            if not stuck:
                return None
            for report in stuck:
                rank = group.trials.slice(ranks=report.rank)
                back = rank.come_back.call(_COME_BACK_SECONDS, 0.0)
                if not all(await answers_within(_COME_BACK_SECONDS + _ANSWER_SECONDS, back)):
                    raise TimeoutError
        except NO_ANSWER:
            raise GroupLost(f"{reason}, and cannot be interrupted", await _stacks(group)) from None
        return TaskError(f"{group.name}, interrupted", reason, stuck[0].file, stuck[0].line)

    def meaning_of(self, group: Group, error: BaseException) -> BaseException:
        """Return the error to raise for a trainer's exception: of the whole run or of its group."""
        is_first_start = group.num_starts == 1 and not group.is_training
        is_of_lighthouse = isinstance(error, LighthouseError)
        is_elsewhere = is_of_lighthouse and not self._keeper.is_ours
        if isinstance(error, (TaskError, Unsaved)) or (is_elsewhere and is_first_start):
            return error
        if group.lighthouse_number != self._keeper.number:
            return Disconnected("the lighthouse has died")
        if isinstance(error, BehindOthers) and self.is_over():
            return GroupLate()
        kind = LighthouseOutOfReach if is_of_lighthouse else GroupLost
        return kind(f"{type(error).__name__}: {error}")

    def why_hung(self, group: Group, asked_at: float, now: float, others_at: int = 0) -> str | None:
        """Return why a group that has not answered counts as hung; None if it does not.

        It counts as hung after ``step_timeout_seconds``, or if other groups go on without it. They
        do if they stay more than one step ahead; ``others_at`` was their step when the group was
        asked, since a group that must heal begins behind. They also do if they discarded the
        group's present step so long ago that it would have given up, too, if it could.
        """
        config = self._config
        if now - asked_at > config.step_timeout_seconds:
            return f"it has not answered for {config.step_timeout_seconds:g} s"
        if not group.is_training:
            return None
        patience = config.collective_timeout_seconds + config.hang_timeout_seconds
        for other in self.training():
            was_with_it = other.step == group.step and (other.discarded_at or 0.0) > asked_at
            if was_with_it and now - (other.discarded_at or 0.0) > patience:
                return f"it hangs: {other.name} has discarded their step {patience:g} s ago"
        if self.step_of_others(group) <= max(group.step, others_at) + 1:
            group.ahead_since = None
            return None
        if group.ahead_since is None:
            group.ahead_since = now
        if now - group.ahead_since > config.hang_timeout_seconds:
            return (
                "it hangs: the others have gone on without it for "
                f"{config.hang_timeout_seconds:g} s"
            )
        return None


def _why_gone(group: Group, error: SupervisionError) -> Exception:
    """Return TaskError if a rank's actor could not be made, which is the code's fault; else
    GroupLost.
    """
    fault = NotMade.of(error.failure)
    if fault is None:
        return GroupLost(first_cause(error))
    ranks = ", ".join(map(str, fault.ranks))
    where = f"{group.name}, rank {ranks}" if ranks else group.name
    return TaskError(where, fault.error, in_short(fault.file), fault.line)


async def _newest_in(memory: RunMemory) -> HostCopies | None:
    """Return the newest copies, or None. Runs in a thread, so that other groups do not wait."""
    return await asyncio.to_thread(memory.newest)


async def _stacks(group: Group) -> str:
    """Return the stack of each rank of a group as text.

    Runs in a thread, so that others do not wait.
    """
    return tell_stacks(await asyncio.to_thread(stacks_of, group.witnesses, _STACK_SECONDS))


def _ordinal(number: int) -> str:
    last = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if number % 100 in (11, 12, 13) else last}"


async def answers_within(seconds: float, call: Any) -> list[Any]:
    """Return the answers of all ranks to a call.

    Raises TimeoutError after ``seconds``, and the error of a rank that fails or has died.
    """
    answers = await asyncio.wait_for(call.as_asyncio(), seconds)
    return list(answers.values())
