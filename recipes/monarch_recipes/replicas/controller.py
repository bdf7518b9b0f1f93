"""Keeps replica groups training, whichever of them dies.

The rules:

- Each group is a proc mesh of its own. If one of its processes dies, hangs or raises, the whole
  group is ended and started again, and no other; after a budget of restarts the run goes on
  without it.
- A group that is started again heals from a living one. Where no group lives, all begin again from
  the last checkpoint, together: each waits for the others before its first step, as at the start.
- A lighthouse that dies is started again on its port. As it knows nothing of the one before, all
  groups join it anew, together.
- An error of the model's or the data's code ends the run: it would be raised again. Where that code
  is newer than what the run began with, or where a person watches and it has never gone well, all
  groups wait for a mend instead, and make the step then.
- A group that comes back when others have finished does not train. It takes over the last
  checkpoint, and is compared with the rest.
- Groups whose parameters differ are started again until they do not.

It is an actor of the client's process, so that what it spawns is its own: deaths are told to it
and do not end the program. It says what happens through a port.
"""

from __future__ import annotations

import asyncio
import math
import time
from pathlib import Path
from typing import Any

from monarch.actor import Actor, HostMesh, Port, endpoint
from monarch.errors import MeshFailure
from monarch.runs.clock import unheld_time
from monarch.runtime import process
from monarch_recipes.extras import Extras
from monarch_recipes.replicas.barrier import Barrier, meet_at_barrier, wait_for_all
from monarch_recipes.replicas.chaos import InjectedFault, take_due
from monarch_recipes.replicas.event_log import EventLog
from monarch_recipes.replicas.finish import Evaluations, conclude, save_the_end
from monarch_recipes.replicas.group import Disconnected, Group, GroupLate, GroupLost
from monarch_recipes.replicas.groups import Groups, GroupsError, Limits
from monarch_recipes.replicas.hold import EVALUATION, SETUP, STEP, GroupsHold
from monarch_recipes.replicas.lighthouse import LighthouseError, LighthouseKeeper
from monarch_recipes.replicas.messages import (
    Failed,
    Finished,
    GroupsOutcome,
    GroupStep,
    Rendezvous,
    StepOrder,
    TaskError,
    Unsaved,
)
from monarch_recipes.schedule import is_due

# All wait for it, so it is never away for long.
_LONGEST_LIGHTHOUSE_DELAY_SECONDS = 1.0
_AHEAD_SECONDS = 0.2  # beside a longer step, the time saved is nothing


