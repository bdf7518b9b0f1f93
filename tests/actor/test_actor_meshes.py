"""Meshes of hosts, procs and actors: their shapes, their owners, their beginning and end."""

from __future__ import annotations

import asyncio
import os
import pickle
import threading
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

import monarch.actor
from monarch.actor import (
    Actor,
    HostMesh,
    ProcMesh,
    SupervisionError,
    context,
    current_actor_name,
    current_rank,
    current_size,
    endpoint,
    local_proc_mesh,
    proc_mesh,
    shutdown_context,
    this_host,
    this_proc,
)
from monarch.config import configure, configured, get_global_config
from monarch.runtime import process
from tests.actors import Async, BadInit, Cleans, Echo, Parent
from tests.support import is_running, wait_for

pytestmark = pytest.mark.in_a_world_too

# Shapes


def test_this_host_has_no_dimensions() -> None:
    assert this_host().sizes == {}
    assert len(this_host()) == 1


def test_this_proc_is_this_process() -> None:
    assert this_proc().sizes == {}
    assert this_proc().spawn("echo", Echo).pid.call_one().get() == os.getpid()


def test_async_actors_live_in_the_client_too() -> None:
    actor = this_proc().spawn("async", Async)
    assert actor.task.call_one("a").get() == "a"
    assert actor.meet.call_one(this_proc().spawn("other", Async)).get() == "met you"
    shutdown_context().get(timeout=20)

    wait_for(lambda: "monarch-asyncio" not in {t.name for t in threading.enumerate()})


@pytest.mark.processes
@pytest.mark.parametrize(
    ("per_host", "sizes"),
    [
        (None, {}),
        ({"gpus": 2}, {"gpus": 2}),
        ({"hosts": 1, "gpus": 2}, {"hosts": 1, "gpus": 2}),
        ({"b": 2, "a": 1}, {"b": 2, "a": 1}),
    ],
)
def test_a_proc_mesh_has_the_dimensions_that_were_asked_for(
    per_host: dict[str, int] | None, sizes: dict[str, int]
) -> None:
    procs = this_host().spawn_procs(per_host)
    assert procs.sizes == sizes
    assert list(procs.sizes) == list(sizes)
    pids = procs.spawn("echo", Echo).pid.call().get().values()
    assert len(set(pids)) == len(procs)
    assert os.getpid() not in pids


def test_ranks_count_row_major() -> None:
    echo = this_host().spawn_procs({"a": 2, "b": 2}).spawn("echo", Echo)
    for point, (rank, *_) in echo.ranks.call().get().items():
        assert rank == point.rank == 2 * point["a"] + point["b"]


@pytest.mark.parametrize("per_host", [{"gpus": 0}, {"gpus": -1}])
def test_a_dimension_has_at_least_one_member(per_host: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        this_host().spawn_procs(per_host)


def test_slicing_a_proc_mesh_and_an_actor_mesh_is_the_same() -> None:
    procs = this_host().spawn_procs({"a": 2, "b": 2})
    whole = procs.spawn("echo", Echo)
    by_slice = whole.slice(a=1).pid.call().get().values()
    assert list(procs.slice(a=1).region.as_shape().ranks()) == [2, 3]
    assert procs.slice(a=1).spawn("part", Echo).pid.call().get().values() == by_slice
    with pytest.raises(IndexError):
        whole.slice(a=2)
    with pytest.raises(TypeError):
        whole.slice(c=0)


def test_procs_have_the_environment_of_the_client_and_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FROM_THE_CLIENT", "inherited")
    procs = this_host().spawn_procs({"gpus": 2}, env={"ALL": "all"})
    echo = procs.spawn("echo", Echo)
    assert echo.environment.call("ALL").get().values() == ["all"] * 2
    assert echo.environment.call("FROM_THE_CLIENT").get().values() == ["inherited"] * 2


def test_a_variable_that_the_client_took_out_is_gone_in_new_procs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COMES_AND_GOES", "here")
    first = this_host().spawn_procs().spawn("echo", Echo)
    assert first.environment.call_one("COMES_AND_GOES").get() == "here"
    monkeypatch.delenv("COMES_AND_GOES")
    second = this_host().spawn_procs().spawn("echo", Echo)
    assert second.environment.call_one("COMES_AND_GOES").get() is None


@pytest.mark.processes
def test_procs_start_in_the_folder_of_the_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Where(Actor):
        @endpoint
        def folder(self) -> str:
            return os.getcwd()

    this_host().spawn_procs()
    monkeypatch.chdir(tmp_path)
    assert this_host().spawn_procs().spawn("w", Where).folder.call_one().get() == str(tmp_path)


def test_many_meshes_of_one_name_live_side_by_side() -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    one, other = procs.spawn("same", Echo, 1), procs.spawn("same", Echo, 100)
    assert one.add.call(1).get().values() == [2, 2]
    assert other.add.call(1).get().values() == [101, 101]


# Beginning


def test_initialized_says_when_it_is_up() -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    assert procs.initialized.get() is True
    assert procs.spawn("echo", Echo).initialized.get() is None
    assert this_host().initialized.get() is True


def test_initialized_raises_what_went_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monarch.actor, "unhandled_fault_hook", lambda failure: None)
    bad = this_host().spawn_procs().spawn("bad", BadInit)
    with pytest.raises(SupervisionError, match="cannot be made"):
        bad.initialized.get(timeout=20)


