"""``__cleanup__``: when it runs, in which order, for how long, and what comes of its errors."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import (
    Actor,
    MeshFailure,
    ProcMesh,
    SupervisionError,
    context,
    endpoint,
    this_host,
    this_proc,
)
from monarch.config import configure, configured
from tests.actors import Echo
from tests.support import wait_for

SECONDS = 60.0


def _write(path: str, line: str) -> None:
    with open(path, "a") as file:
        file.write(line + "\n")


def _be_quick(how: str) -> None:
    if how == "hang":
        configure(cleanup_timeout_seconds=0.3)


class Ends(Actor):
    """Writes down its end, after doing there what it is told to."""

    def __init__(self, path: str, name: str = "", how: str = "") -> None:
        self.path = path
        self.name = name
        self.how = how
        _be_quick(how)

    @endpoint
    def echo(self, value: Any = None) -> Any:
        return value

    @endpoint
    def fail(self) -> None:
        raise ValueError("the first error")

    @endpoint
    def spawn(self, name: str, how: str = "", *, apart: bool = False) -> Any:
        procs = this_host().spawn_procs() if apart else this_proc()
        return procs.spawn("child", Ends, self.path, name, how)

    def __cleanup__(self, error: Exception | None) -> None:
        rank = context().actor_instance.rank.rank
        _write(self.path, f"{self.name or rank} {error!r}")
        if self.how == "raise":
            raise RuntimeError("the second error")
        if self.how == "hang":
            threading.Event().wait()


class EndsAsync(Actor):
    def __init__(self, path: str, name: str = "", how: str = "") -> None:
        self.path = path
        self.how = how
        _be_quick(how)

    @endpoint
    async def echo(self, value: Any = None) -> Any:
        return value

    @endpoint
    async def fail(self) -> None:
        raise ValueError("the first error")

    async def __cleanup__(self, error: Exception | None) -> None:
        import asyncio

        _write(self.path, f"{context().actor_instance.rank.rank} {error!r}")
        if self.how == "raise":
            raise RuntimeError("the second error")
        if self.how == "hang":
            await asyncio.Event().wait()


BOTH = pytest.mark.parametrize("cls", [Ends, EndsAsync], ids=["sync", "async"])


@pytest.fixture
def procs(faults: Any) -> ProcMesh:
    return this_host().spawn_procs({"gpus": 2})


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def lines(log: Path) -> list[str]:
    return log.read_text().splitlines() if log.exists() else []


@pytest.mark.long_but(1)
@BOTH
@pytest.mark.parametrize("what", ["actors", "procs"])
def test_it_gets_none_when_actors_or_their_procs_are_stopped(
    procs: ProcMesh, log: Path, cls: type, what: str
) -> None:
    mesh = procs.spawn("mesh", cls, str(log))
    mesh.echo.call(1).get(timeout=SECONDS)
    (mesh if what == "actors" else procs).stop().get(timeout=SECONDS)
    assert sorted(lines(log)) == ["0 None", "1 None"]


@BOTH
def test_one_that_raises_is_told_to_whoever_stops_it(
    procs: ProcMesh, log: Path, faults: Any, cls: type
) -> None:
    mesh = procs.spawn("mesh", cls, str(log), "", "raise")
    with pytest.raises(SupervisionError, match="the second error"):
        mesh.stop().get(timeout=SECONDS)
    with pytest.raises(SupervisionError, match="stopped"):
        mesh.slice(gpus=0).echo.call_one(1).get(timeout=SECONDS)
    assert not faults


@BOTH
def test_one_that_raises_is_chained_to_the_failure(
    procs: ProcMesh, log: Path, faults: list[MeshFailure], cls: type
) -> None:
    mesh = procs.slice(gpus=0).spawn("mesh", cls, str(log), "", "raise")
    mesh.fail.broadcast()
    (fault,) = wait_for(lambda: list(faults))
    report = fault.report()
    assert report.index("the first error") < report.index("__cleanup__")
    assert report.index("__cleanup__") < report.index("the second error")
    assert lines(log) == ["0 ValueError('the first error')"]


@pytest.mark.long_but(1)
@BOTH
def test_one_that_hangs_is_waited_for_only_so_long(
    procs: ProcMesh, log: Path, faults: list[MeshFailure], cls: type
) -> None:
    stopped = procs.slice(gpus=0).spawn("stopped", cls, str(log), "", "hang")
    failed = procs.slice(gpus=1).spawn("failed", cls, str(log), "", "hang")
    with pytest.raises(SupervisionError, match=r"0\.3 s"):
        stopped.stop().get(timeout=SECONDS)
    failed.fail.broadcast()
    with pytest.raises(SupervisionError, match="the first error"):
        failed.echo.call_one(1).get(timeout=SECONDS)
    (fault,) = wait_for(lambda: list(faults))
    assert "the first error" in fault.report()
    assert "0.3 s" in fault.report()
    failed.stop().get(timeout=SECONDS)
    procs.stop().get(timeout=SECONDS)


@pytest.mark.parametrize("apart", [False, True], ids=["same proc", "procs of its own"])
@pytest.mark.parametrize("end", ["stop", "fail", "stop procs"])
def test_what_an_actor_owns_ends_before_its_own_cleanup(
    log: Path, faults: list[MeshFailure], end: str, apart: bool
) -> None:
    procs = this_host().spawn_procs()
    top = procs.spawn("top", Ends, str(log), "top")
    middle = top.spawn.call_one("middle", apart=apart).get(timeout=SECONDS)
    bottom = middle.spawn.call_one("bottom").get(timeout=SECONDS)
    assert bottom.echo.call_one(1).get(timeout=SECONDS) == 1
    if end == "stop":
        top.stop().get(timeout=SECONDS)
    elif end == "stop procs":
        procs.stop().get(timeout=SECONDS)
    else:
        top.fail.broadcast()
        wait_for(lambda: faults)
    wait_for(lambda: len(lines(log)) == 3)
    names = [line.split()[0] for line in lines(log)]
    assert names == ["bottom", "middle", "top"] or (
        # Actors of one proc that ends are all asked at once, but an owner waits for what it owns.
        end == "stop procs" and names.index("bottom") < names.index("top")
    )
    errors = [line.split(maxsplit=1)[1] for line in sorted(lines(log))]
    assert errors == ["None", "None", "ValueError('the first error')" if end == "fail" else "None"]
    assert len(faults) == (end == "fail")


def test_an_owner_that_does_not_handle_a_failure_cleans_up_with_it(
    procs: ProcMesh, log: Path, faults: list[MeshFailure]
) -> None:
    top = procs.slice(gpus=0).spawn("top", Ends, str(log), "top")
    child = top.spawn.call_one("child").get(timeout=SECONDS)
    child.fail.broadcast()
    (fault,) = wait_for(lambda: list(faults))
    assert (fault.mesh_name, fault.root_cause.mesh_name) == ("top", "child")
    assert "SupervisionError" in lines(log)[-1]
    assert "the first error" in lines(log)[-1]


def test_an_actor_that_does_not_stop_is_named_and_nobody_waits_for_ever(
    procs: ProcMesh, faults: list[MeshFailure], tmp_path: Path
) -> None:
    busy = procs.spawn("busy", Echo)
    waits = busy.slice(gpus=1).wait_for_file.call_one(str(tmp_path / "go"))
    with (
        configured(stop_timeout_seconds=0.3),
        pytest.raises(SupervisionError, match=r"busy.*rank 0.*0\.3 s"),
    ):
        busy.slice(gpus=1).stop().get(timeout=SECONDS)
    (tmp_path / "go").touch()
    assert waits.get(timeout=SECONDS) == 1
    busy.stop().get(timeout=SECONDS)
