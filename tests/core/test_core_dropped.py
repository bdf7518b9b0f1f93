"""Which meshes that a program has dropped are ended, and when."""

from __future__ import annotations

from monarch.core.dropped import DroppedMeshes, spread


def unused(meshes: DroppedMeshes, done: object, now: float, *names: str) -> list[str]:
    """Record a look that has found meshes (else "a") unused; return those that end."""
    return meshes.ends(dict.fromkeys(names or ["a"], done), {}, now)  # type: ignore[arg-type]


def test_two_looks_that_find_the_same_rest_end_a_mesh() -> None:
    meshes = DroppedMeshes(10.0)
    meshes.drop("a", 0.0)
    assert meshes.due(9.9) == []
    assert meshes.due(10.0) == ["a"]
    assert unused(meshes, (("actor", 3),), 10.0) == []
    assert meshes.due(14.9) == []
    assert meshes.due(15.0) == ["a"]
    assert unused(meshes, (("actor", 3),), 15.0) == ["a"]
    assert meshes.due(1e9) == []


def test_looks_that_come_close_together_count_as_one() -> None:
    meshes = DroppedMeshes(10.0)
    meshes.drop("a", 0.0)
    meshes.drop("b", 2.0)
    assert unused(meshes, (), 10.0) == []
    assert unused(meshes, (), 12.0) == []
    assert meshes.due(15.0) == ["a", "b"]
    assert unused(meshes, (), 15.0) == ["a"]


def test_many_are_looked_at_sooner() -> None:
    meshes = DroppedMeshes(10.0)
    meshes.drop("in use", 0.0)
    meshes.in_use("in use", 10.0)
    names = ["a", "b", "c", "d"]
    for name in names:
        meshes.drop(name, 11.0)
    assert meshes.due(12.9) == []
    assert meshes.due(13.0) == ["in use", *names]
    assert unused(meshes, (), 13.0, *names) == []
    assert unused(meshes, (), 13.9, *names) == []
    assert unused(meshes, (), 14.0, *names) == names
    # One is left, which keeps its own pace; the next has the usual one.
    meshes.drop("a", 14.0)
    assert meshes.due(23.9) == []
    assert meshes.due(24.0) == ["in use", "a"]


def test_what_has_run_in_between_begins_the_wait_anew() -> None:
    meshes = DroppedMeshes(10.0)
    meshes.drop("a", 0.0)
    assert unused(meshes, (("actor", 3),), 10.0) == []
    assert unused(meshes, (("actor", 4),), 20.0) == []
    assert unused(meshes, (("actor", 4),), 30.0) == ["a"]


def test_what_is_used_is_looked_at_less_and_less_often_but_within_the_hour() -> None:
    meshes = DroppedMeshes(10.0)
    meshes.drop("a", 0.0)
    now, waits = 10.0, []
    for _ in range(12):
        meshes.in_use("a", now)
        later = now
        while not meshes.due(later):
            later += 10.0
        waits.append(later - now)
        now = later
    assert waits[:4] == [20.0, 40.0, 80.0, 160.0]
    assert waits[-1] == 3600.0


def test_the_look_of_another_mesh_does_not_lengthen_the_wait() -> None:
    meshes = DroppedMeshes(10.0)
    meshes.drop("a", 0.0)
    meshes.in_use("a", 10.0)
    meshes.in_use("a", 15.0)
    assert meshes.due(30.0) == ["a"]


def test_use_takes_back_what_an_earlier_look_has_found() -> None:
    meshes = DroppedMeshes(10.0)
    meshes.drop("a", 0.0)
    assert unused(meshes, (), 10.0) == []
    meshes.in_use("a", 20.0)
    assert unused(meshes, (), 40.0) == []
    assert unused(meshes, (), 50.0) == ["a"]


def test_a_look_that_did_not_see_everything_decides_nothing() -> None:
    meshes = DroppedMeshes(10.0)
    meshes.drop("a", 0.0)
    assert unused(meshes, ("same",), 10.0) == []
    meshes.unclear(20.0)
    assert meshes.due(29.0) == []
    assert unused(meshes, ("same",), 30.0) == ["a"]


def test_a_mesh_ends_with_those_that_refer_to_it_or_after_them() -> None:
    meshes = DroppedMeshes(10.0)
    for mesh in ("store", "writer"):
        meshes.drop(mesh, 0.0)
    holds = {"writer": {"store"}, "store": {"writer"}}
    assert meshes.ends({"store": 1, "writer": 1}, holds, 10.0) == []
    # The writer has run something since: it is unused, but not known to rest yet.
    assert meshes.ends({"store": 1, "writer": 2}, holds, 15.0) == []
    assert sorted(meshes.ends({"store": 1, "writer": 2}, holds, 20.0)) == ["store", "writer"]


def test_what_is_reached_is_reached_through_others() -> None:
    holds = {"a": {"b"}, "b": {"c", "a"}, "d": {"e"}}
    assert spread(["a"], holds) == {"a", "b", "c"}
    assert spread([], holds) == set()


def test_a_mesh_that_was_stopped_is_not_looked_at() -> None:
    meshes = DroppedMeshes(10.0)
    meshes.drop("a", 0.0)
    meshes.forget("a")
    meshes.forget("unknown")
    assert meshes.due(100.0) == []
    assert unused(meshes, (), 100.0) == []


def test_a_collection_of_garbage_has_those_in_use_looked_at_again() -> None:
    meshes = DroppedMeshes(10.0)
    meshes.drop("in use", 0.0)
    meshes.drop("unused", 0.0)
    meshes.in_use("in use", 10.0)
    assert unused(meshes, "done", 10.0, "unused") == []
    assert meshes.due(14.0) == []
    meshes.look_again(14.0)
    assert meshes.due(14.0) == ["in use", "unused"]
    assert unused(meshes, "done", 14.0, "in use", "unused") == []
    assert sorted(unused(meshes, "done", 24.0, "in use", "unused")) == ["in use", "unused"]
