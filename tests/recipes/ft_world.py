"""A world for the controller of replica groups that takes no time: processes are objects, and the
clock jumps to whatever comes next. Anything may be killed at any moment of it."""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monarch.errors import ActorError, MeshFailure, SupervisionError
from monarch.runs.hold.run_memory import HostCopies
from monarch.runs.record.edits import Edits
from monarch_recipes.best import EvaluationVerdict
from monarch_recipes.evaluation import Share
from monarch_recipes.fault_tolerant import FaultTolerantConfig
from monarch_recipes.replicas import controller, event_log, group, groups, hold, lighthouse
from monarch_recipes.replicas.controller import Controller
from monarch_recipes.replicas.event_log import EventLog
from monarch_recipes.replicas.group import Group
from monarch_recipes.replicas.hold import GroupsHold
from monarch_recipes.replicas.lighthouse import LIGHTHOUSE, LighthouseKeeper
from monarch_recipes.replicas.messages import (
    Failed,
    Finished,
    GroupStep,
    RunEvent,
    StepOrder,
    TrainerReady,
)
from monarch_recipes.replicas.torchft_cures import BehindOthers, LighthouseGone

HEARTBEAT_SECONDS = 1.0
START_SECONDS = {"report": 0.5, "setup": 1.0, "join": 0.2}
CALL_SECONDS = 0.01
STEP_SECONDS = 0.1
MOST_SECONDS = 600.0


class JumpingLoop(asyncio.SelectorEventLoop):
    """Where others wait until something is due, the clock of this one is set to that moment."""

    def __init__(self) -> None:
        super().__init__(selectors.SelectSelector())
        self.now = 0.0
        select = self._selector.select  # type: ignore[attr-defined]

        def jump(timeout: float | None = None) -> Any:
            if timeout is None:
                raise AssertionError("everybody waits, and nothing will ever come")
            self.now += timeout
            return select(0)

        self._selector.select = jump  # type: ignore[attr-defined]

    def time(self) -> float:
        return self.now


@dataclass
class Process:
    """What is left of a process when it is killed: the calls that it did not answer."""

    name: str
    is_alive: bool = True
    is_stuck: bool = False  # It lives, and answers nothing.
    calls: set[asyncio.Future[Any]] = field(default_factory=set)

    def kill(self) -> None:
        self.is_alive = False
        for call in self.calls:
            if not call.done():
                call.set_exception(SupervisionError(f"{self.name} was killed"))


