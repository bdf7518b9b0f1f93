"""Keeps replica groups training, whichever of them dies.

The rules:

- Each group is a proc mesh of its own. If one of its processes dies, hangs or raises, the whole
  group is ended and started again, and no other. When its restarts are used up, the run goes on
  without it.
- A restarted group heals from a living one. If no group lives, all begin again together from the
  newest copies in the hosts' memory, or from the last checkpoint: each waits for the others before
  its first step, as at the start, and heals from the furthest.
- A dead lighthouse is started again on its port. The new one knows nothing of the groups, so all
  join it together.
- An error of the model's or the data's code ends the run, because a restart would raise it again.
  If that code is newer than at the run's start, or if a person watches and it has never worked, all
  groups wait for a fix instead, and then make the step.
- A group that comes back when others have finished does not train. It loads the last checkpoint,
  and its parameters are compared with the others'.
- Groups whose parameters differ are started again until they do not.
- Every wait ends. The groups that a group waits for are computed from the state of all (`meeting`),
  and a waiting group is asked whether it lives; calls of a group have a deadline (`Groups.ask`);
  the lighthouse has its keeper. `monarch hang` shows what each group waits for.
- If steps are discarded again and again for one reason, also by new processes, the run ends with
  that reason (`discards`).
- A run that is asked to stop finishes the present step. If no step ends in time, the groups are
  released from their waits, and one with the newest step saves it.

The controller is an actor in the client's process, so it owns what it spawns: it is told of deaths,
and they do not end the program. It reports events through a port.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from monarch.actor import Actor, HostMesh, Port, endpoint
from monarch.errors import MeshFailure
from monarch.runs.recover.clock import unheld_time
from monarch.runtime import process
from monarch.runtime.hosts.bulletins import post
from monarch.wire.bulletin import Bulletin
from monarch_recipes.replicas.chaos import InjectedFault, take_due
from monarch_recipes.replicas.event_log import EventLog
from monarch_recipes.replicas.finish import Evaluations, conclude, save_the_end
from monarch_recipes.replicas.group import (
    Disconnected,
    Group,
    GroupLate,
    GroupLost,
    LighthouseOutOfReach,
)
from monarch_recipes.replicas.groups import (
    NO_ANSWER,
    Groups,
    GroupsError,
    StoppedUnsaved,
    answers_within,
)
from monarch_recipes.replicas.hold import EVALUATION, SETUP, STEP, GroupsHold
from monarch_recipes.replicas.lighthouse import LighthouseError, LighthouseKeeper
from monarch_recipes.replicas.meeting import awaited_to_join, awaited_to_step, num_met
from monarch_recipes.replicas.messages import (
    Failed,
    Finished,
    GroupsOutcome,
    GroupStep,
    Rendezvous,
    StepOrder,
    StepsInVain,
    TaskError,
    Unsaved,
)
from monarch_recipes.replicas.placement import end_procs
from monarch_recipes.schedule import is_due
from monarch_sync.words import some

T = TypeVar("T")

_AHEAD_SECONDS = 0.2  # In longer steps, asking in advance saves no noticeable time.
_LOOK_SECONDS = 0.02  # between two looks at the groups that a group waits for
_ALIVE_SECONDS = 0.5  # between two questions whether a group that waits lives
_TOLD_SECONDS = 2.0  # within which the death of a lighthouse becomes known
_STOP_SECONDS = 2.0  # without a step, after which a stopping run releases its groups
_STOP_STEPS = 3.0  # the same as a multiple of the last step's time, if that is longer
_LET_GO_SECONDS = 2.0
_COMPUTING_SECONDS = 30.0
_TELL_SECONDS = 0.5
_LONG_SECONDS = 1.0  # Shorter waits are not reported.


class _AskedToStop(Exception):
    """The run was asked to stop while the controller waited for something else."""


class Controller(Actor):
    """The actor that drives all groups of a run, from the client's process.

    ``config`` is that of the recipe. ``news`` is the client's port, for events.
    """

    def __init__(
        self,
        config: Any,
        trainer_class: type[Actor],
        hosts: HostMesh,
        *,
        procs_per_host: int,
        checkpoint_dir: Path,
        news: Port[Any],
        hold: GroupsHold,
    ) -> None:
        hosts = hosts.flatten("hosts")
        #: With the present values of the live keys.
        self.config = config
        #: The client's port, for events.
        self.news = news
        self.hold = hold
        self.event_log = EventLog(
            config.num_groups,
            config.num_steps,
            news,
            collective_timeout_seconds=config.collective_timeout_seconds,
        )
        self.keeper = LighthouseKeeper(config, hosts, self.event_log)
        self.groups = Groups(
            config,
            trainer_class,
            hosts,
            procs_per_host=procs_per_host,
            checkpoint_dir=checkpoint_dir,
            event_log=self.event_log,
            keeper=self.keeper,
        )
        self.evaluations = Evaluations(self.groups, config)
        #: The step with which the run ends: that of the config, or an earlier one after a stop.
        self.last_step = config.num_steps
        #: The injected faults that are still to come, by step.
        self.faults: list[InjectedFault] = config.faults()
        #: Whether a person wants a checkpoint after the next step.
        self.is_save_wanted = False
        #: Set when the run is asked to stop.
        self.stop_wanted = asyncio.Event()
        #: The seconds of the last committed step, and the time of its commit, by `time.monotonic`.
        self.step_seconds = 0.0
        self.committed_at = 0.0
        #: Whether any group has committed any step.
        self.has_committed = False
        #: The groups that got new processes since any group committed a step.
        self.renewed: set[int] = set()
        #: The name of the run's folder, for bulletins.
        self._run_name = checkpoint_dir.parent.name

    @property
    def is_stopping(self) -> bool:
        """Whether all groups must finish and save."""
        return self.stop_wanted.is_set()

    @endpoint
    async def begin(self) -> None:
        """Start the training, and return at once.

        Events go to the client's port; the last one is `Finished` or `Failed`.
        """
        self.whole = asyncio.ensure_future(self.train())

    @endpoint
    async def save_soon(self) -> None:
        """Ask for a checkpoint after the next step."""
        self.is_save_wanted = True

    @endpoint
    async def stop_soon(self) -> None:
        """Ask all groups to finish together at one of the next steps, and to save."""
        if not self.is_stopping:
            self.stop_wanted.set()
            self.groups.stopping_since = unheld_time()
            # While the run holds, no group can make another step.
            num_steps = 2 if self.hold.failure is None else 0
            self.last_step = min(self.last_step, self.groups.newest_step() + num_steps)

    @endpoint
    async def answer_slow(self, answer: str) -> None:
        """Pass on a person's answer about a slow step on new code: HOLD, or MORE time."""
        self.hold.answer_slow(answer)

    @endpoint
    async def go_on_with(self, hosts: HostMesh, living: list[int]) -> None:
        """Continue with ``hosts``, at their present addresses.

        ``living`` are the numbers of the hosts that are left. Groups on other hosts are given up.
        """
        self.groups.hosts = self.keeper.hosts = hosts.flatten("hosts")
        self.groups.give_up_elsewhere(living)

    @endpoint
    async def reconfigure(self, config: Any) -> None:
        """Apply the live keys of ``config`` from the next step on."""
        self.config = self.evaluations.config = self.hold.config = config

    async def __supervise__(self, failure: MeshFailure) -> bool:
        # The task that drives a group learns of its death from the call that waits for it.
        self.keeper.on_failure(failure.mesh_name)
        return True

    async def train(self) -> None:
        """Train to the end, and send the outcome or the error to the client."""
        try:
            outcome = await self.train_to_the_end()
        except Exception as error:
            kind = "stopped" if isinstance(error, StoppedUnsaved) else "failed"
            self.event_log.tell(kind, str(error))
            # The causes may not be picklable.
            error.__cause__ = error.__context__ = None
            self.news.send(Failed(error))
        else:
            self.news.send(Finished(outcome))

    async def train_to_the_end(self) -> GroupsOutcome:
        """Train, save and conclude; return the outcome. Ends all processes in any case."""
        telling = asyncio.ensure_future(self.tell_waits())
        try:
            try:
                await self.unless_stopped(self.keeper.begin())
            except _AskedToStop:
                raise self.stopped_unsaved() from None
            checkpoint = await self.train_until_saved()
            if not self.is_stopping:
                with contextlib.suppress(_AskedToStop):
                    return await self.unless_stopped(self.conclude(checkpoint))
            return await self.conclude(checkpoint)
        finally:
            telling.cancel()
            self.post_waits("")
            await self.groups.end()
            await self.keeper.end()

    async def conclude(self, checkpoint: Path) -> GroupsOutcome:
        """End the run after its last checkpoint, which is ``checkpoint``; return its outcome."""
        return await conclude(
            self.groups, self.evaluations, self.last_step, checkpoint, self.is_stopping
        )

    async def unless_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of ``work``.

        Cancels it and raises _AskedToStop if the run is asked to stop meanwhile.
        """
        task, stop = asyncio.ensure_future(work), asyncio.ensure_future(self.stop_wanted.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise _AskedToStop
        finally:
            stop.cancel()
            task.cancel()
            await asyncio.wait({task}, timeout=_LET_GO_SECONDS)

    async def train_until_saved(self) -> Path:
        """Train until the last step is saved, and return the path of its checkpoint.

        If all groups die before one has saved, train again.
        """
        keeping = asyncio.ensure_future(self.keeper.keep(self.join_anew))
        try:
            while True:
                await self.train_groups(keeping)
                checkpoint = await save_the_end(self.groups, self.last_step)
                if checkpoint is not None:
                    return checkpoint
        except LighthouseError as error:
            if not keeping.done():
                raise
            raise GroupsError(f"{error}. {self.groups.how_to_go_on()}") from None
        finally:
            keeping.cancel()

    async def train_groups(self, keeping: asyncio.Future[None]) -> None:
        """Train every group until its last step, or until it is given up.

        Raises GroupsError if no group reaches its last step.
        """
        stop = asyncio.ensure_future(self.none_can_go_on())
        tasks: dict[int, asyncio.Future[None]] = {}
        try:
            while not stop.done():
                # A late group stopped because others had finished; these may be lost since.
                for group in () if self.is_past_holds() else self.groups.all:
                    if not group.is_given_up and group.number not in tasks:
                        tasks[group.number] = asyncio.ensure_future(self.keep_training(group))
                if not tasks:
                    break
                done, _ = await asyncio.wait(
                    {*tasks.values(), keeping, stop},
                    timeout=_TELL_SECONDS,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for task in done:
                    task.result()
                tasks = {number: task for number, task in tasks.items() if task not in done}
        finally:
            evaluating = self.evaluations.by
            stop.cancel()
            for task in tasks.values():
                task.cancel()
            if tasks:
                await asyncio.wait(tasks.values())
        if self.is_stopping and not self.groups.is_over():
            await self.let_go(evaluating)
            if not self.groups.is_over():
                raise self.stopped_unsaved()
        if not self.groups.is_over():
            whys = dict.fromkeys(group.lost_by for group in self.groups.all if group.lost_by)
            raise GroupsError(
                f"no group is left: each has used up its restarts ({some(list(whys), 2)}). "
                + self.groups.how_to_go_on()
            )

    async def none_can_go_on(self) -> None:
        """Wait until the run is asked to stop, and then until no group can finish a step in
        time.
        """
        await self.stop_wanted.wait()
        stopped_at = time.monotonic()
        patience = max(_STOP_SECONDS, _STOP_STEPS * self.step_seconds)
        while training := self.groups.training():
            if self.groups.is_saving:
                stopped_at = time.monotonic()
            discards = [self.event_log.discards.of(group.number) for group in training]
            if all(discard is not None and discard.count > 1 for discard in discards):
                return  # The next step would be discarded, too.
            if time.monotonic() - max(stopped_at, self.committed_at) > patience:
                return
            await asyncio.sleep(_LOOK_SECONDS)

    async def let_go(self, evaluating: Group | None) -> None:
        """Release the training groups from their waits, and mark those with the newest step as
        finished.

        ``evaluating`` is the group that evaluates, if any.
        """
        training = self.groups.training()
        for group in training:
            group.bells.lighthouse_is_gone.broadcast()
            if group is evaluating:  # An evaluation changes nothing, so it may be interrupted.
                group.trials.come_back.broadcast(_LET_GO_SECONDS, 0.0)
        await asyncio.sleep(_TELL_SECONDS)
        states = await asyncio.gather(*(self.state_of(group) for group in training))
        # A group that waits in a collective with a hung process goes on when that process is ended.
        # If no group waits, the groups that compute get time to finish the step.
        wanted = "waits" if "waits" in states else "computes"
        lost = [group for group, state in zip(training, states, strict=True) if state != wanted]
        await end_procs(*(group.let_go() for group in lost))
        training = [group for group in training if group not in lost]
        seconds = _LET_GO_SECONDS if wanted == "waits" else _COMPUTING_SECONDS
        steps = await asyncio.gather(*(self.step_left_at(group, seconds) for group in training))
        known_step = max((group.step for group in training), default=0)
        behind = [group for group in training if group.step < known_step]
        if behind and max(steps) < known_step:
            # The groups with the newest step are in a collective with a group that heals; that one
            # can be ended, as it has no newer state.
            await end_procs(*(group.let_go() for group in behind))
            training = [group for group in training if group not in behind]
            steps = await asyncio.gather(*(self.step_left_at(group, seconds) for group in training))
        for group in training:
            group.is_training, group.joined = False, None
        newest = max(steps, default=0)
        if newest <= self.groups.saved_step:
            return
        self.last_step = newest
        for group, step in zip(training, steps, strict=True):
            # Groups that do not share each step differ, so only one of them may finish.
            if step == newest and not (self.hold.is_local and self.groups.is_over()):
                group.step, group.has_finished = step, True

    async def state_of(self, group: Group) -> str:
        """Return "waits" if a group waits for others or for an order, "computes", or "hangs".

        It hangs if it does not answer.
        """
        try:
            reports = await answers_within(_TELL_SECONDS, group.trials.report.call())
        except NO_ANSWER:
            return "hangs"
        waits = all(not report.is_running or report.is_waiting for report in reports)
        return "waits" if waits else "computes"

    async def step_left_at(self, group: Group, seconds: float) -> int:
        """Let a group leave the quorum.

        Return its last committed step, or -1 if it does not in time.
        """
        try:
            steps = set(await answers_within(seconds, group.trainers.leave.call()))
        except NO_ANSWER:
            return -1
        return int(steps.pop()) if len(steps) == 1 else -1

    def stopped_unsaved(self) -> StoppedUnsaved:
        """Return the error for a run that stopped unsaved. It says which steps are lost."""
        saved, newest = self.groups.saved_step, self.event_log.newest_step
        if newest > saved:
            is_single = newest == saved + 1
            steps = f"step {newest} is" if is_single else f"steps {saved + 1} to {newest} are"
            why = f"{steps} lost, as no group was left that could save"
        else:
            why = "nothing was learned that is not saved" if saved else "before the first step"
        return StoppedUnsaved(f"stopped: {why}. {self.groups.how_to_go_on()}")

    async def tell_waits(self) -> None:
        """Post what each group waits for, whenever it changes, for people who ask why nothing
        moves.
        """
        posted = ""
        while True:
            text = "; ".join(self.waits(time.monotonic()))
            if text != posted:
                self.post_waits(text)
                posted = text
            await asyncio.sleep(_TELL_SECONDS)

    def post_waits(self, text: str) -> None:
        """Post a text about waits on the hosts, where `monarch hang` reads it; "" removes it."""
        kind, key = "waiting" if text else "left", f"waits {self._run_name}"
        bulletin = Bulletin(key, kind, text, stands=bool(text))
        post(process.current().node, self.groups.hosts._sync_hosts(), bulletin)

    def waits(self, now: float) -> list[str]:
        """Return a line for each group that has not trained for over a second: what it does
        instead.
        """
        return [
            f"{group.name} {group.doing}"
            for group in self.groups.all
            if group.doing and now - group.doing_since > _LONG_SECONDS
        ]

    async def keep_training(self, group: Group) -> None:
        """Train one group to the last step: start it, drive it, and restart it when it is lost."""
        while not self.groups.is_over():
            activity, generation, is_held = SETUP, process.current().generation, False
            try:
                await self.groups.start(group)
                self.hold.edits.went_well(SETUP, generation, 0.0)
                activity = STEP
                await self.drive(group)
                return
            except GroupLate:
                group.is_training, group.joined = False, None
                group.does("")
                return
            except (GroupLost, Disconnected) as lost:
                group.is_training = False
                group.does("is being ended, to be started again")
                details = lost.details if isinstance(lost, GroupLost) else ""
                await self.groups.lose(group, str(lost), details)
                if isinstance(lost, GroupLost):
                    goes_on_from = await self.groups.goes_on_from()
                    are_left = bool(self.groups.training())
                    self.hold.begin_after_loss(
                        group, lost, are_left=are_left, goes_on_from=goes_on_from
                    )
            except TaskError as error:
                doing = f"step {group.step + 1}" if activity == STEP else f"setting up {group.name}"
                await self.hold.begin_after_error(activity, doing, error, is_anew=True)
                is_held = True
                group.is_training = False
                await self.groups.lose(group, str(error))
            if self.hold.failure is not None:
                group.does("waits for newer code")
                group.num_vain_restarts = 0  # A person edits the code that made them fail.
            await self.hold.mended(self.is_past_holds)
            # A loss that an edit caused costs no restart.
            if self.is_past_holds() or not (is_held or await self.groups.may_restart(group)):
                group.does("")
                return

    def is_past_holds(self) -> bool:
        """Return whether newer code would be of no use: the run stops, or other groups have
        finished.
        """
        return self.is_stopping or self.groups.is_over()

    async def drive(self, group: Group) -> None:
        """Drive one group to the last step; if the lighthouse dies, let it join the next one."""
        # At first all begin together; a group that is lost while others train is not waited for.
        await self.wait_for_others(group, lambda: awaited_to_join(self.groups.all))
        if not self.groups.training():  # Skip faults of steps that an earlier run has made.
            self.groups.begin_together([other for other in self.groups.all if other.is_set_up])
            self.faults = [fault for fault in self.faults if fault.step > group.step]
        while group.step < self.last_step:
            if self.groups.is_over():
                raise GroupLate
            try:
                await self.join(group)
                await self.make_steps(group)
            except Disconnected:
                group.joined = None
                await self.groups.ask(group, group.trainers.leave.call())
        group.has_finished, group.is_training, group.joined = True, False, None
        group.does("")
        await self.groups.ask(group, group.trainers.leave.call())

    async def wait_for_others(self, group: Group, awaited: Callable[[], list[int]]) -> None:
        """Wait until ``awaited`` returns no groups.

        Raises GroupLost if this group dies meanwhile.
        """
        asked_at = time.monotonic()
        while numbers := awaited():
            names = ", ".join(self.groups.all[number].name for number in numbers)
            group.does(f"waits for {names}")
            await asyncio.sleep(_LOOK_SECONDS)
            if time.monotonic() - asked_at > _ALIVE_SECONDS:
                await self.groups.is_alive(group)
                asked_at = time.monotonic()
        group.does("")

    async def join(self, group: Group) -> None:
        """Let a group join the lighthouse, and wait for the other groups.

        From then on the others wait for it. Raises Disconnected if the lighthouse dies meanwhile.
        """
        if not self.keeper.is_up.is_set():
            group.does("waits for the lighthouse, which is being started")
        await self.keeper.is_up.wait()
        group.does("joins the lighthouse")
        group.lighthouse_number = number = self.keeper.number
        first = group.trainers.slice(ranks=0)
        host, port = (await self.groups.ask(group, first.open_store.call(self.groups.peers)))[0]
        uses_nccl = self.groups.uses_nccl(group)
        meet = Rendezvous(host, port, self.keeper.url, self.groups.peers, uses_nccl)
        try:
            await self.groups.ask(group, group.trainers.join.call(meet))
        except LighthouseOutOfReach:
            if await self.keeper.is_another(number, _TOLD_SECONDS):
                raise Disconnected("the lighthouse has died") from None
            raise
        group.joined = number

        def awaited() -> list[int]:
            if number != self.keeper.number:
                raise Disconnected("the lighthouse has died")
            return awaited_to_step(self.groups.all, number)

        # A group that asks for a quorum before the lighthouse knows all might get one alone.
        await self.wait_for_others(group, awaited)
        group.is_training, group.num_met = True, num_met(self.groups.all, number)

    def join_anew(self) -> None:
        """Release all training groups from the dead lighthouse, so that they join the next one."""
        for group in self.groups.training():
            group.bells.lighthouse_is_gone.broadcast()

    async def make_steps(self, group: Group) -> None:
        """Make a group's steps, with a message for each, so that code can change between two of
        them.
        """
        committed_at, seconds = unheld_time(), math.inf
        ahead: Any = None  # the pending call of the next step, if it was sent in advance
        while group.step < self.last_step:
            if self.hold.failure is not None:
                # If the group dies meanwhile, that is reported, and its host is restarted.
                alive = functools.partial(self.groups.is_alive, group)
                await self.hold.mended(self.is_past_holds, alive)
                if self.hold.failure is not None:  # and will not be fixed
                    if self.groups.is_over():
                        raise GroupLate
                    await asyncio.sleep(_LOOK_SECONDS)
                committed_at = unheld_time()
                continue
            met = group.num_met
            is_on_trial = self.hold.is_on_trial
            if is_on_trial and ahead is None:
                await self.save_without_room(group)
            call = self.order(group, group.step + 1) if ahead is None else ahead
            ahead = None
            try:
                started = time.monotonic()
                if self.may_go_ahead(group, seconds):
                    ahead = self.order(group, group.step + 2)
                results: list[GroupStep] = await self.ask_in_step(group, call)
                seconds = time.monotonic() - started
            except TaskError as error:
                # The group was already sent another step with the same code. Or it has not made a
                # step yet: the fix may concern code that built it, and a restart loses nothing.
                if ahead is not None or not group.has_stepped:
                    raise
                group.num_met = met
                await self.hold.begin_after_error(STEP, f"step {group.step + 1}", error)
                continue
            if group.accused_of is not None:
                raise GroupLost(group.accused_of)
            if results[0].committed:
                committed_at = unheld_time()
                self.committed_at, self.step_seconds = time.monotonic(), seconds
                self.has_committed = True
                self.renewed.clear()
                group.step, group.discarded_at, group.has_stepped = results[0].step, None, True
                group.num_vain_restarts = 0
                self.hold.step_went_well(results[0], seconds)
                self.groups.accuse(self.event_log.committed(group.number, results))
                if ahead is None:
                    await self.evaluate_if_due(group)
                    await self.save_if_due(group)
                    await self.shadow_if_due(group)
                    await self.tell_of_copies(group, is_on_trial=is_on_trial)
                continue
            group.discarded_at = unheld_time()
            self.event_log.discarded(group.number, group.step + 1, results, seconds)
            if unheld_time() - committed_at > self.config.step_timeout_seconds:
                raise GroupLost(f"nothing was committed for {self.config.step_timeout_seconds:g} s")
            await self.give_up_or_pause(group)

    async def ask_in_step(self, group: Group, call: Any) -> list[Any]:
        """Return the answers of all ranks to a call during a step. A person may interrupt slow
        code.
        """
        return await self.groups.ask(
            group, call, self.hold.patience, self.hold.slow, lambda: self.hold.is_given_up
        )

    async def shadow_if_due(self, group: Group) -> None:
        """Let this group copy its state into its hosts' memory during its next step, if that is
        due.
        """
        is_over = group.step >= self.last_step
        if not is_over and is_due(group.step, self.config.extras.shadow_every):
            await self.groups.ask(group, group.trials.shadow.call())

    async def tell_of_copies(self, group: Group, *, is_on_trial: bool) -> None:
        """Report what this group's ranks say about the copies made before new code, each text
        once.
        """
        if is_on_trial:
            news = await self.ask_in_step(group, group.trials.news.call())
            self.event_log.tell_of_copies(text for texts in news for text in texts)

    async def save_without_room(self, group: Group) -> None:
        """Save a checkpoint before new code is tried, if the hosts' memory has no room for copies.

        One group saves. The other groups wait within the step until this group takes part in it.
        """
        whys = await self.ask_in_step(group, group.trials.why_no_copy.call(STEP))
        if why := next(filter(None, whys), ""):
            if not self.hold.edits.is_told_of_room:
                self.hold.edits.is_told_of_room = True
                self.event_log.tell("copies", why)
            await self.save_once(group)

    async def give_up_or_pause(self, group: Group) -> None:
        """Handle a discarded step: pause before the next try, or give up after too many.

        When it gives up, it raises GroupLost, so that the group gets new processes. It raises
        StepsInVain instead if the run has never made a step, or if all groups have had new
        processes for this.
        """
        discard = self.event_log.discards.of(group.number)
        if discard is None:
            return
        if not discard.is_hopeless:
            await asyncio.sleep(discard.pause_seconds)
            return
        why = (
            f"its step {discard.step} was discarded {discard.count} times in a row for the same "
            f"reason: {discard.reason}"
        )
        living = {other.number for other in self.groups.all if not other.is_given_up}
        if self.has_committed and not living <= self.renewed:
            if group.number in self.renewed:
                self.event_log.discards.end(group.number)  # Wait for the others' new processes.
                return
            self.renewed.add(group.number)
            raise GroupLost(why)
        raise StepsInVain(group.name, f"{why}. {self.groups.how_to_go_on()}")

    def order(self, group: Group, step: int) -> Any:
        """Order a group to make its next step, number ``step``; return the pending call."""
        order = StepOrder(
            least_step=self.groups.step_of_others(group),
            last_step=self.last_step,
            learning_rate=self.config.learning_rate,
            fingerprint_every=self.config.fingerprint_every,
            fault=self.take_fault(group, step),
            least_groups=group.num_met,
        )
        group.num_met = 1
        return group.trainers.step.call(order)

    def may_go_ahead(self, group: Group, last_seconds: float) -> bool:
        """Return whether a group may get the order for its next step before its present step ends.

        That is so if steps are short, the code was not edited in the run, and no fault, evaluation,
        checkpoint or copy is due after the present step.
        """
        step, agent, config = group.step + 1, process.current(), self.config
        generation = agent.generation
        is_edited = self.hold.edits.is_edited(generation) or agent.code_states.coming > generation
        is_asked = self.is_stopping or self.is_save_wanted or self.groups.unsavable is not None
        if last_seconds > _AHEAD_SECONDS or is_edited or is_asked:
            return False
        every = config.evaluate_every, config.checkpoint_every, config.extras.shadow_every
        is_faulty = any(fault.step <= step + 1 for fault in self.faults)
        return step < self.last_step and not (is_faulty or any(is_due(step, n) for n in every))

    async def evaluate_if_due(self, group: Group) -> None:
        """Let the first group that has committed the step evaluate it. The others wait.

        If the evaluation says so, all groups end with this step.
        """
        if group.step >= self.last_step:
            return

        async def hold(error: TaskError) -> bool:
            doing = f"the evaluation after step {group.step}"
            await self.hold.begin_after_error(EVALUATION, doing, error)
            await self.hold.mended(self.is_past_holds)
            return not self.is_past_holds()

        generation = process.current().generation
        verdict = await self.evaluations.if_due(group, hold)
        if verdict is None:
            return
        self.hold.edits.went_well(EVALUATION, generation, 0.0)
        if verdict.reason_to_stop:
            self.last_step = group.step
            self.event_log.tell("stopped_early", verdict.reason_to_stop, step=group.step)

    async def save_if_due(self, group: Group) -> None:
        """Let the first group that has committed the step save a checkpoint, if that is due."""
        is_wanted = self.is_save_wanted or self.groups.unsavable is not None
        is_wanted = is_wanted or is_due(group.step, self.config.checkpoint_every)
        if is_wanted and group.step < self.last_step:
            await self.save_once(group)

    async def save_once(self, group: Group) -> None:
        """Let this group save its step, unless this step or a newer one has been saved."""
        step, groups = group.step, self.groups
        if step <= groups.saved_step:
            return
        old_step, groups.saved_step, self.is_save_wanted = groups.saved_step, step, False
        try:
            await groups.save(group)
        except BaseException as error:
            groups.saved_step = old_step
            if not isinstance(error, Unsaved):
                raise
            groups.tell_unsaved(group, error)

    def take_fault(self, group: Group, step: int) -> InjectedFault | None:
        """Remove and return the fault that is due in this step of this group, or None.

        A fault of the lighthouse is carried out here.
        """
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
