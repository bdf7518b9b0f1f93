from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from monarch.core.supervision import (
    ROOT,
    Effect,
    FailActor,
    Fault,
    StopMesh,
    Supervise,
    Supervision,
)
from monarch.errors import MeshFailure


def death(uid: str) -> MeshFailure:
    return MeshFailure(uid, (), "it was killed", "proc", "host", ("last words",))


@pytest.fixture
def machine() -> Supervision:
    machine = Supervision()
    machine.owned(ROOT, "P", "procs", "proc", ["p0", "p1"])
    machine.owned(ROOT, "A", "trainer", "actor", ["p0", "p1"])
    return machine


def test_a_dead_proc_is_reported_once_with_rank_reason_and_last_words(machine: Supervision) -> None:
    effects = machine.proc_down("p1", death("p1"))
    assert effects == [
        Fault(MeshFailure("procs", (1,), "it was killed", "proc", "host", ("last words",)))
    ]
    assert machine.proc_down("p1", death("p1")) == []
    assert machine.actor_failed("A", 1, "late news") == []


def test_an_actor_that_failed_before_its_proc_died_is_another_cause(machine: Supervision) -> None:
    assert machine.actor_failed("A", 1, "raised") == [
        Fault(MeshFailure("trainer", (1,), "raised", "actor"))
    ]
    assert [type(e) for e in machine.proc_down("p1", death("p1"))] == [Fault]


def test_what_was_stopped_does_not_fail(machine: Supervision) -> None:
    machine.stopped("P")
    machine.stopped("A")
    assert machine.proc_down("p0", death("p0")) == []
    assert machine.actor_failed("A", 0, "raised") == []


def test_members_that_were_stopped_do_not_fail_and_the_others_do(machine: Supervision) -> None:
    assert not machine.members_stopped("A", ["p0"])
    assert machine.actor_failed("A", 0, "raised") == []
    assert [type(e) for e in machine.actor_failed("A", 1, "raised")] == [Fault]
    assert machine.members_stopped("A", ["p1"])
    assert machine.members_stopped("unknown", ["p1"])


def test_actors_on_procs_of_somebody_else_are_one_report_too() -> None:
    machine = Supervision()
    machine.owned("me", "A", "one", "actor", ["p0"])
    machine.owned("me", "B", "two", "actor", ["p0"])
    assert len(machine.proc_down("p0", death("p0"))) == 1


def test_a_proc_that_nobody_here_owns_is_nobodys_failure(machine: Supervision) -> None:
    assert machine.proc_down("stranger", death("stranger")) == []
    assert machine.actor_failed("stranger", 0, "raised") == []


def test_unhandled_climbs_handled_does_not(machine: Supervision) -> None:
    machine.owned("A", "C", "child", "actor", ["p9"])
    (ask,) = machine.actor_failed("C", 0, "raised")
    assert isinstance(ask, Supervise)
    assert ask.owner == "A"
    assert machine.supervised("A", ask.failure, True) == []
    assert machine.supervised("A", ask.failure, False) == [FailActor("A", ask.failure)]


def test_what_an_actor_owns_ends_with_it(machine: Supervision) -> None:
    machine.owned("A", "C", "child", "actor", ["p9"])
    machine.owned("A", "Q", "child procs", "proc", ["p8"])
    assert machine.actor_ended("A") == [StopMesh("C"), StopMesh("Q")]
    assert machine.proc_down("p8", death("p8")) == []
    assert machine.actor_failed("C", 0, "raised") == []
    assert machine.meshes_of(ROOT) == ["P", "A"]


@dataclass
class ModelMesh:
    owner: str
    kind: str
    procs: list[str]
    dead: set[int] = field(default_factory=set)


