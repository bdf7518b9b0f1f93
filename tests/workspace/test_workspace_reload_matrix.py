"""The matrix of questions, on every rank of a mesh of 4 procs whose actors are in calls."""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from monarch.actor import Actor, HostMesh, ProcMesh, context, endpoint
from monarch.job import ProcessJob
from tests.reload import (
    edits_of_closures,
    edits_of_definitions,
    edits_of_files,
    edits_of_habits,
    edits_that_trip,
)
from tests.reload.matrix_cases import CASES, COMPILED, Case, Step, ask
from tests.support import wait_for
from tests.workspace.conftest import Project

_Texts = dict[tuple[Case, str], dict[str, str | None]]


class Prober(Actor):
    """Has the live objects of the cases."""

    def __init__(self) -> None:
        self.spaces: dict[str, dict[str, Any]] = {}

    @endpoint
    def ask(self, key: str, code: str) -> str:
        """What went wrong."""
        try:
            ask(code, self.spaces.setdefault(key, {}))
        except BaseException:
            return f"{key}\n{traceback.format_exc()}"
        return ""


WALKER = """
from monarch.actor import Actor, context, endpoint

import walked_a
import walked_b


class Walker(Actor):
    @endpoint
    def walk(self):
        seen = {walked_a.number() - walked_a.LEVEL for _ in range(50)}
        seen |= {walked_b.number() - walked_a.LEVEL for _ in range(50)}
        return seen, walked_a.LEVEL, context().generation
"""


class Traffic:
    """Calls that never stop; each of them must run whole on one code, the same on all ranks."""

    def __init__(self, walkers: Any) -> None:
        self._walkers = walkers
        self._is_over = threading.Event()
        self.faults: list[str] = []
        self.levels: list[int] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        under_way: list[Any] = []
        while not self._is_over.is_set() or under_way:
            if not self._is_over.is_set():
                under_way.append(self._walkers.walk.call())
            if len(under_way) > 8 or self._is_over.is_set():
                self._look(under_way.pop(0))

    def _look(self, call: Any) -> None:
        try:
            ranks = list(call.get(timeout=60).values())
        except Exception as error:
            self.faults.append(repr(error))
            return
        if any(seen != {0} for seen, _, _ in ranks):
            self.faults.append(f"a mixture of old and new: {ranks}")
        if len({rest for _, *rest in map(tuple, ranks) for rest in [tuple(rest)]}) != 1:
            self.faults.append(f"ranks that differ: {ranks}")
        self.levels.append(ranks[0][1])

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join(60)


@pytest.fixture
def job() -> Iterator[ProcessJob]:
    made = ProcessJob({"trainers": 2})
    yield made
    made.kill()


def _walked(level: int) -> dict[str, str]:
    body = f"    return {level}\n"
    return {
        "walked_a": f"LEVEL = {level}\ndef number():\n{body}",
        "walked_b": f"def number():\n{body}",
    }


@pytest.mark.long
def test_matrix(project: Project, hosts: HostMesh) -> None:
    procs = hosts.spawn_procs({"gpus": 2}, name="trainers")
    _walk_through(project, procs, CASES)


@pytest.mark.slow  # tests/reload has it in one process
def test_compiled_code_follows_on_all_ranks(project: Project, hosts: HostMesh) -> None:
    pytest.importorskip("torch")
    procs = hosts.spawn_procs({"gpus": 2}, name="trainers", preload=["torch", "torch._dynamo"])
    _walk_through(project, procs, [COMPILED])


@pytest.mark.long
@pytest.mark.timeout(900)  # 40 seconds of a processor: five minutes where ten want it
def test_edits_of_people(project: Project, hosts: HostMesh) -> None:
    procs = hosts.spawn_procs({"gpus": 2}, name="trainers")
    cases = [*edits_of_files.CASES, *edits_of_definitions.CASES]
    accepted = [case for case in cases if not any(step.refused for step in case.steps)]
    _walk_through(project, procs, accepted, ["narrow"])


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "edits",
    [edits_that_trip, edits_of_habits, edits_of_closures],
    ids=["trip", "habits", "closures"],
)
def test_edits_that_trip(project: Project, hosts: HostMesh, edits: Any) -> None:
    procs = hosts.spawn_procs({"gpus": 2}, name="trainers")
    accepted = [case for case in edits.CASES if not any(step.refused for step in case.steps)]
    _walk_through(project, procs, accepted, ["narrow"])


def _walk_through(
    project: Project,
    procs: ProcMesh,
    cases: Sequence[Case],
    kinds: Sequence[str] = ("narrow", "wide"),
) -> None:
    runs = [(case, kind) for case in cases for kind in kinds]
    texts: _Texts = {run: {**run[0].texts(run[1])} for run in runs}
    states: list[Mapping[str, str | None]] = [*texts.values(), _walked(1)]
    for files in states:
        for name, text in files.items():
            _put(project, name, text)
    project.write("walker.py", WALKER)
    assert project.sync(procs).ok
    probers: Any = procs.spawn("probers", Prober)
    walkers: Any = procs.spawn("walkers", project.load("walker").Walker)
    for case, kind in runs:
        _ask(probers, case, kind, case.before)
    traffic = Traffic(walkers)
    try:
        level = 1
        for number in range(max(len(case.steps) for case in cases)):
            refusals = [run for run in runs if _step(run, number, refused=True)]
            for case, kind in refusals:
                step = case.steps[number]
                _write(project, texts, case, kind, step)
                report = project.sync(procs)
                report.wait_for_audit()  # it may hold for a moment what a case wants to see go
                assert step.refused in str(report), report
                _ask(probers, case, kind, step.after)
                # Out of the way of the others.
                for name, text in case.texts(kind).items():
                    project.write(f"{name}.py", text)
            accepted = [run for run in runs if _step(run, number, refused=False)]
            for start in range(0, len(accepted), 6):
                part = accepted[start : start + 6]
                level += 1
                for name, text in _walked(level).items():
                    project.write(f"{name}.py", text)
                for case, kind in part:
                    _write(project, texts, case, kind, case.steps[number])
                report = project.sync(procs)
                report.wait_for_audit()  # it may hold for a moment what a case wants to see go
                assert report.ok, report
                assert report.num_procs >= 4
                for case, kind in part:
                    _ask(probers, case, kind, case.steps[number].after)
                wait_for(lambda level=level: level in traffic.levels, 30, "calls on the new code")
    finally:
        traffic.stop()
    assert traffic.faults == []
    assert traffic.levels == sorted(traffic.levels)
    assert context().generation >= level


def _step(run: tuple[Case, str], number: int, *, refused: bool) -> bool:
    steps = run[0].steps
    return number < len(steps) and bool(steps[number].refused) is refused


def _write(project: Project, texts: _Texts, case: Case, kind: str, step: Step) -> None:
    changed = case.edited(texts[case, kind], step, kind)
    texts[case, kind].update(changed)
    for name, text in changed.items():
        path = project.root.joinpath(*name.split(".")).with_suffix(".py")
        stat = path.stat() if step.keeps_mtime else None
        _put(project, name, text)
        if stat is not None:
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def _put(project: Project, name: str, text: str | None) -> None:
    path = name.replace(".", "/") + ".py"
    if text is None:
        (project.root / path).unlink()
    else:
        project.write(path, text)


def _ask(probers: Any, case: Case, kind: str, code: str) -> None:
    key = f"{kind} {case.name}"
    answers = list(probers.ask.call(key, case.own(code, kind)).get(timeout=60).values())
    assert answers == [""] * 4, "\n".join(filter(None, answers))
