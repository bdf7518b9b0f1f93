"""What other threads do to module-level state while code is tried, committed or given up."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest

from monarch_reload import ReloadError
from monarch_reload.live.differences import Difference, Glance, is_same
from monarch_reload.thread_switches import Turns
from tests.reload.conftest import Project

STATE = """
import collections
EVENTS = []
RECENT = collections.deque(maxlen=50_000)
SEEN = set()
BY_NAME = {}
ORDERED = collections.OrderedDict()
COUNTS = collections.Counter()
WINDOW = []
class Run:
    losses = []
    def __init__(self):
        self.steps = []
        self.by_name = {"train": []}
run = Run()
HOOKS = []
TABLE = {}
def hook(name):
    def add(function):
        HOOKS.append(function)
        TABLE[name] = function
        EVENTS.append(f"hook {name}")
        COUNTS["hooks"] += 1
        SEEN.add(f"hook {name}")
        return function
    return add
def note(what):
    EVENTS.append(what)
    RECENT.append(what)
    BY_NAME[what] = what
"""

USER = "from state_mod import hook, note, EVENTS, COUNTS\n@hook('a')\ndef a():\n    return 1\n"


class Hammer:
    """Threads that change the state of a module for as long as a test looks."""

    def __init__(self, state: ModuleType, num_threads: int = 2) -> None:
        self._state = state
        self._stop = threading.Event()
        self.num_done = [0] * num_threads
        self._threads = [
            threading.Thread(target=self._run, args=(place,)) for place in range(num_threads)
        ]

    def _run(self, place: int) -> None:
        state = self._state
        number = 0
        # A list must not outgrow what a reload looks at.
        while not self._stop.is_set() and number < 4000:
            entry = (place, number)
            state.EVENTS.append(entry)
            state.RECENT.append(entry)
            state.SEEN.add(entry)
            state.BY_NAME[entry] = number
            state.ORDERED[entry] = number
            state.COUNTS[place] += 1
            state.Run.losses.append(entry)
            state.run.steps.append(entry)
            state.run.by_name["train"].append(entry)
            state.WINDOW.append(entry)
            if number >= 10:
                state.WINDOW.remove((place, number - 10))
            number += 1
            self.num_done[place] = number
            self._stop.wait(0.0001)

    def wait_for_progress(self) -> None:
        """Until every thread has done something more, or all it had to do."""
        before = list(self.num_done)
        while any(
            thread.is_alive() and done == earlier
            for thread, done, earlier in zip(self._threads, self.num_done, before, strict=True)
        ):
            self._threads[0].join(0.001)

    @contextmanager
    def at_work(self) -> Iterator[Hammer]:
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join()

    def check(self) -> None:
        """Everything is there once, in the order of each thread."""
        state = self._state
        for place, done in enumerate(self.num_done):
            assert done
            every = [(place, number) for number in range(done)]
            lists = (state.EVENTS, state.RECENT, state.BY_NAME, state.ORDERED)
            more = (state.Run.losses, state.run.steps, state.run.by_name["train"])
            for holder in (*lists, *more):
                assert [one for one in holder if one[0] == place] == every
            assert {one for one in state.SEEN if one[0] == place} == set(every)
            assert state.COUNTS[place] == done
            assert [one for one in state.WINDOW if one[0] == place] == every[-10:]


def _loaded(project: Project) -> tuple[ModuleType, ModuleType]:
    state = project.load("state_mod", STATE)
    return state, project.load("user_mod", USER)


MORE = (
    "@hook('b')\ndef b():\n    return 2\n"
    "note('told')\nEVENTS.append('said')\nCOUNTS.update(said=1)\n"
)


@pytest.mark.long
def test_nothing_of_other_threads_is_lost_by_many_aborts(project: Project) -> None:
    state, user = _loaded(project)
    with Hammer(state).at_work() as hammer:
        for round_ in range(20):
            hammer.wait_for_progress()
            if round_ % 2:
                project.prepare(user_mod=USER + MORE, state_mod=STATE + "N = 1\n").abort()
            else:
                with pytest.raises(ReloadError):
                    project.prepare(user_mod=USER + MORE + "1 / 0\n")
            assert ([user.a], {"a": user.a}) == (state.HOOKS, state.TABLE)
    hammer.check()


def test_nothing_of_other_threads_is_lost_by_many_commits_and_undos(project: Project) -> None:
    state, user = _loaded(project)
    with Hammer(state).at_work() as hammer:
        for _ in range(10):
            hammer.wait_for_progress()
            prepared = project.prepare(user_mod=USER + MORE)
            hammer.wait_for_progress()
            report = prepared.commit()
            assert [user.a, user.b] == state.HOOKS
            assert {"hook b", "told", "said"} < set(state.EVENTS)
            hammer.wait_for_progress()
            report.undo()
            assert ([user.a], {"a": user.a}) == (state.HOOKS, state.TABLE)
    hammer.check()


def _meanwhile(project: Project, source: str, do: Callable[[], None]) -> None:
    """Prepare, and do something in another thread while the new code waits for it."""
    gate = sys.modules["gate_mod"]
    gate.GATE = threading.Event()

    def other() -> None:
        assert gate.REACHED.wait(30)
        do()
        gate.GATE.set()

    gate.REACHED = threading.Event()
    thread = threading.Thread(target=other)
    thread.start()
    try:
        prepared = project.prepare(user_mod=source)
    finally:
        thread.join()
    prepared.abort()


GATE = "def meet():\n    REACHED.set()\n    assert GATE.wait(30)\n"


@pytest.mark.parametrize("place", ["before", "inside", "after"])
def test_new_code_that_waits_takes_nothing_of_others_along(project: Project, place: str) -> None:
    project.load("gate_mod", GATE)
    state, user = _loaded(project)

    def work() -> None:
        state.EVENTS.append(1)
        state.WINDOW[:] = [3, 2, 1]
        state.TABLE["theirs"] = work
        state.SEEN.discard("hook a")
        state.RECENT.append(1)
        state.run.by_name["test"] = []
        state.COUNTS["n"] += 1

    waits = "import gate_mod\ngate_mod.meet()\n"
    inside = (
        "import gate_mod\ndef slow(f):\n    gate_mod.meet()\n    return hook('b')(f)\n"
        "@slow\ndef b():\n    return 2\n"
    )
    source = {"before": waits + MORE, "inside": inside, "after": MORE + waits}[place]
    _meanwhile(project, USER + source, work)
    # Plain values that come while a statement waits may be anybody's: they stay.
    strays = ["hook b"] if place == "inside" else []
    assert ["hook a", 1, *strays] == state.EVENTS
    assert set(strays) == state.SEEN
    assert {"hooks": 1 + len(strays), "n": 1} == state.COUNTS
    assert (state.HOOKS, list(state.TABLE), list(state.RECENT)) == ([user.a], ["a", "theirs"], [1])
    assert state.WINDOW == [3, 2, 1]
    assert state.run.by_name == {"train": [], "test": []}


def test_what_comes_between_prepare_and_commit_stays_in_its_order(project: Project) -> None:
    state, user = _loaded(project)
    state.EVENTS[:] = [1, 2]
    more = "@hook('b')\ndef b():\n    return 2\nEVENTS.insert(0, 'first')\nEVENTS.sort(key=str)\n"
    prepared = project.prepare(user_mod=USER + more)
    assert state.EVENTS == [1, 2]
    state.EVENTS.append(3)
    state.EVENTS.remove(1)
    state.TABLE["theirs"] = 1
    report = prepared.commit()
    assert [one for one in state.EVENTS if isinstance(one, int)] == [2, 3]
    assert set(state.EVENTS) == {2, 3, "first", "hook b"}
    assert {"a": user.a, "theirs": 1, "b": user.b} == state.TABLE
    state.EVENTS.append(4)
    state.TABLE["b"] = "theirs now"
    report.undo()
    assert state.EVENTS == [2, 3, 4]
    assert {"a": user.a, "theirs": 1, "b": "theirs now"} == state.TABLE


def test_a_value_that_running_code_assigned_since_stays(project: Project) -> None:
    project.load("gate_mod", GATE)
    state, _ = _loaded(project)
    source = "from state_mod import run\nrun.rate = 1\nimport gate_mod\ngate_mod.meet()\n"

    def work() -> None:
        state.run.rate = 2

    _meanwhile(project, USER + source, work)
    assert state.run.rate == 2


def test_a_turn_knows_whether_others_ran() -> None:
    turns = Turns()
    turns.freshen()
    begin = turns.moment()
    assert turns.undisturbed_since(begin, 0)
    go, done = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: go.wait(30) and done.set())
    thread.start()
    begin = turns.moment()
    go.set()
    assert done.wait(30)
    assert not turns.undisturbed_since(begin, 0)
    thread.join()


def test_the_first_glance_at_containers_made_before_it_looks_at_all() -> None:
    """Each was copied at a moment of its own, and another thread may have come in between."""
    glance = Glance([[1], {"a": 2}])
    assert glance.has_changed()
    assert not glance.has_changed()


def test_a_deque_is_not_emptied_to_be_changed() -> None:
    class Kept(deque):  # type: ignore[type-arg]
        def clear(self) -> None:
            pytest.fail("what another thread adds now would be lost")

    one, other = Kept([1, 2, 3, 4]), deque([1, 9, 4])
    difference = Difference.between(one, other)
    assert difference is not None
    difference.apply(one)
    assert list(one) == [1, 9, 4]


def test_what_changes_under_a_look_is_not_the_same() -> None:
    class Growing(dict):  # type: ignore[type-arg]
        def __iter__(self) -> Iterator[Any]:
            raise RuntimeError("dictionary changed size during iteration")

    assert not is_same({"a": 1}, Growing(a=1))
