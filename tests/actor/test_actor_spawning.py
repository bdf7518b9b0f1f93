"""How procs are started: what runs first in them, on which CPUs, by which program."""

from __future__ import annotations

import functools
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import (
    Actor,
    ActorError,
    BootstrapCommand,
    MeshFailure,
    Point,
    SupervisionError,
    context,
    current_rank,
    default_bootstrap_cmd,
    endpoint,
    this_host,
    this_proc,
)
from tests.actors import Async, Echo
from tests.support import wait_for

pytestmark = pytest.mark.in_a_world_too

SECONDS = 60.0


class Tells(Actor):
    """What the process was when the actor was made."""

    def __init__(self) -> None:
        self.flavour = os.environ.get("FLAVOUR")

    @endpoint
    def flavours(self) -> str | None:
        return self.flavour

    @endpoint
    def cpus(self) -> set[int]:
        return os.sched_getaffinity(0)

    @endpoint
    def environ(self, name: str) -> str | None:
        return os.environ.get(name)

    @endpoint
    def spawn_here(self) -> Any:
        return this_host().spawn_procs().spawn("inner", Tells)


# bootstrap=


def test_bootstrap_runs_in_each_proc_before_its_actors_and_knows_its_rank() -> None:
    def bootstrap() -> None:
        os.environ["FLAVOUR"] = f"{current_rank()['gpus']} of {current_rank().size('gpus')}"

    tells = this_host().spawn_procs({"gpus": 2}, bootstrap).spawn("tells", Tells)
    assert tells.flavours.call().get(timeout=SECONDS).values() == ["0 of 2", "1 of 2"]


def test_bootstrap_may_be_a_coroutine_function() -> None:
    async def bootstrap() -> None:
        os.environ["FLAVOUR"] = "async"

    tells = this_host().spawn_procs(bootstrap=bootstrap).spawn("tells", Tells)
    assert tells.flavours.call_one().get(timeout=SECONDS) == "async"


@pytest.mark.parametrize("cls", [Echo, Async])
def test_bootstrap_may_spawn_actors_in_its_proc_and_ask_them(cls: type[Actor]) -> None:
    def bootstrap() -> None:
        os.environ["FLAVOUR"] = this_proc().spawn("helper", cls).echo.call_one("asked").get()

    tells = this_host().spawn_procs(bootstrap=bootstrap).spawn("tells", Tells)
    assert tells.flavours.call_one().get(timeout=SECONDS) == "asked"


def test_what_bootstrap_captures_may_be_large() -> None:
    ballast = os.urandom(1 << 20)

    def bootstrap() -> None:
        os.environ["FLAVOUR"] = str(len(ballast))

    tells = this_host().spawn_procs({"gpus": 2}, bootstrap).spawn("tells", Tells)
    assert tells.flavours.call().get(timeout=SECONDS).values() == [str(1 << 20)] * 2


def test_a_name_in_the_place_of_bootstrap_is_refused() -> None:
    with pytest.raises(TypeError, match=r"bootstrap must be a function, not 'trainers'.*name="):
        this_host().spawn_procs({"gpus": 2}, "trainers")  # type: ignore[arg-type]


def _refuse(ranks: tuple[int, ...]) -> None:
    if current_rank().rank in ranks:
        raise ValueError("no such device")


def test_waiting_for_a_proc_whose_bootstrap_raises_raises_too() -> None:
    procs = this_host().spawn_procs({"gpus": 2}, functools.partial(_refuse, (1,)))
    for _ in range(2):
        with pytest.raises(ActorError, match=r"(?s)remote call failed.*no such device"):
            procs.initialized.get(timeout=SECONDS)


def test_actors_fail_where_bootstrap_has_raised(faults: list[MeshFailure]) -> None:
    procs = this_host().spawn_procs({"gpus": 2}, functools.partial(_refuse, (1,)), name="devices")
    tells = procs.spawn("tells", Tells)
    with pytest.raises(SupervisionError, match="no such device"):
        tells.flavours.call().get(timeout=SECONDS)
    wait_for(lambda: faults, SECONDS)
    assert "no such device" in faults[0].report()
    assert tells.slice(gpus=0).flavours.call_one().get(timeout=SECONDS) is None


