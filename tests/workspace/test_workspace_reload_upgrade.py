"""`actors.upgrade(NewClass)`: new versions of classes that no process could import."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from monarch.actor import Actor, ActorMesh, ProcMesh, current_rank, endpoint, this_host
from monarch.errors import ReloadRefused
from tests.actors import Echo
from tests.workspace.conftest import Project

RATE = 1


def _counter() -> type:
    class Counter(Actor):
        limit = 10

        def __init__(self, start: int) -> None:
            self.count = start
            self.told: list[Any] = []

        @endpoint
        def step(self) -> Any:
            self.count += 1
            return self.count, self.word()

        def word(self) -> str:
            return "old"

        @endpoint
        def doomed(self) -> str:
            return "here"

        @endpoint
        def stored(self) -> Any:
            self.method = self.word
            return self.method()

        @endpoint
        def call_stored(self) -> Any:
            return self.method()

    return Counter


def _helper(count: int) -> int:
    return count * 1000


def _new_counter() -> type:
    class Counter(Actor):
        limit = 20

        def __init__(self, start: int) -> None:
            self.count = start * 2
            self.told = []

        def __reload__(self, change: Any) -> None:
            self.told.append((self.word(), change.undone))

        @endpoint
        def step(self) -> Any:
            self.count += 1
            return _helper(self.count), self.word()

        def word(self) -> str:
            return f"new {self.limit}"

        @endpoint
        def fresh(self, by: int = 2) -> Any:
            return self.count * by, self.told, isinstance(self, type(self))

        @endpoint
        def call_stored(self) -> Any:
            return self.method()  # type: ignore[attr-defined]

        @endpoint
        def isa(self, other: type) -> Any:
            return isinstance(self, other)

    return Counter


@pytest.fixture
def procs() -> ProcMesh:
    return this_host().spawn_procs({"gpus": 2}, name="trainers")


@pytest.fixture
def counters(procs: ProcMesh) -> Any:
    made: Any = procs.spawn("counters", _counter(), 5)
    assert _values(made.step) == [(6, "old")] * 2
    return made


def _values(endpoint: Any, *args: Any) -> list[Any]:
    return list(endpoint.call(*args).get(timeout=60).values())


def test_live_actors_run_the_new_class(procs: ProcMesh, counters: ActorMesh[Any]) -> None:
    assert _values(counters.stored) == ["old"] * 2
    new = _new_counter()
    assert asyncio.run(_awaited(counters, new)) is None
    assert _values(counters.step) == [(7000, "new 20")] * 2
    assert _values(counters.fresh, 3) == [(21, [("new 20", False)], True)] * 2
    assert _values(counters.call_stored) == ["new 20"] * 2
    with pytest.raises(AttributeError, match="doomed"):
        counters.doomed
    # What the mesh's class, and the new one, make from now on.
    for cls in (new, counters._ref.cls):
        later: Any = procs.spawn("later", cls, 5)
        assert _values(later.step) == [(11000, "new 20")] * 2
        later.stop().get(timeout=30)
    assert _values(counters.isa, new) == [True, True]
    assert new.__init__.__globals__ is globals(), "the author's class is as it was"


async def _awaited(counters: Any, new: type) -> Any:
    return await counters.upgrade(new)


@pytest.mark.long
def test_again_and_again_with_calls_under_way(counters: ActorMesh[Any]) -> None:
    calls = [counters.step.call() for _ in range(20)]
    first = counters.upgrade(_new_counter())
    calls += [counters.step.call() for _ in range(20)]
    second = counters.upgrade(_with_word("newest"))
    first.get(timeout=30)
    second.get(timeout=30)
    words = [list(call.get(timeout=30).values()) for call in calls]
    assert all(one[1] == other[1] for one, other in words), "two ranks ran different code"
    assert words[0][0][1] == "old"
    assert _values(counters.step)[0][1] == "newest"


def _with_word(word: str) -> type:
    class Counter(Actor):
        def __init__(self, start: int) -> None:
            self.count = start

        @endpoint
        def step(self) -> Any:
            self.count += 1
            return self.count, word

    return Counter


def test_a_slice_changes_alone(counters: ActorMesh[Any]) -> None:
    counters.slice(gpus=0).upgrade(_with_word("mine")).get(timeout=30)
    assert [word for _, word in _values(counters.step)] == ["mine", "old"]


def test_a_rank_that_refuses_puts_all_back(counters: ActorMesh[Any]) -> None:
    class Counter(Actor):
        @endpoint
        def step(self) -> Any:
            return "never"

        def __reload__(self, change: Any) -> None:
            if current_rank().rank == 1:
                raise ValueError("not with me")

    with pytest.raises(ReloadRefused, match="not with me") as caught:
        counters.upgrade(Counter).get(timeout=30)
    assert "trainers 1" in str(caught.value)
    assert "all ranks run the old class" in str(caught.value)
    assert _values(counters.step) == [(7, "old")] * 2
    counters.upgrade(_with_word("better")).get(timeout=30)
    assert _values(counters.step) == [(8, "better")] * 2


def test_layouts_that_differ(procs: ProcMesh, counters: ActorMesh[Any]) -> None:
    class Counter(Actor):
        __slots__ = ("extra",)

        @endpoint
        def step(self) -> Any:
            return "never"

    with pytest.raises(ReloadRefused, match="__slots__"):
        counters.upgrade(Counter).get(timeout=30)
    assert _values(counters.step) == [(7, "old")] * 2


def test_what_is_no_new_version(procs: ProcMesh, counters: ActorMesh[Any]) -> None:
    class Other(Actor):
        @endpoint
        def step(self) -> Any: ...

    with pytest.raises(ValueError, match=r"actors of .*Counter, and .*Other is another class"):
        counters.upgrade(Other)
    with pytest.raises(TypeError, match="takes the new class"):
        counters.upgrade(3)
    echo: Any = procs.spawn("echo", Echo)
    with pytest.raises(ValueError, match="sync_workspace"):
        echo.upgrade(type("Echo", (Actor,), {}))

    class Counter(Actor):
        @endpoint
        async def step(self) -> Any: ...

    with pytest.raises(ValueError, match="were `def` and are `async def` now"):
        counters.upgrade(Counter)
    assert _values(counters.step) == [(7, "old")] * 2


SCRIPT = """
from monarch.actor import Actor, endpoint, this_host

