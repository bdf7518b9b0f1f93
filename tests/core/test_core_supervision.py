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
    StopMesh,
    Supervise,
    Supervision,
    UnhandledFailure,
)
from monarch.errors import MeshFailure


def death(uid: str) -> MeshFailure:
    return MeshFailure(uid, (), "it was killed", "proc", host="host", last_output=("last words",))


def down(machine: Supervision, *uids: str, cause: str = "") -> list[Effect]:
    """Procs die together."""
    return machine.procs_down({uid: death(uid) for uid in uids}, cause)


@pytest.fixture
def machine() -> Supervision:
    machine = Supervision()
    machine.owned(ROOT, "P", "procs", "proc", ["p0", "p1"])
    machine.owned(ROOT, "A", "trainer", "actor", ["p0", "p1"])
    return machine


def test_a_dead_proc_is_reported_once_with_rank_reason_and_last_words(machine: Supervision) -> None:
    (fault,) = down(machine, "p1")
    assert isinstance(fault, UnhandledFailure)
    told = fault.failure
    assert (told.mesh_name, told.crashed_ranks, told.kind) == ("procs", (1,), "proc")
    assert (told.reason, told.host, told.last_output) == ("it was killed", "host", ("last words",))
    assert (told.members, told.lost_actors) == (("procs",), ("trainer",))
    assert down(machine, "p1") == []
    assert machine.actor_failed("A", 1, "late news") == []


def test_deaths_of_one_cause_are_one_report_for_each_mesh_of_procs(machine: Supervision) -> None:
    machine.owned(ROOT, "Q", "more procs", "proc", ["q0"])
    effects = down(machine, "p0", "p1", "q0", cause="the host")
    told = sorted((e.failure.mesh_name, e.failure.crashed_ranks) for e in effects)[::-1]
    assert told == [("procs", (0, 1)), ("more procs", (0,))]
    assert {e.failure.origin for e in effects} == {"the host"}


def test_who_owns_only_actors_is_told_of_as_few_meshes_as_name_every_dead_proc() -> None:
    machine = Supervision()
    machine.owned("me", "A", "both", "actor", ["p0", "p1"])
    machine.owned("me", "B", "first", "actor", ["p0"])
    machine.owned("me", "C", "third", "actor", ["p2"])
    effects = down(machine, "p0", "p1", "p2", cause="the host")
    told = [(e.failure.mesh_name, e.failure.crashed_ranks) for e in effects]
    assert told == [("both", (0, 1)), ("third", (0,))]


def test_the_root_hears_once_of_a_cause_that_reaches_it_on_two_ways(machine: Supervision) -> None:
    machine.owned(ROOT, "B", "borrower", "actor", ["elsewhere"])
    (fault,) = down(machine, "p0")
    # The borrower owned actors in that proc, and did not handle it.
    assert machine.actor_failed("B", 0, "", fault.failure) == []
    # What fails for a cause of its own is told, whatever else has failed.
    machine.owned(ROOT, "C", "other", "actor", ["elsewhere"])
    assert [type(e) for e in machine.actor_failed("C", 0, "raised")] == [UnhandledFailure]


def test_the_way_through_an_actor_may_be_the_shorter_one(machine: Supervision) -> None:
    machine.owned(ROOT, "B", "borrower", "actor", ["elsewhere"])
    cause = MeshFailure("lent", (0,), "it was killed", origin="p0")
    assert [type(e) for e in machine.actor_failed("B", 0, "", cause)] == [UnhandledFailure]
    assert down(machine, "p0") == []


def test_a_hook_that_raises_fails_its_owner_with_both_errors(machine: Supervision) -> None:
    machine.owned("A", "C", "child", "actor", ["p9"])
    (ask,) = machine.actor_failed("C", 0, "raised")
    assert isinstance(ask, Supervise)
    assert machine.supervised("A", ask.failure, True, "the hook raised") == [
        FailActor("A", ask.failure, "the hook raised")
    ]
    (fault,) = machine.actor_failed("A", 0, "the hook raised", ask.failure)
    report = fault.failure.report()
    assert report.index("the hook raised") < report.index("during the handling of another failure")
    assert "raised" in fault.failure.root_cause.reason
    assert fault.failure.root_cause.mesh_name == "child"


