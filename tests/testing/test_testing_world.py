"""What a test may do to the world it is in: kill, cut off, script failures, move the clock."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from typing import Any

import pytest

import monarch.actor
from monarch.actor import (
    Actor,
    ActorError,
    SupervisionError,
    attach_to_workers,
    endpoint,
    shutdown_context,
    this_host,
    this_proc,
)
from monarch.config import configured, settings
from monarch.runtime import process
from monarch.testing import World, in_process
from tests.actors import Async, Cleans, Echo, Parent
from tests.support import Printed, wait_for

SECONDS = 60.0


class Sleeper(Actor):
    @endpoint
    async def sleep(self, seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds


@pytest.mark.parametrize("mesh", ["procs", "actors"])
def test_a_killed_proc_is_noticed_by_all_as_a_real_death(mesh: str) -> None:
    with in_process() as world:
        procs = world.host.spawn_procs({"gpus": 3}, name="workers")
        echo = procs.spawn("echo", Echo)
        held = world.hold(echo.slice(gpus=2).echo)
        waiting = echo.echo.call(1)
        held.wait_reached()
        world.kill_proc(procs if mesh == "procs" else echo, rank=2)
        with pytest.raises(SupervisionError, match="killed by SIGKILL"):
            waiting.get(timeout=SECONDS)
        fault = world.wait_for_fault()
        assert (fault.mesh_name, fault.crashed_ranks) == ("workers", (2,))
        assert echo.slice(gpus=slice(0, 2)).echo.call(1).get(timeout=SECONDS).values() == [1, 1]
        with pytest.raises(ValueError, match="does not run"):
            world.kill_proc(procs, rank=2)


def test_the_dead_do_not_clean_up_and_the_stopped_do(tmp_path: Any) -> None:
    with in_process() as world:
        procs = world.host.spawn_procs({"gpus": 2})
        cleans = procs.spawn("cleans", Cleans, str(tmp_path / "log"))
        cleans.initialized.get(timeout=SECONDS)
        world.kill_proc(procs, rank=1, signal=signal.SIGTERM)
        assert "SIGTERM" in world.wait_for_fault().report()
        procs.stop().get(timeout=SECONDS)
    assert (tmp_path / "log").read_text().splitlines() == ["0 None"]


def test_an_owner_is_asked_about_a_killed_proc() -> None:
    with in_process() as world:
        parent = world.host.spawn_procs().spawn("parent", Parent)
        child = parent.spawn_procs.call_one(2).get(timeout=SECONDS)
        world.kill_proc(child, rank=1)
        wait_for(lambda: parent.seen.call_one().get(timeout=SECONDS))
        (report,) = parent.seen.call_one().get(timeout=SECONDS)
        assert "rank 1" in report


@pytest.mark.parametrize("cls", [Echo, Async])
def test_the_nth_call_of_an_endpoint_fails_where_it_was_asked_for(cls: type) -> None:
    with in_process() as world:
        mesh = world.host.spawn_procs({"gpus": 2}).spawn("mesh", cls)
        world.fail(mesh.slice(gpus=1).echo, OSError("the disk is full"), nth=2)
        assert mesh.echo.call(1).get(timeout=SECONDS).values() == [1, 1]
        with pytest.raises(ActorError, match="the disk is full") as caught:
            mesh.echo.call(2).get(timeout=SECONDS)
        assert isinstance(caught.value.exception, OSError)
        assert mesh.echo.call(3).get(timeout=SECONDS).values() == [3, 3]


def test_a_scripted_error_that_nobody_waits_for_fails_the_actor() -> None:
    with in_process() as world:
        echo = world.host.spawn_procs().spawn("echo", Echo)
        world.fail(echo.append, OSError("the disk is full"))
        echo.append.broadcast(1)
        assert "the disk is full" in world.wait_for_fault().report()


@pytest.mark.parametrize(
    ("code", "why"), [(-9, "killed by SIGKILL"), (-11, "killed by SIGSEGV"), (3, "status 3")]
)
@pytest.mark.parametrize("cls", [Echo, Async])
def test_the_nth_call_of_an_endpoint_ends_its_proc(cls: type, code: int, why: str) -> None:
    with in_process() as world:
        mesh = world.host.spawn_procs({"gpus": 2}).spawn("mesh", cls)
        world.die(mesh.slice(gpus=0).echo, nth=2, code=code)
        assert mesh.echo.call(1).get(timeout=SECONDS).values() == [1, 1]
        with pytest.raises(SupervisionError, match=why):
            mesh.echo.call(2).get(timeout=SECONDS)
        assert world.wait_for_fault().crashed_ranks == (0,)


def test_calls_are_counted_from_one() -> None:
    with in_process() as world:
        echo = this_proc().spawn("echo", Echo)
        with pytest.raises(ValueError, match="counted from 1"):
            world.fail(echo.echo, OSError(), nth=0)


def test_scripts_work_in_the_client_too() -> None:
    with in_process() as world:
        echo = this_proc().spawn("echo", Echo)
        world.fail(echo.echo, OSError("here too"))
        with pytest.raises(ActorError, match="here too"):
            echo.echo.call_one(1).get(timeout=SECONDS)


def test_a_held_call_waits_and_then_runs_with_its_own_arguments() -> None:
    with in_process() as world:
        echo = world.host.spawn_procs({"gpus": 2}).spawn("echo", Echo)
        hold = world.hold(echo.slice(gpus=0).add)
        answers = echo.add.stream(5)
        assert next(answers).get(timeout=SECONDS) == 5
        hold.wait_reached()
        late = next(answers)
        with pytest.raises(TimeoutError):
            late.get(timeout=0)
        hold.release()
        assert late.get(timeout=SECONDS) == 5


def test_a_failure_that_nobody_handled_is_raised_at_the_end() -> None:
    def careless() -> None:
        with in_process() as world:
            world.kill_proc(world.host.spawn_procs(name="workers"))
            wait_for(lambda: world.faults)

    with pytest.raises(SupervisionError, match=r"nobody handled a failure in this test.*workers"):
        careless()


def test_hosts_have_a_dimension_and_procs_that_end_with_them() -> None:
    with in_process() as world:
        hosts = world.hosts(2)
        assert hosts.sizes == {"hosts": 2}
        hosts.initialized.get(timeout=SECONDS)
        echo = hosts.spawn_procs({"gpus": 2}).spawn("echo", Echo)
        assert [value[0] for value in echo.ranks.call().get(timeout=SECONDS).values()] == [
            0, 1, 2, 3,
        ]  # fmt: skip
        hosts.shutdown().get(timeout=SECONDS)
        wait_for(lambda: not world.procs, what="procs end with their hosts")


@pytest.mark.parametrize("how", ["kill_host", "cut_off"])
def test_a_lost_host_is_noticed_when_its_heartbeats_stay_out(how: str) -> None:
    with in_process(virtual_time=True) as world:
        assert world.clock is not None
        hosts = world.hosts(2)
        hosts.initialized.get(timeout=SECONDS)
        procs = hosts.spawn_procs({"gpus": 2}, name="workers")
        echo = procs.spawn("echo", Echo)
        echo.echo.call(1).get(timeout=SECONDS)
        world.clock.advance(100.0)
        assert not world.faults
        getattr(world, how)(hosts, rank=1)
        waiting = echo.echo.call(2)
        limit = settings().heartbeat_timeout_seconds
        world.clock.advance(limit - 2.0)
        with pytest.raises(TimeoutError):
            waiting.get(timeout=0)
        world.clock.advance(4.0)
        with pytest.raises(SupervisionError, match="was lost: nothing was heard of it for"):
            waiting.get(timeout=SECONDS)
        # The host is one cause, so its procs are one report.
        assert world.wait_for_fault().crashed_ranks == (2, 3)
        world.clock.advance(100.0)
        assert not world.faults
        assert echo.slice(hosts=0).echo.call(3).get(timeout=SECONDS).values() == [3, 3]


def test_async_actors_sleep_on_the_virtual_clock() -> None:
    with in_process(virtual_time=True) as world:
        assert world.clock is not None
        sleeper = world.host.spawn_procs({"gpus": 2}).spawn("sleeper", Sleeper)
        sleeper.initialized.get(timeout=SECONDS)
        long, short = sleeper.slice(gpus=0), sleeper.slice(gpus=1)
        slow, fast = long.sleep.call_one(300.0), short.sleep.call_one(60.0)
        world.clock.advance(100.0)
        assert fast.get(timeout=SECONDS) == 60.0
        assert not slow.done()
        world.clock.advance(300.0)
        assert slow.get(timeout=SECONDS) == 300.0


def test_a_host_that_cannot_be_reached_is_given_up_on_the_virtual_clock() -> None:
    with in_process(virtual_time=True) as world:
        assert world.clock is not None
        with configured(attach_timeout_seconds=30.0):
            nowhere = attach_to_workers(workers=["tcp://127.0.0.1:1"], secret=b"s" * 32)
            ready = nowhere.initialized
            world.clock.advance(29.0)
            assert not ready.done()
            world.clock.advance(2.0)
            with pytest.raises(monarch.errors.HostUnreachable):
                ready.get(timeout=SECONDS)


def test_time_does_not_run_backwards() -> None:
    with in_process(virtual_time=True) as world:
        assert world.clock is not None
        with pytest.raises(ValueError, match="backwards"):
            world.clock.advance(-1.0)


class Thinker(Actor):
    @endpoint
    def who(self) -> list[str]:
        """Which proc am I in, as seen from here and from a thread of mine?"""
        seen = [process.current().node.uid]
        thread = threading.Thread(
            target=lambda: seen.append(process.current().node.uid), daemon=True
        )
        thread.start()
        thread.join()
        return seen

    @endpoint
    def think_for_ever(self) -> None:
        while True:
            threading.Event().wait(0.001)


def test_threads_belong_to_the_proc_that_started_them() -> None:
    with in_process() as world:
        thinkers = world.host.spawn_procs({"gpus": 2}).spawn("thinker", Thinker)
        answers = thinkers.who.call().get(timeout=SECONDS).values()
        assert sorted(answers) == sorted([uid, uid] for uid in world.procs)
        assert len(answers) == 2


def test_a_busy_actor_ends_with_its_proc() -> None:
    before = threading.active_count()
    with in_process() as world:
        thinkers = world.host.spawn_procs().spawn("thinker", Thinker)
        thinkers.initialized.get(timeout=SECONDS)
        pending = thinkers.think_for_ever.call_one()
        world.kill_proc(thinkers)
        with pytest.raises(SupervisionError):
            pending.get(timeout=SECONDS)
        world.wait_for_fault()
    wait_for(lambda: threading.active_count() <= before, what="its threads end")


def test_what_procs_print_comes_to_the_client_with_their_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    printed = Printed(monkeypatch)
    with in_process() as world:
        echo = world.host.spawn_procs({"gpus": 2}).spawn("echo", Echo)
        echo.slice(gpus=1).print.call_one("hello").get(timeout=SECONDS)
        printed.wait_for("hello\n")
    assert printed.text() == "[echo 1] hello\n"


class Chatterbox(Actor):
    is_talking = threading.Event()

    @endpoint
    def talk(self) -> None:
        while True:
            print("x" * 1000)
            if not self.is_talking.is_set():  # Its lock is to be nobody's when we are killed.
                self.is_talking.set()


@pytest.mark.long
def test_a_proc_that_is_killed_while_it_prints_ends_and_leaves_no_pipe_open() -> None:
    """At any moment of its printing, and there are many."""

    def pipes() -> int:
        links = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
        return sum("pipe:" in link for link in links)

    with in_process() as world:
        before = pipes()
        for _ in range(40):
            Chatterbox.is_talking.clear()
            talker = world.host.spawn_procs().spawn("talker", Chatterbox)
            pending = talker.talk.call_one()
            wait_for(Chatterbox.is_talking.is_set)
            world.kill_proc(talker)
            with pytest.raises(SupervisionError, match="SIGKILL"):
                pending.get(timeout=SECONDS)
            world.wait_for_fault()
        wait_for(lambda: pipes() == before, what="pipes of procs that have ended are closed")


class Notifier(Actor):
    condition = threading.Condition()
    num_notified = 0

    @endpoint
    def notify(self) -> None:
        while True:
            with self.condition:
                self.condition.notify_all()
            type(self).num_notified += 1


@pytest.mark.skipif(
    sys.version_info >= (3, 13),
    reason="from Python 3.13 on what unwinds a thread may come a step later than where it was seen",
)
def test_a_proc_that_is_killed_while_it_has_a_lock_gives_it_back() -> None:
    """What a test shares with its actors is in order afterwards: events, queues, logging."""
    with in_process() as world:
        for _ in range(40):
            before = Notifier.num_notified
            notifier = world.host.spawn_procs().spawn("notifier", Notifier)
            pending = notifier.notify.call_one()
            wait_for(lambda: Notifier.num_notified > before)  # noqa: B023
            world.kill_proc(notifier)
            with pytest.raises(SupervisionError, match="SIGKILL"):
                pending.get(timeout=SECONDS)
            world.wait_for_fault()
            assert Notifier.condition.acquire(timeout=SECONDS)
            Notifier.condition.release()


def test_environments_are_the_procs_own() -> None:
    with in_process() as world:
        first = world.host.spawn_procs(env={"COLOUR": "red"}).spawn("echo", Echo)
        second = world.host.spawn_procs(env={"COLOUR": "blue"}).spawn("echo", Echo)
        colours = [
            one.environment.call_one("COLOUR").get(timeout=SECONDS) for one in (first, second)
        ]
        assert colours == ["red", "blue"]
        assert "COLOUR" not in os.environ


def test_everything_is_as_it_was_afterwards() -> None:
    def state() -> tuple[Any, ...]:
        hook = monarch.actor.unhandled_fault_hook
        return (
            os.getpid, os.kill, os._exit, os.environ, threading.Thread.start, hook,
            sys.stdout, sys.stderr,
        )  # fmt: skip

    outside = this_proc().spawn("echo", Echo)
    before, agent = state(), process.current()
    with in_process() as world:
        assert process.current() is not agent
        world.host.spawn_procs().spawn("echo", Echo).echo.call(1).get(timeout=SECONDS)
    assert state() == before
    assert process.current() is agent
    assert outside.echo.call_one(1).get(timeout=SECONDS) == 1


def test_a_world_goes_on_after_a_shutdown() -> None:
    with in_process():
        this_host().spawn_procs().spawn("echo", Echo).echo.call(1).get(timeout=SECONDS)
        shutdown_context().get(timeout=SECONDS)
        echo = this_host().spawn_procs().spawn("echo", Echo)
        assert echo.echo.call_one(1).get(timeout=SECONDS) == 1


def test_a_hundred_procs_are_cheap(world: World) -> None:
    echo = world.host.spawn_procs({"hosts": 10, "gpus": 10}).spawn("echo", Echo)
    assert echo.echo.call(1).get(timeout=60).values() == [1] * 100


@pytest.fixture
def world() -> Any:
    with in_process() as world:
        yield world
