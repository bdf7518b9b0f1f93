"""Keeps replica groups training, whoever dies.

The rules:

- Each group is a proc mesh of its own. If one of its processes dies, hangs or raises, the whole
  group is ended and started again, and no other; after a budget of restarts the run goes on
  without it.
- A group that is started again heals from a living one. Where none lives, all begin again from
  the last checkpoint.
- An error of the model's or the data's code ends the run: it would raise again.
- A group that comes back when others have finished does not train. It takes over the last
  checkpoint, and is compared with the rest.
- Groups whose parameters differ are started again until they do not.

It is an actor of the client's process, so that what it spawns is its own: deaths are told to it
and do not end the program. It says what happens through a port.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monarch.actor import Actor, ActorError, HostMesh, Port, ProcMesh, SupervisionError, endpoint
from monarch.config import configured
from monarch.errors import MeshFailure, MonarchError
from monarch_recipes.replicas.chaos import Fault
from monarch_recipes.replicas.fingerprint import FingerprintBook
from monarch_recipes.replicas.lighthouse import Lighthouse, LighthouseError, LighthouseTimes
from monarch_recipes.replicas.messages import (
    Event,
    Failed,
    Finished,
    Message,
    Metrics,
    Order,
    Outcome,
    Ready,
    Rendezvous,
    Seat,
    StepResult,
    TaskError,
)
from monarch_recipes.replicas.placement import Place, place_groups
from monarch_recipes.replicas.recovery import RecoveryBook
from monarch_recipes.replicas.restarts import RestartBudget
from monarch_recipes.replicas.torchft_cures import Bell, LeftBehind

__all__ = ["Controller", "GroupsError", "Limits"]

_PRELOAD = ("monarch_recipes.replicas.preload",)
_ENVIRONMENT = {"RUST_LOG": "warn"}
_LOOK_SECONDS = 0.2
_STOP_SECONDS = 5.0
_PORT_PATIENCE_SECONDS = 10.0
_REPORTED_AS = "lighthouse"


class GroupsError(RuntimeError):
    """The groups cannot go on."""


class GroupLost(Exception):
    """A group is of no use any more, and is to be started again."""


class Disconnected(Exception):
    """The lighthouse has died, and the group is to join the next one."""


class GroupLate(Exception):
    """A group is there, but the others have finished."""


@dataclass(frozen=True)
class Limits:
    """What the controller goes by; see the recipe's config for each."""

    num_groups: int
    procs_per_group: int
    num_steps: int
    learning_rate: float
    checkpoint_every: int
    lighthouse: str
    lighthouse_port: int
    times: LighthouseTimes
    hang_timeout_seconds: float
    step_timeout_seconds: float
    max_restarts: int
    restart_window_seconds: float
    faults: tuple[Fault, ...]


@dataclass
class Group:
    """One replica group, dead or alive.

    ``lighthouse_number`` is of the lighthouse that it has joined, of those one after the other.
    ``step`` is what it has committed as far as is known; ``ahead_since`` the time since when
    others are further than a group that takes part can be.
    """

    number: int
    place: Place
    budget: RestartBudget
    procs: ProcMesh | None = None
    trainers: Any = None
    bells: Any = None
    lighthouse_number: int = 0
    is_training: bool = False
    has_finished: bool = False
    is_given_up: bool = False
    num_starts: int = 0
    step: int = 0
    accused_of: str | None = None
    ahead_since: float | None = None

    @property
    def name(self) -> str:
        return f"group {self.number}"


class _Gathering:
    """Lets those who arrive go on together; who is lost on the way is not waited for."""

    def __init__(self, expected: Iterable[int]) -> None:
        self._missing = set(expected)
        self._all_there = asyncio.Event()
        self.arrive(-1)

    def arrive(self, number: int) -> None:
        self._missing.discard(number)
        if not self._missing:
            self._all_there.set()

    async def wait(self, timeout: float | None = None) -> None:
        try:
            await asyncio.wait_for(self._all_there.wait(), timeout)
        except asyncio.TimeoutError:
            self._all_there.set()