class World:
    """Two groups and a lighthouse. ``at`` are the moments, counted in calls that begin or end, at
    which something is done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        self.at: dict[int, Callable[[], None]] = {}
        self.num_moments = 0
        self.told: list[Any] = []
        self.trainers: dict[int, FakeTrainers] = {}
        self.rows: list[tuple[int, int]] = []  # step, participants
        self.saved: list[int] = []
        self.copies: dict[str, int] = {}  # steps of those in the host's memory, by group
        self.lighthouse = Process(LIGHTHOUSE, is_alive=False)
        self.loop = JumpingLoop()
        self.stopped_at: float | None = None
        self.gpus = {0: "cpu", 1: "cpu"}
        self.meetings: list[tuple[int, bool]] = []  # group, uses_nccl
        # Why a group's step is discarded, by the group and the step; "" where it is committed.
        self.refuse: Callable[[int, int], str] = lambda group, step: ""
        self._patch(monkeypatch)
        settings = {"num_steps": 4, "checkpoint_every": 2, "max_restarts": 50, **settings}
        config = FaultTolerantConfig(**settings)
        port: Any = SimpleNamespace(send=self._on_news)
        report: Any = SimpleNamespace(is_watched=lambda: False)
        hosts: Any = SimpleNamespace(
            size=lambda: 1, flatten=lambda name: hosts, _sync_hosts=lambda: []
        )
        hosts.slice = lambda **ignored: hosts
        self.controller = Controller(
            config, FakeTrainers, hosts, procs_per_host=4,  # type: ignore[arg-type]
            checkpoint_dir=Path("/runs/one/checkpoints"), news=port,
            hold=GroupsHold(config, Edits(), report, port),
        )  # fmt: skip

    def _patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = SimpleNamespace(monotonic=self.loop.time)
        agent = SimpleNamespace(
            generation=0, node=None, code_states=SimpleNamespace(coming=0), held_time=None
        )
        for module in (controller, groups, lighthouse, event_log, group, hold):
            monkeypatch.setattr(module, "time", clock)
        for module in (controller, groups):
            monkeypatch.setattr(module, "unheld_time", self.loop.time)
        for module in (controller, hold):
            monkeypatch.setattr(module, "process", SimpleNamespace(current=lambda: agent))
        monkeypatch.setattr(controller, "post", lambda *ignored: None)

        async def nothing(*ignored: Any) -> None: ...

        async def start(keeper: LighthouseKeeper, port: int, patience_seconds: float) -> None:
            keeper._is_down.clear()
            keeper.url = "http://there:1"
            self.lighthouse = Process(LIGHTHOUSE)
            await self.answer(self.lighthouse, 0.5, lambda: None)

        async def stacks(ignored: Group) -> str:
            return ""

        async def newest_in(memory: FakeMemory) -> HostCopies | None:
            return memory.newest()

        def spawn(one: Group, *ignored: Any, **more: Any) -> None:
            one.num_starts += 1
            trainers = FakeTrainers(self, one.number)
            self.trainers[one.number] = one.trainers = one.trials = one.bells = trainers  # type: ignore[assignment]

        monkeypatch.setattr(groups.Groups, "peers", ())
        monkeypatch.setattr(EventLog, "written", nothing)
        monkeypatch.setattr(LighthouseKeeper, "_start", start)
        monkeypatch.setattr(groups, "_stacks", stacks)
        monkeypatch.setattr(groups, "_newest_in", newest_in)
        made = functools.partial(FakeMemory, self)
        made.new_owner = FakeMemory.new_owner  # type: ignore[attr-defined]
        monkeypatch.setattr(groups, "RunMemory", made)
        monkeypatch.setattr(groups, "end_procs", nothing)
        monkeypatch.setattr(lighthouse, "end_procs", nothing)
        monkeypatch.setattr(controller, "end_procs", nothing)
        monkeypatch.setattr(Group, "spawn", spawn)

    def _on_news(self, said: Any) -> None:
        self.told.append(said)

    # What a test does to it.

    def kill(self, victim: str) -> None:
        """``group 0``, ``lighthouse``, or ``all``, as with the template of all."""
        for number, trainers in self.trainers.items():
            if victim in (f"group {number}", "all"):
                trainers.process.kill()
        if victim in (LIGHTHOUSE, "all") and self.lighthouse.is_alive:
            self.lighthouse.kill()
            failure = MeshFailure(LIGHTHOUSE, (0,), "it was killed")
            self.loop.call_later(0.05, self._tell, failure)

    def _tell(self, failure: MeshFailure) -> None:
        self.loop.create_task(self.controller.__supervise__(failure))

    def when_copied(self, num_steps: int, act: Callable[[], None]) -> None:
        """Do it as soon as both groups have copies of so many steps."""

        async def wait() -> None:
            while min(self.copies.get(one, 0) for one in ("0", "1")) < num_steps:  # noqa: ASYNC110
                await asyncio.sleep(CALL_SECONDS / 4)
            act()

        self.loop.create_task(wait())

    def stop(self) -> None:
        self.stopped_at = self.loop.time()
        self.loop.create_task(self.controller.stop_soon())

    def run(self) -> Any:
        """Whole; what it came to. It fails where the run does not end in time."""

        async def story() -> None:
            await asyncio.wait_for(self.controller.train(), MOST_SECONDS)

        try:
            self.loop.run_until_complete(story())
        except (asyncio.TimeoutError, TimeoutError):
            states = "; ".join(f"{one.name} {one.doing}" for one in self.controller.groups.all)
            raise AssertionError(f"the run stands still: {states}") from None
        finally:
            self._tidy()
        last = self.told[-1]
        assert isinstance(last, Finished | Failed)
        return last

    def _tidy(self) -> None:
        async def end(left: set[asyncio.Task[Any]]) -> None:
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

        self.loop.run_until_complete(end(asyncio.all_tasks(self.loop)))
        self.loop.close()

    def kinds(self) -> list[str]:
        return [said.kind for said in self.told if isinstance(said, RunEvent)]

    # How its processes answer.

    def moment(self) -> None:
        """A call begins, or ends."""
        self.num_moments += 1
        act = self.at.pop(self.num_moments, None)
        if act is not None:
            act()

    def answer(self, one: Process, seconds: float, make: Callable[[], Any]) -> asyncio.Future[Any]:
        """A call, and its answer after so many seconds; none where that is ``LATER``."""
        self.moment()
        call: asyncio.Future[Any] = self.loop.create_future()
        if not one.is_alive:
            call.set_exception(SupervisionError(f"{one.name} is dead"))
            return call
        one.calls.add(call)

        def end() -> None:
            if call.done() or one.is_stuck:
                return
            try:
                result = make()
            except Exception as error:
                call.set_exception(ActorError(error))
            else:
                if result is not LATER:
                    self.moment()
                    if not call.done():
                        call.set_result(result)

        self.loop.call_later(seconds, end)
        return call


LATER = object()


class FakeMemory:
    """What the hosts hold of one group."""

    def __init__(
        self, world: World, owner: str, hosts: Any, num_ranks: int, *,
        needs_all: bool, saved_step: Callable[[], int],
    ) -> None:  # fmt: skip
        self.world = world
        self.owner = owner
        self.group = owner.rpartition(".")[2]
        self.saved_step = saved_step

    @staticmethod
    def new_owner() -> str:
        return "run"

    def newest(self) -> HostCopies | None:
        step = self.world.copies.get(self.group, 0)
        return HostCopies(step) if step >= max(1, self.saved_step()) else None

    def forget(self) -> None:
        self.world.copies.pop(self.group, None)


class Answers(dict[int, Any]):
    """The answers of all ranks."""


class FakeTrainers:
    """The one rank of a group, with all of its actors."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.process = Process(f"group {number}")
        self.step_made = 0
        self.is_member = False
        self.asked: list[tuple[StepOrder, asyncio.Future[Any]]] = []
        self.begun_at = 0.0

    def slice(self, ranks: int) -> FakeTrainers:
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("_", "on_")):
            raise AttributeError(name)
        return SimpleNamespace(
            call=lambda *arguments: SimpleNamespace(as_asyncio=lambda: self._call(name, arguments)),
            broadcast=lambda *arguments: self._call(name, arguments),
        )

    def _call(self, name: str, arguments: tuple[Any, ...]) -> asyncio.Future[Any]:
        if name == "step":
            return self._on_step(*arguments)
        make = getattr(self, f"on_{name}", lambda *ignored: None)
        seconds = START_SECONDS.get(name, CALL_SECONDS)
        if name == "report" and self.begun_at:
            seconds = CALL_SECONDS
        self.begun_at = self.begun_at or self.world.loop.time()
        return self.world.answer(self.process, seconds, lambda: Answers({0: make(*arguments)}))

    def on_setup(self, checkpoint: Path | None, copies: HostCopies | None = None) -> TrainerReady:
        gpu = self.world.gpus[self.number]
        if copies is not None:
            self.step_made = copies.step
            return TrainerReady(copies.step, 1, 1, "host", None, (), gpu=gpu, is_from_memory=True)
        self.step_made = max(self.world.saved, default=0)
        path = Path(f"/runs/{self.step_made}.pt") if self.step_made else None
        return TrainerReady(self.step_made, 1, 1, "host", path, (), gpu=gpu)

    def on_shadow(self) -> None:
        self.world.copies[str(self.number)] = self.step_made

    def on_open_store(self, peers: Any) -> tuple[str, int]:
        return "there", 1

    def on_join(self, meet: Any) -> None:
        if not self.world.lighthouse.is_alive:
            raise lighthouse.LighthouseError("no lighthouse can be reached")
        self.is_member = True
        self.world.meetings.append((self.number, meet.uses_nccl))

    def on_leave(self) -> int:
        self.is_member = False
        self.world.loop.call_later(CALL_SECONDS, quorum, self.world)
        return self.step_made

    def on_lighthouse_is_gone(self) -> None:
        if self.process.is_stuck:
            return
        asked, self.asked = self.asked, []
        for _, call in asked:
            if not call.done():
                call.set_exception(ActorError(LighthouseGone("the lighthouse has died")))

    def on_report(self) -> Any:
        return SimpleNamespace(is_running=False, is_waiting=False)

    def on_fingerprint(self) -> str:
        return f"after {self.step_made}"

    def on_evaluate(self) -> Share:
        return Share({"loss": (1.0, 1.0)})

    def on_judge(self, history: Any, extras: Any) -> EvaluationVerdict:
        return EvaluationVerdict(is_best=False)

    def on_save(self, history: Any, is_best: bool = False) -> Path:
        self.world.saved.append(self.step_made)
        return Path(f"/runs/{self.step_made}.pt")

    def _on_step(self, order: StepOrder) -> asyncio.Future[Any]:
        call = self.world.answer(self.process, STEP_SECONDS, lambda: LATER)
        self.asked.append((order, call))
        self.world.loop.call_later(STEP_SECONDS, quorum, self.world)
        return call