class Controller(Actor):
    """Made with the limits, the trainers' class and config, and where they may live."""

    def __init__(
        self,
        limits: Limits,
        trainer_class: type[Actor],
        config: Any,
        hosts: HostMesh,
        *,
        procs_per_host: int,
        checkpoint_dir: Path,
        news: Port[Any],
        hold: GroupsHold,
    ) -> None:
        hosts = hosts.flatten("hosts")
        self.limits = limits
        self.news = news
        self.event_log = EventLog(limits.num_groups, limits.num_steps, news)
        self.keeper = LighthouseKeeper(
            hosts, self.event_log,
            url=limits.lighthouse, port=limits.lighthouse_port, times=limits.times,
            restarts=limits.new_budget(_LONGEST_LIGHTHOUSE_DELAY_SECONDS),
        )  # fmt: skip
        self.groups = Groups(
            limits, trainer_class, config, hosts,
            procs_per_host=procs_per_host, checkpoint_dir=checkpoint_dir,
            event_log=self.event_log, keeper=self.keeper,
        )  # fmt: skip
        self.evaluations = Evaluations(
            self.groups, self.event_log, limits.evaluate_every, limits.extras
        )
        self.last_step = limits.num_steps
        self.learning_rate = limits.learning_rate
        self.checkpoint_every = limits.checkpoint_every
        self.faults = list(limits.faults)
        self.is_stopping = self.is_save_wanted = False
        self.hold = hold

    @endpoint
    async def begin(self) -> None:
        """Train. The outcome is told through the port, the end last."""
        self.whole = asyncio.ensure_future(self.train())

    @endpoint
    async def save_soon(self) -> None:
        self.is_save_wanted = True

    @endpoint
    async def stop_soon(self) -> None:
        """Let all groups finish together, one of the next steps, and save."""
        if not self.is_stopping:
            self.is_stopping = True
            # While the run holds, no group can make another one.
            left = 2 if self.hold.failure is None else 0
            self.last_step = min(self.last_step, self.groups.newest_step() + left)

    @endpoint
    async def go_on_with(self, hosts: HostMesh, left: list[int]) -> None:
        """``hosts`` are all, where they are now; groups on others than ``left`` are given up."""
        self.groups.hosts = self.keeper.hosts = hosts.flatten("hosts")
        self.groups.give_up_elsewhere(left)

    @endpoint
    async def reconfigure(
        self, learning_rate: float, evaluate_every: int, checkpoint_every: int, extras: Extras,
        edit_patience_seconds: float | None,
    ) -> None:  # fmt: skip
        """Apply live keys of the config from the next step on; the last one at once."""
        self.hold.edit_patience_seconds = edit_patience_seconds
        self.learning_rate, self.checkpoint_every = learning_rate, checkpoint_every
        self.evaluations.every, self.evaluations.extras = evaluate_every, extras

    async def __supervise__(self, failure: MeshFailure) -> bool:
        # The task that drives a group learns of its death from the call that waits for it.
        self.keeper.is_told(failure.mesh_name)
        return True

    # The whole run.

    async def train(self) -> None:
        """Tells how it ended, whatever that is."""
        try:
            outcome = await self.train_to_the_end()
        except Exception as error:
            self.event_log.tell("failed", str(error))
            # Its cause may not be fit to be sent.
            error.__cause__ = error.__context__ = None
            self.news.send(Failed(error))
        else:
            self.news.send(Finished(outcome))

    async def train_to_the_end(self) -> GroupsOutcome:
        try:
            await self.keeper.begin()
            await self.train_until_saved()
            return await conclude(
                self.groups, self.event_log, self.evaluations, self.last_step, self.checkpoint,
                self.is_stopping,
            )  # fmt: skip
        finally:
            await self.groups.end()
            await self.keeper.end()

    async def train_until_saved(self) -> None:
        """All groups may die when they have finished, before one has saved: then once more."""
        keeping = asyncio.ensure_future(self.keeper.keep(self.join_anew))
        try:
            while True:
                await self.train_groups(keeping)
                checkpoint = await save_the_end(self.groups, self.event_log, self.last_step)
                if checkpoint is not None:
                    self.checkpoint = checkpoint
                    return
        except LighthouseError as error:
            if not keeping.done():
                raise
            raise GroupsError(f"{error}. {self.groups.how_to_go_on()}") from None
        finally:
            keeping.cancel()

    async def train_groups(self, keeping: asyncio.Future[None]) -> None:
        """Every group to the last step, or given up."""
        groups = [group for group in self.groups.all if not group.is_given_up]
        self.set_up = Barrier(group.number for group in groups)
        self.joined = Barrier(group.number for group in groups)
        tasks = [asyncio.ensure_future(self.keep_training(group)) for group in groups]
        try:
            await wait_for_all(tasks, keeping)
        finally:
            for task in tasks:
                task.cancel()
        if not self.groups.is_over():
            raise GroupsError(
                "no group is left: each has used up its restarts. " + self.groups.how_to_go_on()
            )

    async def keep_training(self, group: Group) -> None:
        """One group to the last step: start it, drive it, and start it again when it is lost."""
        while not self.groups.is_over():
            activity, generation, is_held = SETUP, process.current().generation, False
            try:
                await self.groups.start(group)
                self.hold.edits.went_well(SETUP, generation, 0.0)
                activity = STEP
                await self.drive(group)
                return
            except GroupLate:
                return
            except (GroupLost, Disconnected) as lost:
                group.is_training = False
                self.let_others_wait(group)
                details = lost.details if isinstance(lost, GroupLost) else ""
                await self.groups.lose(group, str(lost), details)
                if isinstance(lost, GroupLost):
                    self.hold.begin_after_loss(group, lost, are_left=bool(self.groups.training()))
            except TaskError as error:
                doing = f"step {group.step + 1}" if activity == STEP else f"setting up {group.name}"
                await self.hold.begin_after_error(activity, doing, error, is_anew=True)
                is_held = True
                group.is_training = False
                self.let_others_wait(group)
                await self.groups.lose(group, str(error))
            await self.hold.mended(lambda: self.is_stopping)
            # A loss that an edit caused costs no restart.
            if self.groups.is_over() or not (is_held or await self.groups.may_restart(group)):
                self.set_up.lose(group.number)
                self.joined.lose(group.number)
                return

    def let_others_wait(self, lost: Group) -> None:
        """The others do not wait for a group that is lost, but where no other trains: all that was
        learned since the last checkpoint is lost then, and a group that went ahead alone would
        learn from its own share of the batches only."""
        if any(group.is_training or group.has_finished for group in self.groups.all):
            self.set_up.lose(lost.number)
            self.joined.lose(lost.number)
            return
        everybody = [group.number for group in self.groups.all if not group.is_given_up]
        before = self.set_up, self.joined
        self.set_up, self.joined = Barrier(everybody), Barrier(everybody)
        for barrier in before:
            barrier.give_way()

    # One group.

    async def drive(self, group: Group) -> None:
        """To the last step, through as many lighthouses as it takes."""
        # At first all begin together; a group that is lost while others train is not waited for.
        await meet_at_barrier(lambda: self.set_up, group.number)
        if not self.groups.training():  # Those of a run before this one, which got so far.
            self.groups.begin_together({group.number, *self.set_up.members})
            self.faults = [fault for fault in self.faults if fault.step > group.step]
        while group.step < self.last_step:
            if self.groups.is_over():
                raise GroupLate
            try:
                await self.join(group)
                await self.make_steps(group)
            except Disconnected:
                await self.groups.ask(group, group.trainers.leave.call())
        group.has_finished, group.is_training = True, False
        await self.groups.ask(group, group.trainers.leave.call())

    async def join(self, group: Group) -> None:
        """Meet the others at the lighthouse. From here on they wait for this group."""
        await self.keeper.wait_until_up()
        group.lighthouse_number = self.keeper.number
        first = group.trainers.slice(ranks=0)
        host, port = (await self.groups.ask(group, first.open_store.call(self.groups.peers)))[0]
        meet = Rendezvous(host, port, self.keeper.url, self.groups.peers)
        await self.groups.ask(group, group.trainers.join.call(meet))
        # A group that asks for a quorum before all are known at the lighthouse might get one alone.
        await meet_at_barrier(lambda: self.joined, group.number, self.limits.step_timeout_seconds)
        if group.lighthouse_number != self.keeper.number:
            raise Disconnected("the lighthouse has died")
        group.is_training, group.num_met = True, len(self.joined.members)

    def join_anew(self) -> None:
        """The lighthouse has died: waiting tasks go on, and all groups meet at the next one."""
        training = self.groups.training()
        before, self.joined = self.joined, Barrier(group.number for group in training)
        before.give_way()
        for group in training:
            group.bells.lighthouse_is_gone.broadcast()

    async def make_steps(self, group: Group) -> None:
        """Step after step, with a message each, so that code can change between two of them."""
        committed_at, seconds = unheld_time(), math.inf
        ahead: Any = None  # the answer to come of a step that the group is asked for already
        while group.step < self.last_step:
            if self.hold.failure is not None:
                await self.hold.mended(lambda: self.is_stopping)
                committed_at = unheld_time()
                continue
            met = group.num_met
            asked, ahead = ahead, None
            asked = self.order(group, group.step + 1) if asked is None else asked
            try:
                started = time.monotonic()
                if self.may_go_ahead(group, seconds):
                    ahead = self.order(group, group.step + 2)
                results: list[GroupStep] = await self.groups.ask(
                    group, asked, self.hold.patience, self.hold.slow
                )
                seconds = time.monotonic() - started
            except TaskError as error:
                # It is to make another, with the same code; or the mend may be of what it was
                # built with, and nothing is lost.
                if ahead is not None or not group.has_stepped:
                    raise
                group.num_met = met
                await self.hold.begin_after_error(STEP, f"step {group.step + 1}", error)
                continue
            if group.accused_of is not None:
                raise GroupLost(group.accused_of)
            if results[0].committed:
                committed_at = unheld_time()
                group.step, group.discarded_at, group.has_stepped = results[0].step, None, True
                self.hold.step_went_well(results[0], seconds)
                self.groups.accuse(self.event_log.committed(group.number, results))
                if ahead is None:
                    await self.evaluate_if_due(group)
                    await self.save_if_due(group)
                continue
            group.discarded_at = unheld_time()
            self.event_log.discarded(group.number, group.step + 1, results)
            if unheld_time() - committed_at > self.limits.step_timeout_seconds:
                raise GroupLost(f"nothing was committed for {self.limits.step_timeout_seconds:g} s")

    def order(self, group: Group, step: int) -> Any:
        """Have a group make its next step, which is to be that one."""
        order = StepOrder(
            least_step=self.groups.step_of_others(group),
            last_step=self.last_step,
            learning_rate=self.learning_rate,
            fault=self.take_fault(group, step),
            least_groups=group.num_met,
        )
        group.num_met = 1
        return group.trainers.step.call(order)

    def may_go_ahead(self, group: Group, last_seconds: float) -> bool:
        """Whether a group may be asked for the next step while it makes one, not to wait for us:
        where steps are short, on the code that the run began with, and nothing comes between."""
        step, agent = group.step + 1, process.current()
        now = agent.generation
        is_edited = self.hold.edits.is_edited(now) or agent.code_states.coming > now
        if last_seconds > _AHEAD_SECONDS or is_edited or self.is_stopping or self.is_save_wanted:
            return False
        every = self.evaluations.every, self.checkpoint_every
        is_faulty = any(fault.step <= step + 1 for fault in self.faults)
        return step < self.last_step and not (is_faulty or any(is_due(step, n) for n in every))

    async def evaluate_if_due(self, group: Group) -> None:
        """Have the first group that has committed the step evaluate it; the others wait. If the
        evaluation says so, all groups end with this step."""
        if group.step >= self.last_step:
            return

        async def hold(error: TaskError) -> bool:
            doing = f"the evaluation after step {group.step}"
            await self.hold.begin_after_error(EVALUATION, doing, error)
            await self.hold.mended(lambda: self.is_stopping)
            return not self.is_stopping

        generation = process.current().generation
        verdict = await self.evaluations.if_due(group, hold)
        if verdict is None:
            return
        self.hold.edits.went_well(EVALUATION, generation, 0.0)
        if verdict.reason_to_stop:
            self.last_step = group.step
            self.event_log.tell("stopped_early", verdict.reason_to_stop, step=group.step)

    async def save_if_due(self, group: Group) -> None:
        """One group saves: the first that has committed the step."""
        every, step, groups = self.checkpoint_every, group.step, self.groups
        is_over = step <= groups.saved_step or step >= self.last_step
        if is_over or not (is_due(step, every) or self.is_save_wanted):
            return
        before, groups.saved_step, self.is_save_wanted = groups.saved_step, step, False
        try:
            await groups.save(group)
        except BaseException as error:
            groups.saved_step = before
            if not isinstance(error, Unsaved):
                raise
            groups.tell_unsaved(group, error)

    # Faults on purpose.

    def take_fault(self, group: Group, step: int) -> InjectedFault | None:
        """The fault that is due in this group's next step, which is that one."""
        fault = take_due(self.faults, group.number, step)
        if fault is None:
            return None
        self.event_log.tell("chaos", f"chaos: {fault}", step=step, fault=str(fault))
        if fault.kind == "lighthouse":
            self.keeper.crash()
            return None
        if fault.kind != "slow":
            self.event_log.recovery.ordered(group.name, time.monotonic())
        return fault