class Controller(Actor):
    """Made with the limits, the config for the trainers, their class, and where they may live."""

    def __init__(
        self,
        limits: Limits,
        config: Any,
        trainer_class: type[Actor],
        hosts: HostMesh,
        procs_per_host: int,
        checkpoint_dir: Path,
        news: Port[Any],
    ) -> None:
        self.limits = limits
        self.config = config
        self.trainer_class = trainer_class
        self.hosts = hosts.flatten("hosts")
        self.checkpoint_dir = checkpoint_dir
        self.news = news
        places = place_groups(
            limits.num_groups, limits.procs_per_group, self.hosts.size(), procs_per_host
        )
        self.groups = [
            Group(number, place, self.new_budget()) for number, place in enumerate(places)
        ]
        self.last_step = limits.num_steps
        self.learning_rate = limits.learning_rate
        self.checkpoint_every = limits.checkpoint_every
        self.faults = list(limits.faults)
        self.book = FingerprintBook()
        self.recovery = RecoveryBook(limits.num_groups, time.monotonic())
        self.reported_step = 0
        self.generation: int | None = None
        self.saved_step = 0
        self.saved_path: Path | None = None
        self.background: set[asyncio.Future[Any]] = set()
        self.lighthouse_url = limits.lighthouse
        self.lighthouse_procs: ProcMesh | None = None
        self.lighthouse: Any = None
        self.lighthouse_number = 0
        self.lighthouse_is_up = asyncio.Event()
        self.lighthouse_is_down = asyncio.Event()
        self.stopping = False

    # What the client asks.

    @endpoint
    async def begin(self) -> None:
        """Train. What comes of it is told through the port, the end last."""
        self.whole = asyncio.ensure_future(self.train())

    @endpoint
    async def stop_soon(self) -> None:
        """Let all groups finish together with the next step, and save."""
        if not self.stopping:
            self.stopping = True
            self.last_step = min(self.last_step, self.newest_step() + 2)

    @endpoint
    async def reconfigure(self, learning_rate: float, checkpoint_every: int) -> None:
        """From the next step on."""
        self.learning_rate, self.checkpoint_every = learning_rate, checkpoint_every

    async def __supervise__(self, failure: MeshFailure) -> bool:
        # Who drives a group learns of its death from the call that waits for it; nobody calls the
        # lighthouse.
        if failure.mesh_name.startswith(_REPORTED_AS):
            self.lighthouse_is_down.set()
        return True

    # The whole run.

    async def train(self) -> None:
        try:
            outcome = await self.train_to_the_end()
        except Exception as error:
            self.tell("failed", str(error))
            self.news.send(Failed(_without_remote_parts(error)))
        else:
            self.news.send(Finished(outcome))

    async def train_to_the_end(self) -> Outcome:
        try:
            if not self.limits.lighthouse:
                await self.start_lighthouse()
                self.background.add(asyncio.ensure_future(self.keep_lighthouse()))
            while True:
                await self.train_groups()
                checkpoint = await self.save_the_end()
                if checkpoint is not None:
                    break
            return await self.conclude(checkpoint)
        finally:
            for task in self.background:
                task.cancel()
            await self.end(*(group.procs for group in self.groups), self.lighthouse_procs)

    async def train_groups(self) -> None:
        """Every group to the last step, or given up."""
        groups = [group for group in self.groups if not group.is_given_up]
        self.set_up = _Gathering(group.number for group in groups)
        self.joined = _Gathering(group.number for group in groups)
        tasks = [asyncio.ensure_future(self.keep_training(group)) for group in groups]
        try:
            await self.all_of(tasks)
        finally:
            for task in tasks:
                task.cancel()
        if not any(group.has_finished for group in self.groups):
            raise GroupsError(
                "no group is left: each has used up its restarts. " + self.how_to_go_on()
            )

    async def all_of(self, tasks: Iterable[asyncio.Future[None]]) -> None:
        """Wait for all; raises what one of them, or the lighthouse, raises first."""
        waiting = set(tasks)
        while waiting:
            done, _ = await asyncio.wait(
                {*waiting, *self.background}, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                task.result()
            waiting -= done

    async def keep_training(self, group: Group) -> None:
        """One group to the last step: start it, drive it, and start it again when it is lost."""
        while not self.is_over():
            try:
                await self.start(group)
                await self.drive(group)
                return
            except GroupLate:
                break
            except (GroupLost, Disconnected) as lost:
                await self.lose(group, str(lost) or "the lighthouse died as it was starting")
                if self.is_over() or not await self.wait_for_restart(group):
                    break

    def is_over(self) -> bool:
        """Whether somebody has finished: from then on nobody may begin."""
        return any(group.has_finished for group in self.groups)

    # One group.

    async def start(self, group: Group) -> None:
        """New processes, which build the model and load the last checkpoint of this run.

        Before there is one, they load what the config asks for.
        """
        place = group.place
        hosts = self.hosts.slice(hosts=slice(place.first_host, place.first_host + place.num_hosts))
        group.num_starts += 1
        group.procs = hosts.spawn_procs(
            {"procs": place.procs_per_host},
            name=f"group{group.number}",
            env=_ENVIRONMENT,
            preload=_PRELOAD,
        )
        procs = group.procs.flatten("ranks")
        seats = [
            Seat(
                group.number, rank, self.limits.num_groups, len(procs),
                place.first_slot + rank % place.procs_per_host,
            )
            for rank in range(len(procs))
        ]  # fmt: skip
        group.trainers = procs.spawn(
            f"trainer{group.number}", self.trainer_class, self.config, self.checkpoint_dir, seats
        )
        group.bells = procs.spawn(f"bell{group.number}", Bell)
        ready: list[Ready] = await self.answer(group, group.trainers.setup.call(self.saved_path))
        group.step = ready[0].step
        if self.saved_path is None:
            self.saved_step, self.saved_path = ready[0].step, ready[0].resumed_from
        self.recovery.ready(group.name, time.monotonic())
        kind = "started" if group.num_starts == 1 else "respawned"
        text = f"{group.name} is {'there' if group.num_starts == 1 else 'there again'}"
        if ready[0].resumed_from is not None:
            text += f", with {ready[0].resumed_from}, after step {ready[0].step}"
        self.tell(
            kind, text, group=group.number, step=ready[0].step,
            pids=[one.pid for one in ready], hosts=[one.hostname for one in ready],
            num_parameters=ready[0].num_parameters,
        )  # fmt: skip

    async def drive(self, group: Group) -> None:
        """Step after step, with a message each, so that code can change between two of them."""
        # At first all begin together; later a group is not waited for.
        self.set_up.arrive(group.number)
        await self.set_up.wait()
        if self.is_over():
            raise GroupLate
        self.skip_faults_before(group.step)
        while group.step < self.last_step:
            try:
                await self.join(group)
                await self.make_steps(group)
            except Disconnected:
                await self.answer(group, group.trainers.leave.call())
        group.has_finished = True
        group.is_training = False
        await self.answer(group, group.trainers.leave.call())

    async def make_steps(self, group: Group) -> None:
        """To the last step, with whoever else is there."""
        committed_at = time.monotonic()
        while group.step < self.last_step:
            order = Order(
                self.step_of_others(group), self.last_step, self.learning_rate,
                self.take_fault(group),
            )  # fmt: skip
            results: list[StepResult] = await self.answer(group, group.trainers.step.call(order))
            now = time.monotonic()
            if group.accused_of is not None:
                raise GroupLost(group.accused_of)
            if not results[0].committed:
                self.note_discarded(group, results)
                if now - committed_at > self.limits.step_timeout_seconds:
                    raise GroupLost(
                        f"nothing was committed for {self.limits.step_timeout_seconds:g} s"
                    )
                continue
            committed_at = now
            self.note_commit(group, results, now)
            await self.save_if_due(group)

    async def join(self, group: Group) -> None:
        """Meet the others at the lighthouse. From here on they wait for this group."""
        if not self.limits.lighthouse:
            await self.lighthouse_is_up.wait()
        group.lighthouse_number = self.lighthouse_number
        first = group.trainers.slice(ranks=0)
        host, port = (await self.answer(group, first.open_store.call()))[0]
        rendezvous = Rendezvous(host, port, self.lighthouse_url)
        await self.answer(group, group.trainers.join.call(rendezvous))
        # Who asks for a quorum when not all are known at the lighthouse might get one alone.
        self.joined.arrive(group.number)
        await self.joined.wait(self.limits.times.join_timeout)
        if group.lighthouse_number != self.lighthouse_number:
            raise Disconnected
        group.is_training = True

    async def answer(self, group: Group, call: Any) -> list[Any]:
        """What all ranks answer, by rank; GroupLost when they cannot, or take too long."""
        waiting = call.as_asyncio()
        asked_at = time.monotonic()
        try:
            while True:
                done, _ = await asyncio.wait({waiting}, timeout=_LOOK_SECONDS)
                if done:
                    return [value for _, value in waiting.result().items()]
                why = self.why_hung(group, asked_at, time.monotonic())
                if why is not None:
                    raise GroupLost(why)
        except SupervisionError as error:
            raise GroupLost(_first_cause(error)) from None
        except ActorError as error:
            raise self.of_actor(group, error) from None
        finally:
            waiting.cancel()

    def of_actor(self, group: Group, error: ActorError) -> Exception:
        """What an exception in a trainer comes to."""
        cause = error.exception
        if isinstance(cause, TaskError) or (
            isinstance(cause, LighthouseError) and group.num_starts == 1
        ):
            return cause
        if group.lighthouse_number != self.lighthouse_number:
            return Disconnected()
        if isinstance(cause, LeftBehind) and self.is_over():
            return GroupLate()
        return GroupLost(f"{type(cause).__name__}: {cause}")

    def why_hung(self, group: Group, asked_at: float, now: float) -> str | None:
        """Why a group that has not answered is not worth waiting for, if that is so.

        Groups go in step. Others that are further than one step have gone on without it, which
        the lighthouse lets them as soon as its heartbeats stay out.
        """
        limits = self.limits
        if now - asked_at > limits.step_timeout_seconds:
            return f"it has not answered for {limits.step_timeout_seconds:g} s"
        if not group.is_training or self.step_of_others(group) <= group.step + 1:
            group.ahead_since = None
            return None
        if group.ahead_since is None:
            group.ahead_since = now
        if now - group.ahead_since > limits.hang_timeout_seconds:
            return (
                f"it hangs: the others have gone on without it for "
                f"{limits.hang_timeout_seconds:g} s"
            )
        return None

    async def lose(self, group: Group, why: str) -> None:
        """End what is left of a group."""
        now = time.monotonic()
        incident = self.recovery.detected(group.name, why, group.step, now)
        detection = incident.detection_seconds
        noticed = "" if detection is None else f" (noticed after {detection:.2f} s)"
        self.tell(
            "died", f"{group.name} is lost after step {group.step}{noticed}: {why}",
            group=group.number, step=group.step, reason=why, detection_seconds=detection,
        )  # fmt: skip
        group.is_training = False
        group.accused_of = group.ahead_since = None
        self.set_up.arrive(group.number)
        self.joined.arrive(group.number)
        self.book.forget(group.number)
        procs, group.procs, group.trainers, group.bells = group.procs, None, None, None
        await self.end(procs)
        if not any(other.is_training or other.has_finished for other in self.groups):
            self.roll_back()

    def roll_back(self) -> None:
        """Nobody lives who has what came after the last checkpoint."""
        newest = self.reported_step
        if newest > self.saved_step:
            self.tell(
                "rolled_back",
                f"no group is left: all begin again after step {self.saved_step}, "
                f"{newest - self.saved_step} steps are lost",
                step=self.saved_step, num_steps_lost=newest - self.saved_step,
            )  # fmt: skip
        self.book.roll_back()
        self.recovery.rolled_back(self.saved_step)
        self.reported_step = self.saved_step

    async def wait_for_restart(self, group: Group) -> bool:
        """Wait for a group's turn; false if it has none left."""
        delay = group.budget.next_delay(time.monotonic())
        if delay is None:
            group.is_given_up = True
            self.tell(
                "given_up",
                f"{group.name} is given up after {self.limits.max_restarts} restarts within "
                f"{self.limits.restart_window_seconds:g} s; the others go on",
                group=group.number,
            )  # fmt: skip
            return False
        await asyncio.sleep(delay)
        return True

    def new_budget(self) -> RestartBudget:
        return RestartBudget(self.limits.max_restarts, self.limits.restart_window_seconds)

    # What the groups have committed.

    def newest_step(self) -> int:
        return max(group.step for group in self.groups)

    def step_of_others(self, group: Group) -> int:
        """What the living have committed, but for this one."""
        others = (
            other.step
            for other in self.groups
            if other is not group and (other.is_training or other.has_finished)
        )
        return max(others, default=0)

    def note_commit(self, group: Group, results: Sequence[StepResult], now: float) -> None:
        result = results[0]
        group.step = result.step
        healed = self.recovery.committed(group.name, result.step, result.participants, now)
        if healed is not None:
            self.tell(
                "healed",
                f"{group.name} trains again from step {result.step}: "
                f"{healed.heal_seconds or 0:.2f} s after it was there",
                group=group.number, **healed.row(),
            )  # fmt: skip
        self.recovery.committed(_REPORTED_AS, result.step, result.participants, now)
        if result.step > self.reported_step:
            self.reported_step = result.step
            self.report_step(result)
        if result.fingerprint is not None:
            self.compare(group, result.step, [one.fingerprint or "" for one in results])

    def note_discarded(self, group: Group, results: Sequence[StepResult]) -> None:
        self.recovery.wasted()
        why = next((one.error for one in results if one.error), "").strip().partition("\n")[0]
        step = group.step + 1
        self.tell(
            "discarded", f"{group.name} discards its step {step}: {why}",
            group=group.number, step=step, reason=why,
        )  # fmt: skip

    def report_step(self, result: StepResult) -> None:
        if self.generation is not None and result.generation != self.generation:
            self.tell(
                "generation",
                f"step {result.step} runs the code of generation {result.generation}",
                step=result.step, generation=result.generation,
            )  # fmt: skip
        self.generation = result.generation
        values = {
            "loss": result.loss,
            "accuracy": result.accuracy,
            "learning_rate": result.learning_rate,
            "grad_norm": result.grad_norm,
            "participants": float(result.participants),
            "step_seconds": result.seconds,
        }
        self.news.send(Metrics(result.step, self.limits.num_steps, values))

    def compare(self, group: Group, step: int, digests: Sequence[str]) -> None:
        """Accuse those whose parameters are not the others'."""
        complaints = self.book.add(step, group.number, digests)
        for number, what in complaints.items():
            accused = self.groups[number]
            if accused.accused_of is None:
                accused.accused_of = f"its parameters have come apart: {what}"
                self.tell(
                    "fingerprint", f"{accused.name}: {what}",
                    group=number, step=step, digests=self.book.of(step),
                    agreed_step=self.book.agreed_step,
                )  # fmt: skip

    # Checkpoints.

    async def save_if_due(self, group: Group) -> None:
        """One group saves: the first that has committed the step."""
        every, step = self.checkpoint_every, group.step
        if not every or step % every or step <= self.saved_step or step >= self.last_step:
            return
        before, self.saved_step = self.saved_step, step
        try:
            await self.save(group)
        except GroupLost:
            self.saved_step = before
            raise

    async def save(self, group: Group) -> Path:
        first = group.trainers.slice(ranks=0)
        path: Path = (await self.answer(group, first.save.call()))[0]
        self.saved_step, self.saved_path = group.step, path
        self.tell("saved", f"saved {path}", step=group.step, path=str(path), group=group.number)
        return path

    def how_to_go_on(self) -> str:
        place = "the beginning" if self.saved_path is None else self.saved_path
        return f"What happened is in events.jsonl; the same command goes on from {place}"

    # The end.

    async def save_the_end(self) -> Path | None:
        """A checkpoint by one of the most groups that agree; ``None`` when all died meanwhile."""
        while True:
            finished = [group for group in self.groups if group.has_finished]
            if not finished:
                return None
            told = self.book.of(self.last_step)
            agreed = [group for group in finished if group.number in told]
            saver = (agreed or finished)[0]
            if agreed:
                saver = self.groups[self.book.reference(self.last_step)]
            try:
                return await self.save(saver)
            except GroupLost as lost:
                saver.has_finished = False
                await self.lose(saver, str(lost))

    async def conclude(self, checkpoint: Path) -> Outcome:
        """Bring those that are late to the end, without training; evaluate; draw the sum."""
        late = [
            group
            for group in self.groups
            if not group.is_given_up and (not group.has_finished or group.accused_of is not None)
        ]
        if not self.stopping:
            await asyncio.gather(*(self.adopt(group, checkpoint) for group in late))
        accuracy = await self.evaluate()
        fingerprints = self.book.of(self.last_step)
        report = self.recovery.report(time.monotonic())
        equal = len(set(fingerprints.values())) == 1
        self.tell(
            "finished" if not self.stopping else "stopped",
            f"{len(fingerprints)} of {len(self.groups)} groups are at step {self.last_step}, "
            f"{'with identical parameters' if equal else 'with DIFFERENT parameters'}; "
            f"held-out accuracy {accuracy:.1%}; saved {checkpoint}",
            step=self.last_step, fingerprints=fingerprints, accuracy=accuracy,
            checkpoint=str(checkpoint), **report.data(),
        )  # fmt: skip
        for line in report.lines():
            self.news.send(Message(line))
        if not equal:
            raise GroupsError(
                f"the groups ended with different parameters: {fingerprints}; they agreed until "
                f"step {self.book.agreed_step}"
            )
        return Outcome(self.last_step, accuracy, checkpoint, fingerprints, report)

    async def adopt(self, group: Group, checkpoint: Path) -> None:
        """A late group takes over what the others have arrived at."""
        if group.accused_of is not None:
            await self.lose(group, group.accused_of)
        while True:
            try:
                if group.trainers is not None:
                    await self.answer(group, group.trainers.setup.call(checkpoint))
                elif await self.wait_for_restart(group):
                    await self.start(group)
                else:
                    return
                digests = await self.answer(group, group.trainers.fingerprint.call())
            except GroupLost as lost:
                await self.lose(group, str(lost))
                continue
            self.compare(group, self.last_step, digests)
            group.has_finished = True
            group.is_training = False
            self.recovery.committed(group.name, self.last_step, 0, time.monotonic())
            self.tell(
                "adopted",
                f"{group.name} came when the others had finished: it did not train, and has "
                f"taken over {checkpoint}",
                group=group.number, step=self.last_step,
            )  # fmt: skip
            return

    async def evaluate(self) -> float:
        """Accuracy on the held-out samples, by the first group that can tell."""
        for group in self.groups:
            if not group.has_finished or group.trainers is None:
                continue
            try:
                counts = await self.answer(group, group.trainers.evaluate.call())
            except GroupLost:
                continue
            return float(sum(one[0] for one in counts) / sum(one[1] for one in counts))
        return float("nan")

    # Faults on purpose.

    def take_fault(self, group: Group) -> Fault | None:
        """The fault that is due in this group's next step."""
        for fault in self.faults:
            if fault.step > group.step + 1:
                break
            if fault.kind != "lighthouse" and fault.group != group.number:
                continue
            self.faults.remove(fault)
            self.tell("chaos", f"chaos: {fault}", step=group.step + 1, fault=str(fault))
            if fault.kind != "lighthouse":
                if fault.kind != "slow":
                    self.recovery.ordered(group.name, time.monotonic())
                return fault
            if self.lighthouse is not None:
                self.recovery.ordered(_REPORTED_AS, time.monotonic())
                self.lighthouse.crash.broadcast()
            return None
        return None

    def skip_faults_before(self, step: int) -> None:
        """What was due in a run before this one, or in steps that a heal has jumped over."""
        if not any(group.is_training for group in self.groups):
            self.faults = [fault for fault in self.faults if fault.step > step]

    # The lighthouse.

    async def start_lighthouse(self) -> None:
        """In a proc of its own on the first host; a second time on the port that it had."""
        port = int(self.lighthouse_url.rsplit(":", 1)[1]) if self.lighthouse_url else 0
        self.lighthouse_is_down.clear()
        self.lighthouse_procs = self.hosts.slice(hosts=0).spawn_procs(
            name=_REPORTED_AS, env=_ENVIRONMENT, preload=_PRELOAD
        )
        self.lighthouse = self.lighthouse_procs.spawn(_REPORTED_AS, Lighthouse, self.limits.times)
        patience = _PORT_PATIENCE_SECONDS if port else 0.0
        try:
            self.lighthouse_url = await self.lighthouse.serve.call_one(
                port or self.limits.lighthouse_port, patience
            )
            pid = await self.lighthouse.pid.call_one()
        except ActorError as error:
            raise error.exception from None
        self.tell(
            "lighthouse", f"the lighthouse is at {self.lighthouse_url}",
            url=self.lighthouse_url, pid=pid,
        )  # fmt: skip
        self.lighthouse_is_up.set()

    async def keep_lighthouse(self) -> None:
        """Start it again, on the same port, whenever it dies; all groups join it anew, together."""
        budget = self.new_budget()
        while True:
            await self.lighthouse_is_down.wait()
            self.lighthouse_is_up.clear()
            self.lighthouse_number += 1
            training = [group for group in self.groups if group.is_training]
            self.joined = _Gathering(group.number for group in training)
            for group in training:
                group.bells.lighthouse_is_gone.broadcast()
            self.recovery.detected(
                _REPORTED_AS, "its process has died", self.reported_step, time.monotonic()
            )
            self.tell("died", "the lighthouse has died", step=self.reported_step)
            await self.end(self.lighthouse_procs)
            delay = budget.next_delay(time.monotonic())
            if delay is None:
                raise GroupsError(
                    f"the lighthouse is given up after {self.limits.max_restarts} restarts within "
                    f"{self.limits.restart_window_seconds:g} s. {self.how_to_go_on()}"
                )
            await asyncio.sleep(delay)
            try:
                await self.start_lighthouse()
            except (MonarchError, LighthouseError) as error:
                self.tell("died", f"the lighthouse could not be started again: {error}")
                self.lighthouse_is_down.set()
                continue
            self.recovery.ready(_REPORTED_AS, time.monotonic())

    # Small things.

    def tell(self, kind: str, text: str, **data: Any) -> None:
        self.news.send(Event(kind, text, data))

    async def end(self, *meshes: ProcMesh | None) -> None:
        """Kill procs, and wait a little for that: a host that is gone does not answer."""
        ends = []
        # What is worth saving has been saved, and what hangs has no last words.
        with configured(stop_timeout_seconds=0.0):
            for mesh in meshes:
                if mesh is not None and not mesh._is_stopped:
                    ends.append(mesh.stop().as_asyncio())
        if ends:
            await asyncio.wait(ends, timeout=_STOP_SECONDS)
        for one in ends:
            if one.done() and not one.cancelled():
                one.exception()


def _first_cause(error: SupervisionError) -> str:
    """Why, in one line, without who."""
    if error.failure is not None:
        return error.failure.root_cause.reason.strip().splitlines()[0]
    return str(error).strip().splitlines()[0]


def _without_remote_parts(error: Exception) -> Exception:
    """An error that can be sent, and raised again, as it is."""
    error.__cause__ = error.__context__ = None
    return error
