"""A mesh of hosts from within a job of ordinary ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from monarch.compat.spmd_job import StoreJob
from monarch.runtime.hosts.agent_process import AGENT_PROGRAM
from monarch.spmd import host_mesh_from_store
from tests.support import Program, is_running, wait_for

RANK = """
    import os, threading, time
    from monarch.actor import Actor, endpoint
    from monarch.spmd import host_mesh_from_store

    class FileStore:
        def set(self, key, value):
            path = os.path.join(os.environ["STORE"], key.replace("/", "-"))
            with open(path + ".new", "w") as file:
                file.write(value)
            os.rename(path + ".new", path)

        def get(self, key):
            path = os.path.join(os.environ["STORE"], key.replace("/", "-"))
            while not os.path.exists(path):
                time.sleep(0.005)
            with open(path, "rb") as file:
                return file.read()

    class Where(Actor):
        @endpoint
        def parent(self):
            return os.getppid()

    from monarch.job.spmd import StoreJob
    if "AS_JOB" in os.environ:
        job = StoreJob.from_store(FileStore(), name="trainers")
        hosts = job and job.state().trainers
    else:
        hosts = host_mesh_from_store(FileStore())
    if hosts is None:
        print("mesh none")
    else:
        where = hosts.spawn_procs({"gpus": 2}).spawn("where", Where)
        print("mesh", len(set(where.parent.call().get(timeout=60).values())), hosts.extent)
    if "AS_JOB" in os.environ and job:
        job.kill()
        again = job.state().trainers.spawn_procs({"gpus": 1}).spawn("where", Where)
        print("again", len(again.parent.call().get(timeout=60)), job.active)
    threading.Event().wait()
"""


def _ranks(program: Callable[..., Program], store: Path, **more: str) -> list[Program]:
    return [
        program(
            RANK,
            STORE=str(store), RANK=str(rank), LOCAL_RANK=str(rank % 2), WORLD_SIZE="4",
            LOCAL_WORLD_SIZE="2", PYTHONUNBUFFERED="1", **more,
        )
        for rank in range(4)
    ]  # fmt: skip


def test_rank_zero_gets_a_host_for_each_machine_and_the_agents_end_with_their_ranks(
    program: Callable[..., Program], tmp_path: Path
) -> None:
    ranks = _ranks(program, tmp_path)
    # Each host makes its procs from a template of its own.
    assert ranks[0].line("mesh", 60) == "2 {hosts: 2}"
    assert [rank.line("mesh") for rank in ranks[1:]] == ["none"] * 3
    agents = [child for rank in ranks for child in psutil.Process(rank.pid).children()]
    workers = [agent.pid for agent in agents if AGENT_PROGRAM in agent.cmdline()]
    assert len(workers) == 2
    for rank in ranks:
        rank.process.kill()
    wait_for(lambda: not any(map(is_running, workers)), what="agents end with their ranks")


@pytest.mark.long
def test_the_machines_of_the_ranks_are_a_job_that_ends_with_them(
    program: Callable[..., Program], tmp_path: Path
) -> None:
    ranks = _ranks(program, tmp_path, AS_JOB="1")
    assert ranks[0].line("mesh", 60) == "2 {hosts: 2}"
    assert ranks[0].line("again", 60) == "2 True"
    assert [rank.line("mesh") for rank in ranks[1:]] == ["none"] * 3
    assert not (tmp_path / ".monarch").exists(), "no other program could go on with it"


def test_a_store_job_is_active_from_its_state_to_its_end() -> None:
    job = StoreJob([], "workers")
    assert not job.active
    assert not job.is_running()
    job.apply()
    assert job.active
    assert job.is_running()
    assert not job.can_run(job)
    job.kill()
    assert not job.active
    assert not job.is_running()


class Nothing:
    """A store that must not be asked."""


def test_ranks_that_have_no_part_return_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    mesh = host_mesh_from_store(Nothing(), rank=3, local_rank=1, world_size=4, local_world_size=2)
    assert mesh is None


@pytest.mark.parametrize("missing", ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"])
def test_a_missing_variable_is_named(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.delenv(missing)
    with pytest.raises(RuntimeError, match=f"^{missing} is not set"):
        host_mesh_from_store(Nothing())


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"world_size": 3, "local_world_size": 2}, "not divisible"),
        ({"world_size": 3, "local_world_size": 0}, "not divisible"),
        ({"world_size": 2, "local_world_size": 2, "transport": "smoke"}, "unsupported transport"),
        ({"world_size": 2, "local_world_size": 2, "transport": "tcp"}, "must be an explicit port"),
    ],
)
def test_what_does_not_fit_is_refused(arguments: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        host_mesh_from_store(Nothing(), rank=0, local_rank=0, **arguments)  # type: ignore[arg-type]
