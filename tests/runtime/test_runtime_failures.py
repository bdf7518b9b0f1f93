"""Procs and actors that die, and who is told."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import monarch.actor
from monarch.actor import (
    Actor,
    MeshFailure,
    ProcMesh,
    SupervisionError,
    endpoint,
    this_host,
    this_proc,
)
from monarch.runtime import process
from monarch.runtime.client_agent import ClientAgent
from monarch.runtime.hosts.launcher import Launcher
from tests.actors import Answers, Async, BadInit, Cleans, Echo, Parent
from tests.support import is_running, wait_for

pytestmark = pytest.mark.in_a_world_too

SECONDS = 60.0


class Faults(list[MeshFailure]):
    """What reached the hook of the program."""

    def wait(self, count: int = 1) -> MeshFailure:
        wait_for(lambda: len(self) >= count, what=f"{count} faults")
        return self[count - 1]

    def settle(self) -> None:
        """Wait until all that was under way has been told: a round trip, and the hook threads."""
        this_host().spawn_procs().spawn("witness", Echo).echo.call(1).get(timeout=SECONDS)
        wait_for(lambda: not any(t.name == "monarch-fault" for t in _threads()))


def _threads() -> Any:
    import threading

    return threading.enumerate()


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    faults = Faults()
    monkeypatch.setattr(monarch.actor, "unhandled_fault_hook", faults.append)
    return faults


@pytest.fixture
def procs(faults: Faults) -> ProcMesh:
    return this_host().spawn_procs({"gpus": 3}, name="workers")


@pytest.fixture
def echo(procs: ProcMesh) -> Any:
    return procs.spawn("echo", Echo)


# Procs that die


@pytest.mark.parametrize(
    ("die", "why"),
    [
        (lambda one: one.kill.call_one(), "it was killed by SIGKILL"),
        (lambda one: one.kill.call_one(signal.SIGSEGV), "it was killed by SIGSEGV"),
        (lambda one: one.exit.call_one(3), "it exited with status 3"),
        (lambda one: one.exit.call_one(0), "it exited with status 0"),
    ],
    ids=["SIGKILL", "SIGSEGV", "exit 3", "exit 0"],
)
def test_a_proc_that_dies_fails_its_calls_and_its_owner_is_told(
    echo: Any, faults: Faults, die: Any, why: str
) -> None:
    pending = die(echo.slice(gpus=1))
    with pytest.raises(SupervisionError, match=why) as caught:
        pending.get(timeout=SECONDS)
    assert caught.value.failure is not None
    assert "The actor <tests.actors.Echo echo> and all its descendants" in str(caught.value)
    fault = faults.wait()
    assert (fault.mesh_name, fault.crashed_ranks, fault.kind) == ("workers", (1,), "proc")
    assert why in fault.report()
    assert "rank 1" in fault.report()
    faults.settle()
    assert len(faults) == 1


def test_the_report_has_the_last_lines_that_the_proc_printed(echo: Any, faults: Faults) -> None:
    one = echo.slice(gpus=0)
    one.print.call_one("on stdout").get()
    one.print.call_one("on stderr", 2).get()
    with pytest.raises(SupervisionError) as caught:
        one.kill.call_one().get(timeout=SECONDS)
    for text in (str(caught.value), faults.wait().report()):
        assert "last output" in text
        for line in ("on stdout", "on stderr", "about to die"):
            assert line in text


class Closer(Actor):
    @endpoint
    def close_all(self) -> None:
        os.closerange(3, 4096)


@pytest.mark.long
@pytest.mark.processes
def test_a_proc_that_has_closed_its_own_connections_ends_at_once(
    procs: ProcMesh, faults: Faults
) -> None:
    closers = procs.spawn("closer", Closer)
    with pytest.raises(SupervisionError, match="it exited with status 1") as caught:
        closers.slice(gpus=1).close_all.call_one().get(timeout=8)  # and not when it is missed
    assert "cannot speak to others any more" in str(caught.value)
    assert faults.wait().crashed_ranks == (1,)
    faults.settle()


def test_a_call_that_waits_for_others_too_ends_at_once(echo: Any, tmp_path: Path) -> None:
    pid = echo.pid.call().get().item(gpus=2)
    waiting = echo.wait_for_file.call(str(tmp_path / "go"))
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(SupervisionError, match=r"echo\.wait_for_file\(\).*SIGKILL"):
        waiting.get(timeout=SECONDS)
    (tmp_path / "go").touch()


def test_later_calls_fail_at_once_and_a_slice_without_the_dead_goes_on(
    echo: Any, faults: Faults
) -> None:
    with pytest.raises(SupervisionError):
        echo.slice(gpus=0).kill.call_one().get(timeout=SECONDS)
    for call in (echo.echo.call, echo.slice(gpus=0).echo.call_one, echo.slice(gpus=0).echo.choose):
        before = time.monotonic()
        with pytest.raises(SupervisionError, match="SIGKILL"):
            call(1).get(timeout=SECONDS)
        assert time.monotonic() - before < 1.0
    echo.append.broadcast("into the void and to the living")
    part = echo.slice(gpus=slice(1, 3))
    assert part.echo.call(1).get(timeout=SECONDS).values() == [1, 1]
    assert (
        part.read.call().get(timeout=SECONDS).values() == [["into the void and to the living"]] * 2
    )


def test_a_stream_gives_the_answers_of_the_living_and_the_error(echo: Any) -> None:
    with pytest.raises(SupervisionError):
        echo.slice(gpus=1).kill.call_one().get(timeout=SECONDS)
    errors, values = [], []
    for future in echo.echo.stream(1):
        try:
            values.append(future.get(timeout=SECONDS))
        except SupervisionError as error:
            errors.append(error)
    assert (len(errors), values) == (1, [1, 1])


def test_the_host_spawns_again_after_a_death(echo: Any, faults: Faults) -> None:
    with pytest.raises(SupervisionError):
        echo.slice(gpus=0).kill.call_one().get(timeout=SECONDS)
    again = this_host().spawn_procs({"gpus": 3}).spawn("again", Echo)
    assert again.echo.call(1).get(timeout=SECONDS).values() == [1, 1, 1]


def test_spawning_actors_on_a_dead_proc_fails_their_calls_only(
    procs: ProcMesh, echo: Any, faults: Faults
) -> None:
    with pytest.raises(SupervisionError):
        echo.slice(gpus=0).kill.call_one().get(timeout=SECONDS)
    late = procs.spawn("late", Echo)
    with pytest.raises(SupervisionError, match="SIGKILL"):
        late.echo.call(1).get(timeout=SECONDS)
    with pytest.raises(SupervisionError):
        late.initialized.get(timeout=SECONDS)
    assert late.slice(gpus=slice(1, 3)).echo.call(1).get(timeout=SECONDS).values() == [1, 1]
    faults.settle()
    assert len(faults) == 1


def test_all_ranks_that_die_are_reported_once_each(echo: Any, faults: Faults) -> None:
    echo.kill.broadcast()
    faults.wait(3)
    faults.settle()
    assert sorted(rank for fault in faults for rank in fault.crashed_ranks) == [0, 1, 2]


@pytest.mark.processes
def test_what_a_proc_started_dies_with_it(procs: ProcMesh, faults: Faults) -> None:
    class Starts(Actor):
        @endpoint
        def start(self) -> tuple[int, int]:
            import subprocess

            return os.getpid(), subprocess.Popen(["sleep", "1000"]).pid

    starts = procs.spawn("starts", Starts).start.call().get().values()
    os.kill(starts[0][0], signal.SIGKILL)
    wait_for(lambda: not is_running(starts[0][1]))
    assert is_running(starts[1][1])
    procs.stop().get(timeout=SECONDS)
    wait_for(lambda: not any(is_running(child) for _, child in starts))


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.processes
def test_a_template_that_dies_takes_its_procs_with_it_and_is_replaced(
    procs: ProcMesh, echo: Any, faults: Faults
) -> None:
    class Starts(Actor):
        @endpoint
        def start(self) -> int:
            import subprocess

            return subprocess.Popen(["sleep", "1000"]).pid

    pids = echo.pid.call().get().values()
    pids += procs.spawn("starts", Starts).start.call().get().values()
    pending = echo.wait_for_file.call("/never")
    client = process.current()
    assert isinstance(client, ClientAgent)
    # There may be a second one already, with what others have imported.
    all_here = (one for one in client.host_agent.templates.all if isinstance(one, Launcher))
    (launcher,) = (one for one in all_here if one.pid == _parent(pids[0]))
    os.kill(launcher.pid, signal.SIGKILL)
    with pytest.raises(SupervisionError, match="template process"):
        pending.get(timeout=SECONDS)
    wait_for(lambda: not any(map(is_running, pids)))
    again = this_host().spawn_procs().spawn("again", Echo)
    assert again.echo.call_one(1).get(timeout=SECONDS) == 1
    # One cause, one report, which names all that was lost.
    fault = faults.wait()
    assert (fault.mesh_name, fault.crashed_ranks) == ("workers", (0, 1, 2))
    assert "echo{'gpus': 2/3}" in fault.report()
    faults.settle()
    assert len(faults) == 1


# Actors that fail


def test_an_actor_that_cannot_be_made_is_reported_without_a_call(
    procs: ProcMesh, faults: Faults
) -> None:
    bad = procs.spawn("bad", BadInit, 1)
    fault = faults.wait()
    assert (fault.mesh_name, fault.crashed_ranks, fault.kind) == ("bad", (1,), "actor")
    assert "cannot be made" in fault.report()
    with pytest.raises(SupervisionError, match=r"Endpoint call bad\.echo\(\) failed.*"):
        bad.echo.call(1).get(timeout=SECONDS)
    with pytest.raises(SupervisionError, match="cannot be made"):
        bad.slice(gpus=1).echo.call_one(1).get(timeout=SECONDS)
    assert bad.slice(gpus=2).echo.call_one(1).get(timeout=SECONDS) == 1
    faults.settle()
    assert len(faults) == 1


def test_a_class_that_cannot_be_loaded_is_a_failed_init(procs: ProcMesh, faults: Faults) -> None:
    class Refuses(Actor):
        def __init__(self, argument: Any) -> None: ...

        @endpoint
        def echo(self) -> None: ...

    class Bomb:
        def __reduce__(self) -> Any:
            return _explode, ()

    bad = procs.spawn("bad", Refuses, Bomb())
    assert "cannot be unpickled" in faults.wait().report()
    with pytest.raises(SupervisionError, match="cannot be unpickled"):
        bad.echo.call().get(timeout=SECONDS)


def _explode() -> None:
    raise ValueError("cannot be unpickled")


@pytest.mark.parametrize("cls", [Echo, Async], ids=["sync", "async"])
def test_a_broadcast_that_raises_fails_the_actor(
    procs: ProcMesh, faults: Faults, cls: type
) -> None:
    mesh = procs.spawn("mesh", cls)
    mesh.slice(gpus=1).fail.broadcast()
    fault = faults.wait()
    assert (fault.mesh_name, fault.crashed_ranks) == ("mesh", (1,))
    assert "Actor call mesh.fail failed" in fault.report()
    with pytest.raises(SupervisionError, match="ValueError"):
        mesh.echo.call(1).get(timeout=SECONDS)
    assert mesh.slice(gpus=0).echo.call_one(1).get(timeout=SECONDS) == 1
    faults.settle()
    assert len(faults) == 1


def test_a_failed_member_ends_a_call_at_once(procs: ProcMesh, echo: Any, tmp_path: Path) -> None:
    echo.slice(gpus=2).fail.broadcast()
    waiting = echo.wait_for_file.call(str(tmp_path / "go"))
    with pytest.raises(SupervisionError, match="rank 2 does not like it"):
        waiting.get(timeout=SECONDS)
    (tmp_path / "go").touch()


def test_an_explicit_port_that_is_not_answered_fails_actor_and_caller(
    procs: ProcMesh, faults: Faults
) -> None:
    answers = procs.spawn("answers", Answers).slice(gpus=0)
    with pytest.raises(SupervisionError, match="no answer sent"):
        answers.never.call_one().get(timeout=SECONDS)
    assert "no answer sent" in faults.wait().report()
    with pytest.raises(SupervisionError):
        answers.now.call_one(1).get(timeout=SECONDS)


def test_an_exception_that_is_none_fails_actor_and_caller(echo: Any, faults: Faults) -> None:
    with pytest.raises(SupervisionError, match=r"failed with BaseException\."):
        echo.slice(gpus=0).fail_badly.call_one().get(timeout=SECONDS)
    assert faults.wait().mesh_name == "echo"
    with pytest.raises(SupervisionError):
        echo.slice(gpus=0).echo.call_one(1).get(timeout=SECONDS)


def test_cleanup_gets_the_error_of_a_failed_actor(
    procs: ProcMesh, faults: Faults, tmp_path: Path
) -> None:
    cleans = procs.slice(gpus=0).spawn("cleans", Cleans, str(tmp_path / "log"))
    cleans.fail.broadcast()
    faults.wait()
    wait_for((tmp_path / "log").exists)
    cleans.stop().get(timeout=SECONDS)
    assert (tmp_path / "log").read_text().splitlines() == ["0 ValueError('on request')"]


def test_calls_under_way_end_when_a_concurrent_actor_fails(procs: ProcMesh, faults: Faults) -> None:
    actor = procs.slice(gpus=0).spawn("async", Async)
    pending = actor.wait.call_one("for ever")
    actor.fail.broadcast()
    with pytest.raises(SupervisionError):
        pending.get(timeout=SECONDS)
    faults.wait()


def test_the_hook_is_looked_up_when_the_fault_arrives(
    echo: Any, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = Faults()
    monkeypatch.setattr(monarch.actor, "unhandled_fault_hook", later.append)
    echo.slice(gpus=0).fail.broadcast()
    assert later.wait().mesh_name == "echo"
    assert not faults


def test_nobody_is_told_of_what_was_stopped(procs: ProcMesh, echo: Any, faults: Faults) -> None:
    echo.stop().get(timeout=SECONDS)
    procs.stop().get(timeout=SECONDS)
    part = this_host().spawn_procs({"gpus": 2})
    part.spawn("echo", Echo).echo.call(1).get()
    this_host().stop().get(timeout=SECONDS)
    faults.settle()
    assert not faults


def test_actors_in_the_client_fail_like_others(faults: Faults) -> None:
    echo = this_proc().spawn("here", Echo)
    echo.fail.broadcast()
    assert faults.wait().mesh_name == "here"
    with pytest.raises(SupervisionError):
        echo.echo.call_one(1).get(timeout=SECONDS)


# Supervision by actors


@pytest.mark.parametrize("cause", ["init", "broadcast", "process"])
def test_the_owner_is_asked_and_nobody_else_when_it_handles_it(
    procs: ProcMesh, faults: Faults, cause: str
) -> None:
    parent = procs.slice(gpus=0).spawn("parent", Parent)
    if cause == "init":
        parent.spawn_procs.call_one(2, BadInit, 1).get(timeout=SECONDS)
    else:
        child = parent.spawn_procs.call_one(2).get(timeout=SECONDS)
        child.initialized.get(timeout=SECONDS)
        one = child.slice(sub=1)
        (one.fail if cause == "broadcast" else one.kill).broadcast()
    (report,) = wait_for(lambda: parent.seen.call_one().get(timeout=SECONDS))
    assert "rank 1" in report
    faults.settle()
    assert not faults
    assert len(parent.seen.call_one().get(timeout=SECONDS)) == 1


@pytest.mark.parametrize("verdict", ["pass", "raise"])
def test_what_is_not_handled_fails_the_owner_and_climbs(
    procs: ProcMesh, faults: Faults, verdict: str
) -> None:
    parent = procs.slice(gpus=0).spawn("parent", Parent, verdict)
    child = parent.spawn_procs.call_one(2).get(timeout=SECONDS)
    pids = child.pid.call().get(timeout=SECONDS).values()
    child.slice(sub=1).fail.broadcast()
    fault = faults.wait()
    assert fault.mesh_name == "parent"
    assert "rank 1 does not like it" in fault.report()
    assert fault.root_cause.mesh_name == "child"
    if verdict == "raise":
        assert "the supervisor itself is broken" in fault.report()
    with pytest.raises(SupervisionError):
        parent.seen.call_one().get(timeout=SECONDS)
    wait_for(lambda: not any(map(is_running, pids)), what="what it owned ends")
    faults.settle()
    assert len(faults) == 1


def test_an_owner_without_a_supervise_hook_climbs(procs: ProcMesh, faults: Faults) -> None:
    class Owner(Actor):
        @endpoint
        def spawn(self) -> Any:
            return this_proc().spawn("child", Echo)

    child = procs.slice(gpus=0).spawn("owner", Owner).spawn.call_one().get()
    child.fail.broadcast()
    assert faults.wait().mesh_name == "owner"


def test_an_async_supervise_hook_handles(procs: ProcMesh, faults: Faults) -> None:
    class Owner(Actor):
        def __init__(self) -> None:
            self.seen: list[str] = []

        @endpoint
        async def spawn(self) -> Any:
            return this_proc().spawn("child", Echo)

        @endpoint
        async def read(self) -> list[str]:
            return self.seen

        async def __supervise__(self, failure: MeshFailure) -> bool:
            self.seen.append(failure.mesh_name)
            return True

    owner = procs.slice(gpus=0).spawn("owner", Owner)
    owner.spawn.call_one().get().fail.broadcast()
    wait_for(lambda: owner.read.call_one().get(timeout=SECONDS) == ["child"])
    faults.settle()
    assert not faults


def test_a_failure_climbs_through_two_owners(procs: ProcMesh, faults: Faults) -> None:
    top = procs.slice(gpus=0).spawn("top", Parent, "pass")
    middle = top.spawn_here.call_one(Parent, "pass").get()
    bottom = middle.spawn_here.call_one(Echo).get()
    bottom.fail.broadcast()
    fault = faults.wait()
    assert fault.mesh_name == "top"
    assert "does not like it" in fault.report()
    failed = re.findall(
        r"The actor <root>(.*)> .*and all its descendants have failed:", fault.report()
    )
    assert [path.rpartition(" ")[2] for path in failed] == ["top", "child"]
    faults.settle()
    assert len(faults) == 1


def test_a_reference_owns_nothing(procs: ProcMesh, faults: Faults) -> None:
    class Borrower(Actor):
        def __init__(self) -> None:
            self.borrowed: Any = None
            self.seen: list[str] = []

        @endpoint
        def borrow(self, mesh: Any) -> Any:
            self.borrowed = mesh
            return mesh.echo.call(1).get(timeout=SECONDS).values()

        @endpoint
        def read(self) -> list[str]:
            return self.seen

        def __supervise__(self, failure: MeshFailure) -> bool:
            self.seen.append(failure.mesh_name)
            return True

    echo = procs.slice(gpus=slice(1, 3)).spawn("echo", Echo)
    borrower = procs.slice(gpus=0).spawn("borrower", Borrower)
    assert borrower.borrow.call_one(echo).get(timeout=SECONDS) == [1, 1]
    echo.slice(gpus=0).fail.broadcast()
    assert faults.wait().mesh_name == "echo"
    assert borrower.read.call_one().get(timeout=SECONDS) == []
    borrower.stop().get(timeout=SECONDS)
    assert echo.slice(gpus=1).echo.call_one(1).get(timeout=SECONDS) == 1


def test_an_owner_that_dies_takes_what_it_owns_with_it(procs: ProcMesh, faults: Faults) -> None:
    parent = procs.slice(gpus=0).spawn("parent", Parent)
    child = parent.spawn_procs.call_one(2).get(timeout=SECONDS)
    pids = child.pid.call().get(timeout=SECONDS).values()
    elsewhere = procs.slice(gpus=1).spawn("killer", Echo)
    assert elsewhere.echo.call_one(1).get() == 1
    owner_pid = procs.slice(gpus=0).spawn("echo", Echo).pid.call_one().get()
    os.kill(owner_pid, signal.SIGKILL)
    wait_for(lambda: not any(map(is_running, pids)))
    assert faults.wait().mesh_name == "workers"
    with pytest.raises(SupervisionError):
        child.echo.call(1).get(timeout=SECONDS)
    faults.settle()
    assert len(faults) == 1


def test_an_actor_that_stops_its_procs_sees_no_failure(procs: ProcMesh, faults: Faults) -> None:
    parent = procs.slice(gpus=0).spawn("parent", Parent)
    parent.spawn_procs.call_one(2).get(timeout=SECONDS)
    parent.stop_procs.call_one().get(timeout=SECONDS)
    faults.settle()
    assert parent.seen.call_one().get(timeout=SECONDS) == []
    assert not faults