_held: Any = None


class _Finalized:
    def __init__(self, path: str) -> None:
        self.path = path

    def __del__(self) -> None:
        Path(self.path).write_text("finalized")


class Holds(Actor):
    @endpoint
    def hold(self, path: str) -> None:
        global _held
        _held = _Finalized(path)


@pytest.mark.processes
def test_finalizers_of_what_modules_hold_run_when_procs_stop(tmp_path: Path) -> None:
    procs = this_host().spawn_procs()
    procs.spawn("holds", Holds).hold.call_one(str(tmp_path / "note")).get(timeout=SECONDS)
    assert not (tmp_path / "note").exists()
    procs.stop().get(timeout=SECONDS)
    assert (tmp_path / "note").read_text() == "finalized"


# proc_bind=


@pytest.mark.long
@pytest.mark.processes
def test_procs_may_be_bound_to_cpus() -> None:
    cpus = sorted(os.sched_getaffinity(0))
    first, last = cpus[0], cpus[-1]
    procs = this_host().spawn_procs(
        {"gpus": 3},
        proc_bind=[{"cpus": str(first)}, {"physcpubind": f"{last}"}, {}],
    )
    seen = procs.spawn("tells", Tells).cpus.call().get(timeout=SECONDS).values()
    assert seen == [{first}, {last}, set(cpus)]


@pytest.mark.skipif(not os.path.exists("/sys/devices/system/node/node0"), reason="no memory nodes")
def test_procs_may_be_bound_to_the_cpus_of_a_memory_node() -> None:
    procs = this_host().spawn_procs(proc_bind=[{"cpunodebind": "0"}])
    seen = procs.spawn("tells", Tells).cpus.call_one().get(timeout=SECONDS)
    assert seen
    assert seen <= set(range(os.cpu_count() or 1))