def test_the_older_spelling_is_awaited() -> None:
    async def main() -> None:
        procs = await proc_mesh(gpus=2, env={"OLD": "1"})
        assert isinstance(procs, ProcMesh)
        assert procs.sizes == {"hosts": 1, "gpus": 2}
        echo = await procs.spawn("echo", Echo, 5)
        assert (await echo.environment.call("OLD")).values() == ["1", "1"]
        assert [value async for value in _each(await echo.add.call(1))] == [6, 6]
        again = await echo
        assert again is echo
        hosts = await this_host()
        assert isinstance(hosts, HostMesh)

    async def _each(values: Any) -> Any:
        for _, value in values:
            yield value

    asyncio.run(main())


def test_the_older_spelling_without_await() -> None:
    echo = proc_mesh(gpus=2).spawn("echo", Echo)
    assert echo.echo.call(1).get().values() == [1, 1]
    assert local_proc_mesh(gpus=1, hosts=1).sizes == {"hosts": 1, "gpus": 1}


def test_awaiting_actors_that_cannot_be_made_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monarch.actor, "unhandled_fault_hook", lambda failure: None)

    async def main() -> None:
        with pytest.raises(SupervisionError, match="cannot be made"):
            await this_host().spawn_procs().spawn("bad", BadInit)

    asyncio.run(main())


# End


def test_stopping_procs_ends_them_and_calls_say_why() -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    echo = procs.spawn("echo", Echo)
    pids = echo.pid.call().get().values()
    procs.stop().get(timeout=20)
    assert not any(map(is_running, pids))
    with pytest.raises(SupervisionError, match="stopped"):
        echo.echo.call(1).get(timeout=20)
    procs.stop().get(timeout=20)


def test_stopping_procs_fails_calls_that_wait(tmp_path: Path) -> None:
    with configured(stop_timeout_seconds=0.1):
        procs = this_host().spawn_procs({"gpus": 2})
        waiting = procs.spawn("echo", Echo).wait_for_file.call(str(tmp_path / "never"))
        procs.initialized.get(timeout=20)
        procs.stop().get(timeout=20)
        with pytest.raises(SupervisionError, match="stopped"):
            waiting.get(timeout=20)


def test_only_the_owner_stops_procs() -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    with pytest.raises(ValueError, match="not owned"):
        procs.slice(gpus=0).stop()
    copy = pickle.loads(cloudpickle.dumps(procs))
    with pytest.raises(ValueError, match="not owned"):
        copy.stop()
    assert copy.spawn("echo", Echo).echo.call(1).get().values() == [1, 1]


def test_a_mesh_as_a_context_is_stopped_at_its_end() -> None:
    async def main() -> None:
        async with this_host().spawn_procs({"gpus": 2}) as procs:
            pids = (await procs.spawn("echo", Echo).pid.call()).values()
        assert not any(map(is_running, pids))
        with pytest.raises(RuntimeError, match="already been stopped"):
            async with procs:
                pass
        async with this_host() as host:
            await host.spawn_procs().spawn("echo", Echo).echo.call(1)
        assert await this_host().spawn_procs().spawn("echo", Echo).echo.call_one(1) == 1

    asyncio.run(main())


def test_stopping_actors_runs_their_cleanup_and_leaves_the_procs(tmp_path: Path) -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    cleans = procs.spawn("cleans", Cleans, str(tmp_path / "log"))
    cleans.stop().get(timeout=20)
    assert sorted((tmp_path / "log").read_text().splitlines()) == ["0 None", "1 None"]
    with pytest.raises(SupervisionError, match=r"cleans.*stopped"):
        cleans.echo.call(1).get(timeout=20)
    cleans.stop().get(timeout=20)
    assert procs.spawn("echo", Echo).echo.call(2).get().values() == [2, 2]