class SupervisionRules(RuleBasedStateMachine):
    """One process: its root, its actors, what they own, and the questions that are open."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = Supervision()
        self.meshes: dict[str, ModelMesh] = {}
        self.alive = [ROOT]
        self.procs: list[str] = []
        self.open: list[Supervise] = []
        self.count = 0

    def _new(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def _own(self, owner: str, kind: str, procs: list[str]) -> str:
        uid = self._new(kind)
        self.meshes[uid] = ModelMesh(owner, kind, procs)
        self.machine.owned(owner, uid, uid, kind, procs)
        return uid

    @rule(data=st.data(), size=st.integers(1, 3))
    def spawn_procs(self, data: st.DataObject, size: int) -> None:
        procs = [self._new("p") for _ in range(size)]
        self.procs += procs
        self._own(data.draw(st.sampled_from(self.alive)), "proc", procs)

    @precondition(lambda self: self.procs)
    @rule(data=st.data())
    def spawn_actors(self, data: st.DataObject) -> None:
        procs = data.draw(st.lists(st.sampled_from(self.procs), min_size=1, unique=True))
        self._own(data.draw(st.sampled_from(self.alive)), "actor", procs)

    @precondition(lambda self: len(self.alive) < 5)
    @rule(data=st.data())
    def spawn_an_actor_here(self, data: st.DataObject) -> None:
        self.alive.append(self._own(data.draw(st.sampled_from(self.alive)), "actor", ["here"]))

    @precondition(lambda self: self.procs)
    @rule(data=st.data())
    def proc_dies(self, data: st.DataObject) -> None:
        uid = self.procs.pop(data.draw(st.integers(0, len(self.procs) - 1)))
        told: dict[str, set[str]] = {}
        for name, mesh in self.meshes.items():
            if uid in mesh.procs and mesh.procs.index(uid) not in mesh.dead:
                mesh.dead.add(mesh.procs.index(uid))
                told.setdefault(mesh.owner, set()).add(name)
        effects = self.machine.proc_down(uid, death(uid))
        self._check_told(effects, told)

    @precondition(lambda self: self._actor_meshes())
    @rule(data=st.data())
    def actor_fails(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(self._actor_meshes()))
        rank = data.draw(st.integers(0, len(self.meshes[uid].procs) - 1))
        self._actor_fails(uid, rank)

    def _actor_fails(self, uid: str, rank: int) -> None:
        mesh = self.meshes.get(uid)
        is_fresh = mesh is not None and rank not in mesh.dead
        if mesh is not None:
            mesh.dead.add(rank)
        if uid in self.alive:
            self._actor_ends(uid)
        effects = self.machine.actor_failed(uid, rank, "raised")
        self._check_told(effects, {mesh.owner: {uid}} if mesh and is_fresh else {})

    def _actor_ends(self, uid: str) -> None:
        self.alive.remove(uid)
        owned = {name for name, mesh in self.meshes.items() if mesh.owner == uid}
        effects = self.machine.actor_ended(uid)
        assert set(effects) == {StopMesh(name) for name in owned}
        for name in owned:
            del self.meshes[name]
            if name in self.alive:
                self._actor_ends(name)

    @precondition(lambda self: len(self.alive) > 1)
    @rule(data=st.data())
    def actor_stops(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(self.alive[1:]))
        self.machine.stopped(uid)
        self.meshes.pop(uid, None)
        self._actor_ends(uid)

    @precondition(lambda self: self.meshes)
    @rule(data=st.data())
    def mesh_is_stopped(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.meshes)))
        self.machine.stopped(uid)
        del self.meshes[uid]
        if uid in self.alive:
            self._actor_ends(uid)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), handled=st.booleans())
    def verdict(self, data: st.DataObject, handled: bool) -> None:
        ask = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        effects = self.machine.supervised(ask.owner, ask.failure, handled)
        if handled or ask.owner not in self.alive:
            assert effects == []
            return
        assert effects == [FailActor(ask.owner, ask.failure)]
        self._actor_fails(ask.owner, 0)

    def _actor_meshes(self) -> list[str]:
        return sorted(uid for uid, mesh in self.meshes.items() if mesh.kind == "actor")

    def _check_told(self, effects: list[Effect], told: dict[str, set[str]]) -> None:
        """One report to each owner that lost something; to none else, nor to the dead."""
        heard: list[tuple[str, MeshFailure]] = []
        for effect in effects:
            assert isinstance(effect, Fault | Supervise)
            heard.append((ROOT if isinstance(effect, Fault) else effect.owner, effect.failure))
            if isinstance(effect, Supervise):
                self.open.append(effect)
        assert sorted(owner for owner, _ in heard) == sorted(told)
        for owner, failure in heard:
            lost = {name: self.meshes[name].kind for name in told[owner]}
            assert failure.mesh_name in lost
            assert lost[failure.mesh_name] == ("proc" if "proc" in lost.values() else "actor")
            assert failure.kind == lost[failure.mesh_name]

    @invariant()
    def ownership_agrees(self) -> None:
        for owner in self.alive:
            owned = {name for name, mesh in self.meshes.items() if mesh.owner == owner}
            assert set(self.machine.meshes_of(owner)) == owned


SupervisionRules.TestCase.settings = settings(
    max_examples=80, stateful_step_count=40, deadline=None
)
TestSupervision = SupervisionRules.TestCase
