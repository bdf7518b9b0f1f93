"""Stand-ins for actors in tests, and who hears of new procs."""

from __future__ import annotations

from typing import Any

import pytest

from monarch._src.actor.mock import get_actor_class, patch_actor  # type: ignore[import-untyped]
from monarch._src.actor.proc_mesh import (  # type: ignore[import-untyped]
    get_active_proc_meshes,
    register_proc_mesh_spawn_callback,
    unregister_proc_mesh_spawn_callback,
)
from monarch.actor import Actor, ProcMesh, endpoint, this_host, this_proc

SECONDS = 60.0


class Real(Actor):
    @endpoint
    def name(self) -> str:
        return "real"


class Fake(Actor):
    @endpoint
    def name(self) -> str:
        return "fake"


class OtherFake(Actor):
    @endpoint
    def name(self) -> str:
        return "other"


class Boss(Actor):
    """Spawns beside itself, and in a proc of its own."""

    @endpoint
    def names(self) -> list[str]:
        near = this_proc().spawn("near", Real)
        procs = this_host().spawn_procs()
        far = procs.spawn("far", Real)
        found = [mesh.name.call_one().get(timeout=SECONDS) for mesh in (near, far)]
        procs.stop().get(timeout=SECONDS)
        return found


def name_of(mesh: Any) -> str:
    name: str = mesh.name.call_one().get(timeout=SECONDS)
    return name


@pytest.mark.long
def test_a_stand_in_is_spawned_also_by_actors() -> None:
    with patch_actor(Real, Fake) as cls:
        assert cls is Fake
        procs = this_host().spawn_procs()
        assert name_of(procs.spawn("one", Real)) == "fake"
        boss = procs.spawn("boss", Boss)
        assert boss.names.call_one().get(timeout=SECONDS) == ["fake", "fake"]
    assert get_actor_class(Real) is Real
    assert name_of(procs.spawn("later", Real)) == "real"
    procs.stop().get(timeout=SECONDS)


def test_a_bootstrap_of_the_programs_own_runs_too() -> None:
    def bootstrap() -> None:
        import os

        os.environ["STAGE"] = "set"

    class Reads(Actor):
        @endpoint
        def stage(self) -> str:
            import os

            return os.environ["STAGE"]

    with patch_actor(Real, Fake):
        procs = this_host().spawn_procs(bootstrap=bootstrap)
    assert procs.spawn("reads", Reads).stage.call_one().get(timeout=SECONDS) == "set"
    procs.stop().get(timeout=SECONDS)


def test_stand_ins_nest_and_end_with_an_error() -> None:
    with patch_actor(Real, Fake):
        with patch_actor(Real, OtherFake):
            assert get_actor_class(Real) is OtherFake
        assert get_actor_class(Real) is Fake
        with pytest.raises(RuntimeError, match="in the test"), patch_actor(Real, OtherFake):
            raise RuntimeError("in the test")
        assert get_actor_class(Real) is Fake
    assert get_actor_class(Real) is Real


async def stood_in() -> tuple[type, type]:
    @patch_actor(Real, Fake)
    async def inner() -> type:
        found: type = get_actor_class(Real)
        return found

    async with patch_actor(Real, OtherFake):
        return await inner(), get_actor_class(Real)


def test_a_decorator_of_both_kinds_of_functions() -> None:
    import asyncio

    @patch_actor(Real, Fake)
    def inner() -> type:
        found: type = get_actor_class(Real)
        return found

    assert inner() is Fake
    assert asyncio.run(stood_in()) == (Fake, OtherFake)
    assert get_actor_class(Real) is Real


def test_who_asked_hears_of_new_procs() -> None:
    heard: list[ProcMesh] = []
    register_proc_mesh_spawn_callback(heard.append)
    try:
        procs = this_host().spawn_procs()
    finally:
        unregister_proc_mesh_spawn_callback(heard.append)
    assert [mesh is procs for mesh in heard] == [True]
    this_host().spawn_procs().stop().get(timeout=SECONDS)
    assert len(heard) == 1
    assert [mesh is procs for mesh in get_active_proc_meshes() if mesh in heard] == [True]
    procs.stop().get(timeout=SECONDS)
    assert procs not in get_active_proc_meshes()
    with pytest.raises(ValueError):
        unregister_proc_mesh_spawn_callback(heard.append)