def test_messages_before_a_stop_are_handled_and_later_ones_refused() -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    echo = procs.spawn("echo", Echo)
    before = [echo.add.call(1) for _ in range(50)]
    echo.stop()
    after = [echo.add.call(1) for _ in range(50)]
    assert before[-1].get(timeout=20).values() == [50, 50]
    for future in after:
        with pytest.raises(SupervisionError):
            future.get(timeout=20)


def test_calls_of_others_that_wait_when_an_actor_stops_are_refused(tmp_path: Path) -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    echo = procs.slice(gpus=0).spawn("echo", Echo)

    class Caller(Actor):
        @endpoint
        def call(self, other: Any, path: str) -> str:
            future = other.echo.call_one(1)
            Path(path).touch()
            try:
                future.get(timeout=20)
            except SupervisionError:
                return "refused"
            return "answered"

    caller = procs.slice(gpus=1).spawn("caller", Caller)
    echo.wait_for_file.broadcast(str(tmp_path / "go"))
    stopped = echo.stop()
    answer = caller.call.call_one(echo, str(tmp_path / "sent"))
    wait_for((tmp_path / "sent").exists)
    (tmp_path / "go").touch()
    assert answer.get(timeout=20) == "refused"
    stopped.get(timeout=20)


@pytest.mark.parametrize("how", ["procs", "host", "context"])
def test_cleanup_runs_however_the_procs_are_stopped(tmp_path: Path, how: str) -> None:
    host = this_host()
    procs = host.spawn_procs({"gpus": 2})
    cleans = procs.spawn("cleans", Cleans, str(tmp_path / "log"))
    cleans.echo.call(1).get()
    stop = {"procs": procs.stop, "host": host.stop, "context": shutdown_context}[how]
    stop().get(timeout=20)
    assert sorted((tmp_path / "log").read_text().splitlines()) == ["0 None", "1 None"]


def _write(path: str, text: str) -> None:
    Path(path).write_text(text)


def test_an_async_cleanup(tmp_path: Path) -> None:
    class CleansAsync(Actor):
        def __init__(self, path: str) -> None:
            self.path = path

        @endpoint
        async def echo(self) -> int:
            return 1

        async def __cleanup__(self, error: Exception | None) -> None:
            await asyncio.sleep(0)
            _write(self.path, repr(error))

    cleans = this_host().spawn_procs().spawn("cleans", CleansAsync, str(tmp_path / "log"))
    cleans.echo.call_one().get()
    cleans.stop().get(timeout=20)
    assert (tmp_path / "log").read_text() == "None"


def test_a_cleanup_that_raises_does_not_keep_anything_from_ending() -> None:
    class Raises(Actor):
        @endpoint
        def echo(self) -> int:
            return 1

        def __cleanup__(self, error: Exception | None) -> None:
            raise ValueError("broken cleanup")

    procs = this_host().spawn_procs()
    raises = procs.spawn("raises", Raises)
    raises.echo.call_one().get()
    with pytest.raises(SupervisionError, match="broken cleanup"):
        raises.stop().get(timeout=20)
    raises.stop().get(timeout=20)
    procs.stop().get(timeout=20)


def test_stopping_in_any_order_does_not_hang() -> None:
    host = this_host()
    procs = host.spawn_procs({"gpus": 2})
    echo, async_ = procs.spawn("echo", Echo), procs.spawn("async", Async)
    echo.echo.call(1).get()
    futures = [procs.stop(), echo.stop(), async_.stop(), host.stop(), procs.stop()]
    for future in futures:
        future.get(timeout=20)
    early = this_host().spawn_procs({"gpus": 2})
    early.spawn("echo", Echo).stop()
    early.stop().get(timeout=20)
    shutdown_context().get(timeout=20)
    shutdown_context().get(timeout=20)


def test_after_a_shutdown_the_next_use_starts_anew() -> None:
    first = this_host().spawn_procs().spawn("echo", Echo)
    pid = first.pid.call_one().get()
    shutdown_context().get(timeout=20)
    assert not is_running(pid)
    second = this_host().spawn_procs().spawn("echo", Echo)
    assert second.pid.call_one().get() != pid


# Who am I


def test_the_context_of_the_client() -> None:
    here = context()
    assert here.actor_instance.name == "root"
    assert here.actor_instance.actor_id.is_root
    assert repr(here.actor_instance) == "<root>"
    assert current_rank().rank == 0
    assert current_size() == {}
    assert here.generation == 0


