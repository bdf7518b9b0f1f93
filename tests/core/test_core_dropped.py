"""Which meshes that a program has dropped are ended, and when."""

from __future__ import annotations

from monarch.core.dropped import DroppedMeshes


def test_two_looks_that_find_the_same_rest_end_a_mesh() -> None:
    meshes = DroppedMeshes(10.0)
    meshes.drop("a", 0.0)
    assert meshes.due(9.9) == []
    assert meshes.due(10.0) == ["a"]
    assert not meshes.unused("a", (("actor", 3),), 10.0)
    assert meshes.due(19.9) == []
    assert meshes.due(20.0) == ["a"]
    assert meshes.unused("a", (("actor", 3),), 20.0)
    assert meshes.due(1e9) == []


def test_what_has_run_in_between_begins_the_wait_anew() -> None:
    meshes = DroppedMeshes(10.0)
    meshes.drop("a", 0.0)
    assert not meshes.unused("a", (("actor", 3),), 10.0)
    assert not meshes.unused("a", (("actor", 4),), 20.0)
    assert meshes.unused("a", (("actor", 4),), 30.0)


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


def test_use_takes_back_what_an_earlier_look_has_found() -> None:
    meshes = DroppedMeshes(10.0)
    meshes.drop("a", 0.0)
    assert not meshes.unused("a", (), 10.0)
    meshes.in_use("a", 20.0)
    assert not meshes.unused("a", (), 40.0)
    assert meshes.unused("a", (), 50.0)


def test_a_look_that_did_not_see_everything_decides_nothing() -> None:
    meshes = DroppedMeshes(10.0)
    meshes.drop("a", 0.0)
    assert not meshes.unused("a", ("same",), 10.0)
    meshes.unclear("a", 20.0)
    assert meshes.due(29.0) == []
    assert meshes.unused("a", ("same",), 30.0)


def test_a_mesh_that_was_stopped_is_not_looked_at() -> None:
    meshes = DroppedMeshes(10.0)
    meshes.drop("a", 0.0)
    meshes.forget("a")
    meshes.forget("unknown")
    assert meshes.due(100.0) == []
    assert not meshes.unused("a", (), 100.0)


def test_a_collection_of_garbage_has_those_in_use_looked_at_again() -> None:
    meshes = DroppedMeshes(10.0)
    for mesh in ("in use", "unused", "new"):
        meshes.drop(mesh, 0.0 if mesh != "new" else 15.0)
    meshes.in_use("in use", 10.0)
    meshes.unused("unused", "done", 10.0)
    meshes.look_again(16.0)
    assert meshes.due(16.0) == ["in use"]
    assert not meshes.unused("in use", "done", 16.0)
    assert meshes.due(26.0) == ["in use", "unused", "new"]
