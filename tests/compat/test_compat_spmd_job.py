"""``monarch.job.spmd``: torchrun commands on a host of a job."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch.actor import ActorError, shutdown_context
from monarch.compat.spmd_job import SPMDJob, TorchrunCommand, serve
from monarch.errors import JobError
from monarch.job import ProcessJob

SCRIPT = """
import os, sys
path = os.path.join(sys.argv[1], "rank" + os.environ["RANK"])
open(path, "w").write(" ".join(os.environ[name] for name in (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")))
sys.exit(int(sys.argv[2]))
"""


@pytest.fixture(autouse=True)
def no_client_stays() -> Iterator[None]:
    yield
    shutdown_context().get()


@pytest.mark.parametrize(
    ("command", "num_procs", "arguments"),
    [
        (["torchrun", "train.py"], 1, ["train.py"]),
        (["/env/bin/torchrun", "--nproc-per-node=8", "t.py", "--lr", 1], 8, ["t.py", "--lr", "1"]),
        (["torchrun", "--nproc_per_node", "2", "--standalone", "-m", "a.b", "-x"], 2,
         ["-m", "a.b", "-x"]),
        (["python", "-m", "torch.distributed.run", "--nnodes", "1", "t.py", "-m"], 1,
         ["t.py", "-m"]),
        (["torchrun", "--rdzv-backend", "c10d", "--", "t.py"], 1, ["t.py"]),
    ],
)  # fmt: skip
def test_commands(command: list[str], num_procs: int, arguments: list[str]) -> None:
    assert TorchrunCommand.parse(command) == (num_procs, arguments)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["python", "train.py"], "is no torchrun command"),
        (["torchrun", "--nnodes=2", "train.py"], "a command is for one node"),
        (["torchrun", "--nproc-per-node=gpu", "train.py"], "give a number"),
        (["torchrun", "--nproc-per-node"], "needs a value"),
        (["torchrun", "--standalone"], "no script"),
        ("torchrun train.py", "give the command as a list"),
    ],
)
def test_commands_that_cannot_be_run(command: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        serve(command)


def test_an_unknown_scheduler() -> None:
    with pytest.raises(JobError, match="there is no scheduler 'mast_conda' here"):
        serve(["torchrun", "t.py"], "mast_conda")


def test_ranks_run_the_script_as_under_torchrun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from monarch.job.spmd import serve as served_at_monarchs_address

    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text(SCRIPT)
    command = ["torchrun", "--nproc-per-node=2", "script.py", str(tmp_path), "0"]
    job = served_at_monarchs_address(command, scheduler=ProcessJob({"t": 1}))
    assert isinstance(job, SPMDJob)
    try:
        job.run_spmd()
        said = [(tmp_path / f"rank{rank}").read_text() for rank in range(2)]
        assert said == ["0 2 0 2", "1 2 1 2"]
        job.run_spmd()
        failing = SPMDJob(job.job, TorchrunCommand.parse([*command[:-1], "3"]))
        with pytest.raises(ActorError, match="exited with 3"):
            failing.run_spmd()
    finally:
        job.kill()
    assert not os.path.exists(".monarch/job_state.json")