def test_the_context_of_an_actor() -> None:
    class Knows(Actor):
        def __init__(self) -> None:
            instance = context().actor_instance
            assert current_rank() == instance.rank
            assert current_size() == dict(instance.rank.extent)
            self.in_init = (current_rank().rank, instance.name)

        @endpoint
        def tell(self) -> Any:
            instance = context().actor_instance
            assert instance.proc_id == instance.actor_id.proc_id
            return (
                self.in_init,
                instance.name,
                instance.class_name.rpartition(".")[2],
                repr(instance).partition(".")[0],
                current_actor_name(),
                len(instance.proc),
            )

    knows = this_host().spawn_procs({"gpus": 2}).spawn("knows", Knows)
    first, second = knows.tell.call().get().values()
    assert this_host().spawn_procs({"gpus": 2}).slice(gpus=1).spawn(
        "one", Knows
    ).tell.call_one().get()[0] == (0, "one")
    assert first[:4] == ((0, "knows"), "knows", "Knows", "<root>")
    assert second[0] == (1, "knows")
    assert first[4] != second[4]
    assert first[5] == 1


def test_the_logger_is_named_after_the_class() -> None:
    echo = Echo.__new__(Echo)
    assert echo.logger.name == "Echo"


# Actors that spawn


def test_an_actor_spawns_in_its_own_process_and_calls_it() -> None:
    parent = this_host().spawn_procs({"gpus": 2}).spawn("parent", Parent)
    children = parent.spawn_here.call(Echo, 7).get().values()
    pids = [child.pid.call_one().get() for child in children]
    assert len(set(pids)) == 2
    assert parent.call_child.call().get().values() == [[5], [5]]
    assert children[0].add.call_one(1).get() == 8


def test_an_actor_spawns_procs_and_they_follow_it_into_the_end() -> None:
    procs = this_host().spawn_procs()
    parent = procs.spawn("parent", Parent)
    child = parent.spawn_procs.call_one(2).get(timeout=20)
    assert child.sizes == {"sub": 2}
    pids = child.pid.call().get(timeout=20).values()
    assert parent.call_child.call_one().get(timeout=20) == [5, 5]
    parent.stop().get(timeout=20)
    wait_for(lambda: not any(map(is_running, pids)))
    with pytest.raises(SupervisionError):
        child.echo.call(1).get(timeout=20)


def test_procs_of_a_proc_end_with_it() -> None:
    procs = this_host().spawn_procs()
    parent = procs.spawn("parent", Parent)
    child = parent.spawn_procs.call_one(2).get(timeout=20)
    pids = child.pid.call().get(timeout=20).values()
    procs.stop().get(timeout=20)
    wait_for(lambda: not any(map(is_running, pids)))


def test_what_an_actor_owns_ends_before_its_own_cleanup(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    procs = this_host().spawn_procs()
    parent = procs.spawn("parent", Parent, "handle", path)
    child = parent.spawn_here.call_one(Cleans, path).get()
    child.echo.call_one(1).get()
    parent.stop().get(timeout=20)
    assert (tmp_path / "log").read_text().splitlines() == ["0 None", "cleanup None"]


def test_a_call_that_overtakes_the_spawn_of_its_actor_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = process.current().node
    real, held = node.send, []

    def hold_back(*args: Any) -> None:
        held.append(args)

    monkeypatch.setattr(node, "send", hold_back)
    late = this_proc().spawn("late", Echo, 3)
    monkeypatch.setattr(node, "send", real)
    answer = late.add.call_one(1)
    with pytest.raises(TimeoutError):
        answer.get(timeout=0.02)
    for args in held:
        real(*args)
    assert answer.get(timeout=20) == 4


# Threads and settings


def test_two_threads_that_use_the_runtime_first_make_one_client() -> None:
    shutdown_context().get(timeout=20)
    agents = []
    barrier = threading.Barrier(4)

    def use() -> None:
        barrier.wait()
        agents.append(process.current())

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, agents))) == 1


def test_settings() -> None:
    before = get_global_config()
    with configured(stop_timeout_seconds=3) as now:
        assert now["stop_timeout_seconds"] == 3
        assert get_global_config() == now
    assert get_global_config() == before
    with pytest.raises(ValueError, match="unknown setting 'nothing'"):
        configure(nothing=1)
    with pytest.raises(TypeError, match="takes float, not str"):
        configure(stop_timeout_seconds="soon")
    with pytest.raises(TypeError):
        configure(log_tail_lines=True)
    assert get_global_config() == before
