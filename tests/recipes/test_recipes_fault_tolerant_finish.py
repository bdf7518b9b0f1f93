"""The finish of replica groups: one that comes late ends with what the others have arrived at."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torchft", reason="torchft is not installed: pip install 'monarch-loop[ft]'")

from monarch.actor import this_host
from monarch.runs import Record
from monarch_recipes.best import EvaluationVerdict
from monarch_recipes.evaluation import Share
from monarch_recipes.fault_tolerant import FaultTolerantConfig, ReplicaTrainer
from monarch_recipes.replicas.client import train_groups
from monarch_recipes.replicas.event_log import EventLog
from monarch_recipes.replicas.finish import Evaluations, conclude, save_the_end
from monarch_recipes.replicas.group import Group, GroupLost
from monarch_recipes.replicas.groups import Groups
from monarch_recipes.replicas.messages import GroupsOutcome, RunEvent, TrainerReady

LAST_STEP = 300
BEGINNING = "beginning"


@dataclass
class Disk:
    """Checkpoints: the state that each has, by step."""

    files: dict[int, str] = field(default_factory=dict)


class Answer:
    """What a call to all ranks of a group comes to."""

    def __init__(self, answers: Callable[[], list[Any]]) -> None:
        self._answers = answers

    def as_asyncio(self) -> asyncio.Future[dict[int, Any]]:
        return asyncio.ensure_future(self._answer())

    async def _answer(self) -> dict[int, Any]:
        return dict(enumerate(self._answers()))


class FakeTrainers:
    """A trainer for each disk; each has a state, and a step."""

    def __init__(self, *disks: Disk) -> None:
        self.disks = disks
        self.states = [BEGINNING for _ in disks]
        self.step = 0
        self.is_dead = False
        for name in ("setup", "fingerprint", "take_over", "save", "leave", "judge", "evaluate"):
            setattr(self, name, SimpleNamespace(call=self._call_of(getattr(self, f"on_{name}"))))

    def _call_of(self, answer: Callable[..., list[Any]]) -> Callable[..., Answer]:
        def call(*arguments: Any) -> Answer:
            def answers() -> list[Any]:
                if self.is_dead:
                    raise GroupLost("it is dead")
                return answer(*arguments)

            return Answer(answers)

        return call

    def slice(self, ranks: int) -> FakeTrainers:
        return self

    def on_setup(self, path: Path | None) -> list[TrainerReady]:
        ready = []
        for rank, disk in enumerate(self.disks):
            step = 0 if path is None else int(path.stem)
            if step not in disk.files:
                step = max(disk.files, default=0)
            self.states[rank] = disk.files.get(step, BEGINNING)
            ready.append(TrainerReady(step, 1, 1, "host", path, ()))
        return ready

    def on_fingerprint(self) -> list[str]:
        return list(self.states)

    def on_take_over(self, finished: FakeTrainers) -> list[None]:
        if finished.is_dead:
            raise GroupLost("its source is dead")
        self.states = list(finished.states)
        return [None for _ in self.states]

    def on_save(self, history: Any, is_best: bool = False) -> list[Path]:
        self.disks[0].files[self.step] = self.states[0]
        return [Path(f"/runs/{self.step}.pt")]

    def on_leave(self) -> list[None]:
        return [None for _ in self.states]

    def on_judge(self, history: Any, extras: Any) -> list[EvaluationVerdict]:
        return [EvaluationVerdict(is_best=False)]

    def on_evaluate(self) -> list[Share]:
        return [Share({"loss": (1.0, 1.0)})]


class Story:
    """Groups of fakes, of which some have finished, and what is told of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *disks: tuple[Disk, ...]) -> None:
        self.told: list[Any] = []
        self.book = EventLog(len(disks), LAST_STEP, SimpleNamespace(send=self.told.append))  # type: ignore[arg-type]
        monkeypatch.setattr(EventLog, "written", self._nothing)
        monkeypatch.setattr(Group, "spawn", self._spawn)
        self.disks = disks
        config = FaultTolerantConfig(num_groups=len(disks), num_steps=LAST_STEP)
        self.groups = Groups(
            config, ReplicaTrainer,
            SimpleNamespace(  # type: ignore[arg-type]
                size=lambda: len(disks),
                slice=lambda hosts: SimpleNamespace(_sync_hosts=lambda: []),
            ),
            procs_per_host=1, checkpoint_dir=Path("/runs"), event_log=self.book,
            keeper=SimpleNamespace(number=0),  # type: ignore[arg-type]
        )  # fmt: skip
        self.evaluations = Evaluations(self.groups, config)
        for group in self.groups.all:
            group.restarts.next_wait_seconds = self._no_wait  # type: ignore[method-assign]
        self.num_starts_left = 30

    async def _nothing(self, *_: Any) -> None: ...

    def _no_wait(self, now: float) -> float | None:
        self.num_starts_left -= 1
        return 0.0 if self.num_starts_left >= 0 else None

    def _spawn(self, *_: Any) -> None:
        raise AssertionError("replaced below")

    def finish(self, number: int, state: str = "learned") -> FakeTrainers:
        """Have a group make all steps."""
        group = self.groups.all[number]
        group.trainers = trainers = FakeTrainers(*self.disks[number])
        trainers.states = [state for _ in trainers.states]
        trainers.step = group.step = LAST_STEP
        group.has_finished = True
        self.book.compare(number, LAST_STEP, trainers.states)
        return trainers

    def end(self, between: Callable[[], None] = lambda: None) -> GroupsOutcome:
        async def end() -> GroupsOutcome:
            checkpoint = await save_the_end(self.groups, LAST_STEP)
            assert checkpoint is not None
            between()
            return await conclude(self.groups, self.evaluations, LAST_STEP, checkpoint, False)

        return asyncio.run(end())

    def texts(self, kind: str) -> list[str]:
        return [one.text for one in self.told if isinstance(one, RunEvent) and one.kind == kind]