RATE = 1

class Base(Actor):
    def base(self):
        return "base 1"

class Trainer(Base):
    def __init__(self):
        self.steps = 0

    @endpoint
    async def step(self):
        self.steps += RATE
        return self.steps, self.base(), super().base()

procs = this_host().spawn_procs({"gpus": 2})
trainers = procs.spawn("trainers", Trainer)
print("first", list(trainers.step.call().get().values()), flush=True)

# As when a notebook's cell is run again.
RATE = 10

class Trainer(Base):
    def __init__(self):
        self.steps = 0

    @endpoint
    async def step(self):
        self.steps += RATE
        return self.steps, self.base(), super().base(), type(self) is Trainer

trainers.upgrade(Trainer).get()
print("second", list(trainers.step.call().get().values()), flush=True)

class Base(Actor):
    def base(self):
        return "base 2"

class Trainer(Base):
    def __init__(self):
        self.steps = 0

    @endpoint
    async def step(self):
        self.steps += RATE
        return self.steps, self.base(), super().base(), type(self) is Trainer

trainers.upgrade(Trainer).get()
print("third", list(trainers.step.call().get().values()), flush=True)
more = procs.spawn("more", Trainer)
print("fourth", list(more.step.call().get().values()), flush=True)
"""


def test_a_script_s_class_and_its_globals(program: Any) -> None:
    run = program(SCRIPT)
    assert run.line("first") == str([(1, "base 1", "base 1")] * 2)
    assert run.line("second") == str([(11, "base 1", "base 1", True)] * 2)
    assert run.line("third") == str([(21, "base 2", "base 2", True)] * 2)
    assert run.line("fourth") == str([(10, "base 2", "base 2", True)] * 2)
    assert run.wait() == 0


EDITED_SCRIPT = """
from pathlib import Path
from monarch.actor import Actor, endpoint, this_host
from monarch_sync import Workspace
from stepper import Stepper

RATE = 1

class Trainer(Actor):
    def __init__(self):
        self.steps = 0

    @endpoint
    def step(self):
        self.steps += 1
        return self.steps * RATE

if __name__ == "__main__":
    procs = this_host().spawn_procs({"gpus": 2})
    script = Path(__file__)
    workspace = Workspace(dirs={script.parent: ""})
    print("untold", procs.sync_workspace(workspace).get().notes, flush=True)
    procs.spawn("gone", type("Gone", (Actor,), {"__module__": "__main__"})).stop().get()
    procs.spawn("steppers", Stepper).initialized.get()
    trainers = procs.spawn("trainers", Trainer)
    print("first", trainers.step.call().get().values(), flush=True)
    script.write_text(script.read_text().replace("RATE = 1", "RATE = 10", 1))
    print("told", procs.sync_workspace(workspace).get().notes, flush=True)
    print("second", trainers.step.call().get().values(), flush=True)
    trainers.upgrade(Trainer).get()
    print("third", trainers.step.call().get().values(), flush=True)
"""


@pytest.mark.long
def test_a_push_tells_of_actors_of_a_script_that_was_edited(program: Any, project: Project) -> None:
    script = project.write("script.py", EDITED_SCRIPT)
    run = program(f"import os, sys; os.execv(sys.executable, [sys.executable, {str(script)!r}])")
    assert run.line("untold") == "[]"
    assert run.line("first") == "[1, 1]"
    told = run.line("told")
    assert "live actors of Trainer keep the code" in told
    assert "`await actors.upgrade(Trainer)`" in told
    assert "Gone" not in told
    assert "Stepper" not in told
    assert run.line("second") == "[2, 2]"
    assert run.line("third") == "[30, 30]"
    assert run.wait() == 0


@pytest.mark.long
def test_after_a_respawn_the_upgraded_class_is_made(project: Project) -> None:
    """A proc that gives way has the class that its mesh has by then, and the first arguments."""
    project.write("point.py", "class Point:\n    __slots__ = ('x',)\n")
    procs = this_host().spawn_procs({"gpus": 2}, name="trainers")
    assert project.sync(procs).ok
    notes = ["a"]

    class Holder(Actor):
        def __init__(self, notes: list[str]) -> None:
            import point

            self.point, self.notes = point.Point(), notes

        @endpoint
        def read(self) -> Any:
            return self.notes

        @endpoint
        def doomed(self) -> None: ...

    first = Holder

    class Holder(Actor):  # type: ignore[no-redef]
        def __init__(self, notes: list[str]) -> None:
            import point

            self.point, self.notes = point.Point(), [*notes, "new"]

        @endpoint
        def read(self) -> Any:
            return self.notes, "new"

    holders: Any = procs.spawn("holders", first, notes)
    assert _values(holders.read) == [["a"]] * 2
    notes.append("later")
    holders.upgrade(Holder).get(timeout=30)
    assert _values(holders.read) == [(["a"], "new")] * 2
    project.edit("point.py", "('x',)", "('x', 'y')")
    report = project.sync(procs)
    assert len(report.procs_respawned) == 2, report
    assert _values(holders.read) == [(["a", "new"], "new")] * 2
    with pytest.raises(AttributeError, match="doomed"):
        holders.doomed
