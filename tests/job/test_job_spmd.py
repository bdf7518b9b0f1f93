"""The environment of torch.distributed, as torchrun would give it."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch.actor import Actor, ActorError, ProcMesh, endpoint, this_host
from monarch.job import ProcessJob
from monarch.spmd import SPMDActor, setup_torch_elastic_env, setup_torch_elastic_env_async
from monarch.utils import setup_env_for_distributed

NAMES = (
    "MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
    "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME",
)  # fmt: skip


class Environment(Actor):
    @endpoint
    def read(self, names: tuple[str, ...]) -> dict[str, str]:
        return {name: os.environ[name] for name in names}


@pytest.fixture
def four_procs() -> Iterator[ProcMesh]:
    job = ProcessJob({"trainers": 2})
    yield job.state(cached_path=None).trainers.spawn_procs({"gpus": 2})
    job.kill()


def _read(procs: ProcMesh) -> list[dict[str, str]]:
    actors = procs.spawn("environment", Environment)
    return list(actors.read.call(NAMES).get(timeout=30).values())


def test_two_hosts_of_two_procs(four_procs: ProcMesh) -> None:
    setup_torch_elastic_env(four_procs)
    found = _read(four_procs)
    masters = {(env.pop("MASTER_ADDR"), env.pop("MASTER_PORT")) for env in found}
    assert len(masters) == 1
    [(address, port)] = masters
    socket.gethostbyname(address)
    assert 0 < int(port) < 2**16
    for rank, env in enumerate(found):
        assert env == {
            "RANK": str(rank), "WORLD_SIZE": "4",
            "LOCAL_RANK": str(rank % 2), "LOCAL_WORLD_SIZE": "2",
            "GROUP_RANK": str(rank // 2), "GROUP_WORLD_SIZE": "2",
            "ROLE_RANK": str(rank), "ROLE_WORLD_SIZE": "4", "ROLE_NAME": "rank",
        }  # fmt: skip


@pytest.mark.long
def test_the_master_may_be_given() -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    asyncio.run(setup_torch_elastic_env_async(procs, "10.1.2.3", 4711))
    for env in _read(procs):
        assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("10.1.2.3", "4711")
        assert env["LOCAL_WORLD_SIZE"] == env["WORLD_SIZE"] == "2"


@pytest.mark.long
def test_the_older_spelling() -> None:
    procs = this_host().spawn_procs({"gpus": 2})
    asyncio.run(setup_env_for_distributed(procs, "10.1.2.3", 4711))
    assert [(env["RANK"], env["MASTER_PORT"]) for env in _read(procs)] == [
        ("0", "4711"),
        ("1", "4711"),
    ]
    asyncio.run(setup_env_for_distributed(procs))
    ports = {env["MASTER_PORT"] for env in _read(procs)}
    assert len(ports) == 1
    assert ports != {"4711"}


def test_a_single_proc_is_a_world_of_one() -> None:
    procs = this_host().spawn_procs()
    setup_torch_elastic_env(procs)
    [env] = _read(procs)
    assert (env["RANK"], env["WORLD_SIZE"], env["LOCAL_WORLD_SIZE"]) == ("0", "1", "1")


def test_half_a_master_is_refused() -> None:
    with pytest.raises(AssertionError, match="both"):
        setup_torch_elastic_env(this_host().spawn_procs(), "10.1.2.3")


def test_a_script_runs_with_its_arguments(tmp_path: os.PathLike[str]) -> None:
    script = os.path.join(tmp_path, "script.py")
    with open(script, "w") as file:
        file.write(
            "import os, sys\n"
            f"out = open({str(tmp_path)!r} + '/out' + os.environ['RANK'], 'w')\n"
            "out.write(' '.join(sys.argv[1:]))\n"
        )
    actors = this_host().spawn_procs({"gpus": 2}).spawn("spmd", SPMDActor)
    assert actors.main.call("127.0.0.1", 1, [script, "--lr", "3"]).get(timeout=30).values() == [
        True, True,
    ]  # fmt: skip
    for rank in (0, 1):
        with open(os.path.join(tmp_path, f"out{rank}")) as file:
            assert file.read() == "--lr 3"


def test_a_script_imports_what_lies_beside_it_and_may_exit(tmp_path: Path) -> None:
    (tmp_path / "beside_the_script.py").write_text("STATUS = {'well': 0, 'badly': 3}\n")
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nfrom beside_the_script import STATUS\nsys.exit(STATUS[sys.argv[1]])\n"
    )
    actors = this_host().spawn_procs({"gpus": 2}).spawn("spmd", SPMDActor)
    ends_well = actors.main.call("127.0.0.1", 1, [str(script), "well"])
    assert ends_well.get(timeout=30).values() == [True, True]
    with pytest.raises(ActorError, match=r"script.py exited with 3"):
        actors.main.call("127.0.0.1", 1, [str(script), "badly"]).get(timeout=30)