@pytest.fixture
def tell(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Story]:
    def tell(*disks: tuple[Disk, ...]) -> Story:
        story = Story(monkeypatch, *disks)

        def spawn(group: Group, *_: Any, **more: Any) -> None:
            group.num_starts += 1
            group.trainers = FakeTrainers(*story.disks[group.number])
            group.trials = SimpleNamespace(
                report=SimpleNamespace(call=lambda: Answer(lambda: [None]))
            )

        monkeypatch.setattr(Group, "spawn", spawn)
        return story

    return tell


def test_a_late_group_gets_the_checkpoint_where_its_host_has_it(
    tell: Callable[..., Story],
) -> None:
    shared = Disk()
    story = tell((shared,), (shared,))
    story.finish(0)
    outcome = story.end()
    assert outcome.fingerprints == {0: "learned", 1: "learned"}
    assert story.texts("adopted")[0].endswith("has taken over /runs/300.pt")


@pytest.mark.parametrize("there", [{}, {50: "half"}, {LAST_STEP: "of a run before"}])
def test_a_late_group_on_a_disk_of_its_own_gets_what_the_others_have(
    tell: Callable[..., Story], there: dict[int, str]
) -> None:
    story = tell((Disk(),), (Disk(there),))
    story.finish(0)
    outcome = story.end()
    assert outcome.fingerprints == {0: "learned", 1: "learned"}
    assert "has taken over the state of group 0" in story.texts("adopted")[0]


def test_ranks_of_a_late_group_may_have_disks_that_differ(tell: Callable[..., Story]) -> None:
    first, second = Disk(), Disk()
    story = tell((first, second), (second, first))
    story.finish(0)
    assert story.end().fingerprints == {0: "learned", 1: "learned"}


def test_of_those_that_finished_the_most_are_right(tell: Callable[..., Story]) -> None:
    story = tell((Disk(),), (Disk(),), (Disk(),), (Disk(),))
    story.finish(0)
    story.finish(2)
    story.finish(3)
    assert set(story.end().fingerprints.values()) == {"learned"}
    assert len(story.texts("adopted")) == 1


def test_a_group_that_nobody_can_bring_up_to_date_is_given_up(tell: Callable[..., Story]) -> None:
    story = tell((Disk(),), (Disk(),))
    finished = story.finish(0)

    def die() -> None:
        finished.is_dead = True

    outcome = story.end(die)
    assert 1 not in outcome.fingerprints
    assert story.groups.all[1].is_given_up
    assert story.num_starts_left == 28  # The others are not kept waiting for its whole budget.


@pytest.mark.parametrize(
    ("left", "step"), [({}, 0), ({50: "half"}, 50), ({50: "half", 100: "more"}, 100)]
)
def test_what_is_saved_is_what_a_host_that_is_left_has(
    tell: Callable[..., Story], left: dict[int, str], step: int
) -> None:
    story = tell((Disk(),), (Disk(left),))
    groups = story.groups
    groups.saved_step, groups.saved_path = 100, Path("/runs/100.pt")

    async def begin() -> None:
        for group in groups.all:
            await groups.start(group)
        groups.begin_together(groups.all)

    asyncio.run(begin())
    assert groups.saved_step == groups.newest_step() == step
    told = [text for text in story.texts("skipped") if "no host that is left has" in text]
    assert len(told) == (step < 100)


class OwnDisk(ReplicaTrainer):
    """Sees the checkpoints of its own group only, as on a host whose disk is its own."""

    def __init__(self, config: FaultTolerantConfig, folder: Path, seats: list[Any]) -> None:
        super().__init__(config, folder, seats)
        self.checkpoint_dir = folder / self.seat.name.partition(",")[0]

    def resume(self, path: Path | None) -> tuple[Path | None, tuple[str, ...]]:
        return super().resume(path and self.checkpoint_dir / path.name)


class Silent:
    def message(self, text: str) -> None: ...

    def alarm(self, text: str) -> None: ...

    def phase(self, text: str) -> None: ...

    def saved(self, step: int) -> None: ...

    def metrics(self, step: int, num_steps: int, values: Any) -> None: ...


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_group_that_dies_in_the_last_step_ends_right_without_a_shared_disk(
    tmp_path: Path,
) -> None:
    config = FaultTolerantConfig(
        hidden_size=16, num_steps=30, checkpoint_every=10, chaos="kill@30 group=1 when=commit",
        collective_timeout_seconds=5.0, join_timeout_seconds=5.0,
    )  # fmt: skip
    record = Record(tmp_path / "run", Silent(), procs_per_host=2)
    outcome = train_groups(OwnDisk, config, this_host(), record)
    assert len(outcome.fingerprints) == 2
    lines = (tmp_path / "run/events.jsonl").read_text().splitlines()
    adopted = [event for event in map(json.loads, lines) if event["kind"] == "adopted"]
    assert [event["group"] for event in adopted] == [1]
    assert "the state of group 0" in adopted[0]["text"]