@pytest.mark.parametrize(
    ("bind", "says"),
    [
        ([{}], r"proc_bind length \(1\) must equal procs_per_host \(2\)"),
        ([{"core": "0"}, {}], "unknown proc_bind options"),
        ([{"cpus": "zero"}, {}], "not a list of numbers"),
        ([{"cpus": "3-1"}, {}], "not a list of numbers"),
    ],
)
def test_a_binding_that_cannot_be_is_refused_at_once(bind: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        this_host().spawn_procs({"gpus": 2}, proc_bind=bind)


@pytest.mark.processes
def test_cpus_that_are_not_there_end_the_proc_with_a_reason(faults: list[MeshFailure]) -> None:
    procs = this_host().spawn_procs(proc_bind=[{"cpus": "1023"}])
    with pytest.raises(SupervisionError, match="names no CPU of this machine"):
        procs.spawn("tells", Tells).cpus.call_one().get(timeout=SECONDS)
    wait_for(lambda: faults, SECONDS)


# bootstrap_command= and with_python_executable


@pytest.mark.processes
def test_a_command_may_change_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOES", "still here")
    command = default_bootstrap_cmd().with_env({"FLAVOUR": "bitter", "GOES": None})
    procs = this_host().spawn_procs(bootstrap_command=command)
    tells = procs.spawn("tells", Tells)
    assert tells.flavours.call_one().get(timeout=SECONDS) == "bitter"
    assert tells.environ.call_one("GOES").get(timeout=SECONDS) is None
    plain = this_host().spawn_procs().spawn("tells", Tells)
    assert plain.environ.call_one("GOES").get(timeout=SECONDS) == "still here"


@pytest.mark.long
@pytest.mark.processes
def test_each_point_may_have_a_command_of_its_own() -> None:
    def command(point: Point) -> BootstrapCommand:
        return default_bootstrap_cmd().with_env({"FLAVOUR": f"gpu {point['gpus']}"})

    procs = this_host().spawn_procs({"gpus": 2}, bootstrap_command=command)
    tells = procs.spawn("tells", Tells)
    assert tells.flavours.call().get(timeout=SECONDS).values() == ["gpu 0", "gpu 1"]


def test_commands_are_values() -> None:
    command = BootstrapCommand("/bin/true", None, ["-x"], {"A": "1"}, inherit_env=False)
    more = command.with_env({"B": None})
    assert more.env == {"A": "1", "B": None}
    assert command.env == {"A": "1"}
    assert not more.inherit_env
    assert default_bootstrap_cmd() == default_bootstrap_cmd()
    with pytest.raises(TypeError, match="env maps names"):
        BootstrapCommand("/bin/true", None, [], {"A": 1})  # type: ignore[dict-item]


@pytest.mark.processes
def test_a_program_that_is_not_there_is_reported(faults: list[MeshFailure]) -> None:
    command = BootstrapCommand("/not/there", None, [], {})
    procs = this_host().spawn_procs(bootstrap_command=command)
    with pytest.raises(SupervisionError, match="could not be started"):
        procs.spawn("tells", Tells).flavours.call_one().get(timeout=SECONDS)
    wait_for(lambda: faults, SECONDS)


@pytest.fixture
def wrapper(tmp_path: Path) -> str:
    """A program that runs our interpreter, and says so in the environment."""
    path = tmp_path / "python"
    path.write_text(f'#!/bin/sh\nFLAVOUR="wrapped $$" exec {sys.executable} "$@"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.mark.long
@pytest.mark.processes
def test_another_interpreter_runs_procs_and_those_that_they_spawn(wrapper: str) -> None:
    host = this_host().with_python_executable(wrapper)
    outer = host.spawn_procs().spawn("outer", Tells)
    inner = outer.spawn_here.call_one().get(timeout=SECONDS)
    seen = [one.flavours.call_one().get(timeout=SECONDS) for one in (outer, inner)]
    assert [flavour.partition(" ")[0] for flavour in seen] == ["wrapped"] * 2
    assert seen[0] != seen[1]
    assert this_host().spawn_procs().spawn("tells", Tells).flavours.call_one().get() is None


def test_a_proc_with_a_command_stops_like_any_other() -> None:
    procs = this_host().spawn_procs(bootstrap_command=default_bootstrap_cmd())
    tells = procs.spawn("tells", Tells)
    tells.flavours.call_one().get(timeout=SECONDS)
    procs.stop().get(timeout=SECONDS)
    with pytest.raises(SupervisionError, match="stopped"):
        tells.flavours.call_one().get(timeout=SECONDS)


# Where a mesh is


class Knows(Actor):
    @endpoint
    def here(self) -> Any:
        return this_host(), context().actor_instance.proc_mesh, context().actor_instance.proc


def test_an_actor_knows_its_host_its_procs_and_its_proc() -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    answers = procs.spawn("knows", Knows).here.call().get(timeout=SECONDS)
    for point, (host, mesh, proc) in answers.items():
        assert host == this_host()
        assert mesh.sizes == {"gpus": 2}
        assert len(proc) == 1
        pids = mesh.spawn("echo", Echo).pid.call().get(timeout=SECONDS)
        pid = proc.spawn("echo", Echo).pid.call_one().get(timeout=SECONDS)
        assert pids.item(**point) == pid


def test_the_host_of_a_proc() -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    assert procs.slice(gpus=1).host_mesh == this_host()
    assert this_proc().host_mesh == this_host()
    with pytest.raises(NotImplementedError, match="slice it first"):
        procs.host_mesh
    spawned = procs.slice(gpus=0).host_mesh.spawn_procs().spawn("echo", Echo)
    assert spawned.echo.call_one(1).get(timeout=SECONDS) == 1


def test_a_table_of_procs() -> None:
    lines = this_host().spawn_procs({"a": 2, "b": 2}).to_table().splitlines()
    assert lines[0].split() == ["rank", "a", "b", "proc", "host"]
    assert [line.split()[:3] for line in lines[1:]] == [
        ["0", "0", "0"], ["1", "0", "1"], ["2", "1", "0"], ["3", "1", "1"],
    ]  # fmt: skip


def test_a_name_that_is_no_text_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match=r"\\ud800.* is no name"):
        this_host().spawn_procs(name="\ud800")
    procs = this_host().spawn_procs(name="odd \n\x1b ../x")
    with pytest.raises(ValueError, match=r"\\ud800.* is no name"):
        procs.spawn("\ud800", Echo)
    assert procs.spawn("", Echo).echo.call_one(1).get(timeout=SECONDS) == 1