def test_an_actor_that_failed_before_its_proc_died_is_another_cause(machine: Supervision) -> None:
    (fault,) = machine.actor_failed("A", 1, "raised")
    assert isinstance(fault, UnhandledFailure)
    assert (fault.failure.mesh_name, fault.failure.reason) == ("trainer", "raised")
    assert [type(e) for e in down(machine, "p1")] == [UnhandledFailure]


def test_what_was_stopped_does_not_fail(machine: Supervision) -> None:
    machine.stopped("P")
    machine.stopped("A")
    assert down(machine, "p0") == []
    assert machine.actor_failed("A", 0, "raised") == []


def test_a_mesh_is_forgotten_with_its_last_member(machine: Supervision) -> None:
    machine.owned(ROOT, "B", "lonely", "actor", ["p1"])
    assert machine.forget_dead(["p1"]) == ["B"]
    assert machine.has_living("A", "p0")
    assert not machine.has_living("A", "p1")
    assert machine.forget_dead(["p0", "elsewhere"]) == ["P", "A"]
    assert machine.meshes_of(ROOT) == []


def test_members_that_were_stopped_do_not_fail_and_the_others_do(machine: Supervision) -> None:
    assert not machine.members_stopped("A", ["p0"])
    assert machine.actor_failed("A", 0, "raised") == []
    assert [type(e) for e in machine.actor_failed("A", 1, "raised")] == [UnhandledFailure]
    assert machine.members_stopped("A", ["p1"])
    assert machine.members_stopped("unknown", ["p1"])


def test_actors_on_procs_of_somebody_else_are_one_report_too() -> None:
    machine = Supervision()
    machine.owned("me", "A", "one", "actor", ["p0"])
    machine.owned("me", "B", "two", "actor", ["p0"])
    assert len(down(machine, "p0")) == 1


def test_a_proc_that_nobody_here_owns_is_nobodys_failure(machine: Supervision) -> None:
    assert down(machine, "stranger") == []
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
    assert down(machine, "p8") == []
    assert machine.actor_failed("C", 0, "raised") == []
    assert machine.meshes_of(ROOT) == ["P", "A"]


@dataclass
class Mesh:
    owner: str
    kind: str
    procs: list[str]
    dead: set[int] = field(default_factory=set)