def quorum(world: World) -> None:
    """TorchFT's: all members that live make the step together, the furthest decides which; those
    that are dead are waited for as long as their heartbeats might come."""
    if not world.lighthouse.is_alive:
        return
    members = [one for one in world.trainers.values() if one.is_member]
    dead = [one for one in members if not one.process.is_alive]
    if dead:
        for one in dead:
            one.is_member = False
        world.loop.call_later(HEARTBEAT_SECONDS, quorum, world)
        return
    is_stuck = any(one.process.is_stuck for one in members)
    if not members or is_stuck or not all(_next(one) for one in members):
        return
    newest = max(one.step_made for one in members)
    for one in members:
        order, call = one.asked.pop(0)
        if newest < order.least_step:
            call.set_exception(ActorError(BehindOthers("alone")))
            continue
        if len(members) < order.least_groups:
            one.asked.insert(0, (_lower(order), call))
            world.loop.call_later(HEARTBEAT_SECONDS, quorum, world)
            continue
        if why := world.refuse(one.number, newest + 1):
            result = GroupStep(newest, False, 2, 1.0, {}, 0.1, 1.0, 1.0, 0, None, why)
            world.moment()
            if not call.done():
                call.set_result(Answers({0: result}))
            continue
        one.step_made = newest + 1
        if (newest + 1, len(members)) not in world.rows:
            world.rows.append((newest + 1, len(members)))
        is_last = one.step_made >= order.last_step
        result = GroupStep(
            one.step_made, True, len(members), 1.0, {}, 0.1, 1.0, 1.0, 0,
            one.on_fingerprint() if is_last else None, None,
        )  # fmt: skip
        world.moment()
        if not call.done():
            call.set_result(Answers({0: result}))


def _next(one: FakeTrainers) -> bool:
    one.asked = [(order, call) for order, call in one.asked if not call.done()]
    return bool(one.asked)


def _lower(order: StepOrder) -> StepOrder:
    """It has waited for the others long enough."""
    return StepOrder(order.least_step, order.last_step, order.learning_rate)