class SupervisionRules(RuleBasedStateMachine):
    """A world of one process, kept beside the machine: actors, procs, hosts, and who owns what.

    The model knows only the tree and the rules in the module's docstring; it looks at nothing
    inside the machine. An actor mesh with one member that lives "here" is an actor that may own
    things itself.
    """

    def __init__(self) -> None:
        super().__init__()
        self.machine = Supervision()
        self.meshes: dict[str, Mesh] = {}
        self.alive = [ROOT]
        self.hosts: dict[str, list[str]] = {"h1": [], "h2": []}
        self.open: list[Supervise] = []
        self.faulted: set[str] = set()
        self.stopped: set[str] = set()
        self.count = 0

    @property
    def procs(self) -> list[str]:
        return [proc for procs in self.hosts.values() for proc in procs]

    def _new(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def _own(self, owner: str, kind: str, procs: list[str]) -> str:
        uid = self._new(kind)
        self.meshes[uid] = Mesh(owner, kind, procs)
        self.machine.owned(owner, uid, uid, kind, procs, lambda rank: f"{uid}[{rank}]")
        return uid

    @rule(data=st.data(), size=st.integers(1, 3))
    def spawn_procs(self, data: st.DataObject, size: int) -> None:
        procs = [self._new("p") for _ in range(size)]
        for proc in procs:
            data.draw(st.sampled_from(sorted(self.hosts.values(), key=str))).append(proc)
        self._own(data.draw(st.sampled_from(self.alive)), "proc", procs)

    @precondition(lambda self: self.procs)
    @rule(data=st.data())
    def spawn_actors(self, data: st.DataObject) -> None:
        procs = data.draw(st.lists(st.sampled_from(self.procs), min_size=1, unique=True))
        self._own(data.draw(st.sampled_from(self.alive)), "actor", procs)

    @precondition(lambda self: len(self.alive) < 6)
    @rule(data=st.data())
    def spawn_an_actor_here(self, data: st.DataObject) -> None:
        self.alive.append(self._own(data.draw(st.sampled_from(self.alive)), "actor", ["here"]))

    @precondition(lambda self: self.procs)
    @rule(data=st.data())
    def procs_die_together(self, data: st.DataObject) -> None:
        self._die(data.draw(st.lists(st.sampled_from(self.procs), min_size=1, unique=True)))

    @precondition(lambda self: self.procs)
    @rule(host=st.sampled_from(["h1", "h2"]))
    def host_is_lost(self, host: str) -> None:
        self._die(list(self.hosts[host]))

    def _die(self, uids: list[str]) -> None:
        for procs in self.hosts.values():
            procs[:] = [proc for proc in procs if proc not in uids]
        if not uids:
            return
        cause = self._new("cause")
        hit = {
            name: {p for r, p in enumerate(mesh.procs) if p in uids and r not in mesh.dead}
            for name, mesh in self.meshes.items()
        }
        for mesh in self.meshes.values():
            mesh.dead |= {r for r, p in enumerate(mesh.procs) if p in uids}
        effects = self.machine.procs_down({uid: death(uid) for uid in uids}, cause)
        self._check_deaths(effects, {name: lost for name, lost in hit.items() if lost}, cause)
        self._hear(effects)
        over = {
            name
            for name, mesh in self.meshes.items()
            if len(mesh.dead) == len(mesh.procs) and not set(mesh.procs).isdisjoint(uids)
        }
        assert set(self.machine.forget_dead(uids)) == over
        for name in over:
            del self.meshes[name]

    def _check_deaths(self, effects: list[Effect], hit: dict[str, set[str]], cause: str) -> None:
        """Each owner hears of every proc mesh it lost ranks of, and of every dead proc; no more."""
        heard: dict[str, list[MeshFailure]] = {}
        for effect in effects:
            assert isinstance(effect, UnhandledFailure | Supervise)
            owner = ROOT if isinstance(effect, UnhandledFailure) else effect.owner
            heard.setdefault(owner, []).append(effect.failure)
        assert set(heard) == {self.meshes[name].owner for name in hit}
        for owner, failures in heard.items():
            mine = {name: lost for name, lost in hit.items() if self.meshes[name].owner == owner}
            names = [failure.mesh_name for failure in failures]
            assert len(names) == len(set(names))
            assert set(names) <= set(mine)
            assert {n for n in mine if self.meshes[n].kind == "proc"} <= set(names)
            assert set().union(*(mine[n] for n in names)) == set().union(*mine.values())
            for failure in failures:
                mesh = self.meshes[failure.mesh_name]
                assert {mesh.procs[rank] for rank in failure.crashed_ranks} == mine[
                    failure.mesh_name
                ]
                assert failure.members == tuple(
                    f"{failure.mesh_name}[{rank}]" for rank in failure.crashed_ranks
                )
                assert (failure.kind, failure.origin) == (mesh.kind, cause)
            # An actor mesh is told of only for a proc that nothing else has named.
            for name in names:
                others = set().union(*(mine[n] for n in names if n != name))
                assert self.meshes[name].kind == "proc" or mine[name] - others

    @precondition(lambda self: self._actor_meshes())
    @rule(data=st.data())
    def actor_fails(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(self._actor_meshes()))
        rank = data.draw(st.integers(0, len(self.meshes[uid].procs) - 1))
        self._actor_fails(uid, rank, None)

    def _actor_fails(self, uid: str, rank: int, cause: MeshFailure | None) -> None:
        mesh = self.meshes.get(uid)
        is_fresh = mesh is not None and rank not in mesh.dead
        if mesh is not None:
            mesh.dead.add(rank)
        if uid in self.alive:
            self._actor_ends(uid)
        effects = self.machine.actor_failed(uid, rank, "raised", cause)
        is_known = cause is not None and cause.origin in self.faulted
        if mesh is None or not is_fresh or (mesh.owner == ROOT and is_known):
            assert effects == []
            return
        (effect,) = effects
        assert isinstance(effect, UnhandledFailure | Supervise)
        assert (ROOT if isinstance(effect, UnhandledFailure) else effect.owner) == mesh.owner
        assert (effect.failure.mesh_name, effect.failure.crashed_ranks) == (uid, (rank,))
        assert effect.failure.cause == cause
        if cause is not None:
            assert effect.failure.root_cause == cause.root_cause
            assert effect.failure.origin == cause.origin
        self._hear(effects)

    def _hear(self, effects: list[Effect]) -> None:
        """What is told now; the root must not have heard of the cause before."""
        origins = {e.failure.origin for e in effects if isinstance(e, UnhandledFailure)}
        assert not origins & self.faulted
        self.faulted |= origins
        self.open += [effect for effect in effects if isinstance(effect, Supervise)]
        assert all(e.owner in self.alive for e in effects if isinstance(e, Supervise))

    def _actor_ends(self, uid: str) -> None:
        """All that it owns, and what that owns, is told to stop, and nothing else is."""
        self.alive.remove(uid)
        owned = {name for name, mesh in self.meshes.items() if mesh.owner == uid}
        effects = self.machine.actor_ended(uid)
        assert set(effects) == {StopMesh(name) for name in owned}
        for name in owned:
            self.stopped.add(name)
            del self.meshes[name]
            if name in self.alive:
                self._actor_ends(name)

    @precondition(lambda self: len(self.alive) > 1)
    @rule(data=st.data())
    def actor_stops(self, data: st.DataObject) -> None:
        self._stop(data.draw(st.sampled_from(self.alive[1:])))

    @precondition(lambda self: self.meshes)
    @rule(data=st.data())
    def mesh_is_stopped(self, data: st.DataObject) -> None:
        self._stop(data.draw(st.sampled_from(sorted(self.meshes))))

    def _stop(self, uid: str) -> None:
        self.machine.stopped(uid)
        self.stopped.add(uid)
        self.meshes.pop(uid, None)
        if uid in self.alive:
            self._actor_ends(uid)

    @precondition(lambda self: self._actor_meshes())
    @rule(data=st.data())
    def part_of_a_mesh_is_stopped(self, data: st.DataObject) -> None:
        uid = data.draw(
            st.sampled_from([m for m in self._actor_meshes() if m not in self.alive] or [""])
        )
        if not uid:
            return
        mesh = self.meshes[uid]
        procs = data.draw(st.lists(st.sampled_from(mesh.procs), min_size=1, unique=True))
        mesh.dead |= {rank for rank, proc in enumerate(mesh.procs) if proc in procs}
        is_over = self.machine.members_stopped(uid, procs)
        assert is_over == (len(mesh.dead) == len(mesh.procs))
        if is_over:
            del self.meshes[uid]

    @precondition(lambda self: self.open)
    @rule(data=st.data(), verdict=st.sampled_from(["handled", "unhandled", "raised"]))
    def verdict(self, data: st.DataObject, verdict: str) -> None:
        ask = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        error = "the hook raised" if verdict == "raised" else ""
        effects = self.machine.supervised(ask.owner, ask.failure, verdict == "handled", error)
        if verdict == "handled" or ask.owner not in self.alive:
            assert effects == []
            return
        assert effects == [FailActor(ask.owner, ask.failure, error)]
        self._actor_fails(ask.owner, 0, ask.failure)

    def _actor_meshes(self) -> list[str]:
        return sorted(uid for uid, mesh in self.meshes.items() if mesh.kind == "actor")

    @invariant()
    def ownership_agrees(self) -> None:
        for owner in self.alive:
            owned = {name for name, mesh in self.meshes.items() if mesh.owner == owner}
            assert set(self.machine.meshes_of(owner)) == owned

    @invariant()
    def after_an_owner_ended_nothing_of_it_is_alive(self) -> None:
        assert all(mesh.owner in self.alive for mesh in self.meshes.values())
        for ended in self.stopped - set(self.meshes):
            assert self.machine.meshes_of(ended) == []


SupervisionRules.TestCase.settings = settings(
    max_examples=100, stateful_step_count=50, deadline=None
)
TestSupervision = SupervisionRules.TestCase
