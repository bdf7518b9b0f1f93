"""A command on one host of an allocation, and the allocation's end with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch.job import JobTrait, ProcessJob, job_load
from tests.cli.command_folder import CommandFolder
from tests.support import is_running

PROJECT = """
[job]
hosts = { evals = 1, trainers = 2 }
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[CommandFolder]:
    made = CommandFolder(tmp_path)
    made.write("monarch.toml", PROJECT)
    made.monarch("apply")
    job = job_of(made)
    yield made
    job.kill()


def job_of(folder: CommandFolder) -> JobTrait:
    return job_load(folder.path / ".monarch/job_state.json")


def test_one_host_of_a_mesh(folder: CommandFolder) -> None:
    told = ["sh", "-c", "echo rank $MONARCH_RANK of the mesh"]
    said = folder.monarch("exec", "--mesh", "trainers", "--one", *told)
    assert said.splitlines() == ["rank 0 of the mesh"]
    assert folder.monarch("exec", "--mesh", "trainers", *told).count("of the mesh") == 2
    assert folder.monarch("exec", "--one", *told).splitlines() == ["rank 0 of the mesh"]


@pytest.mark.long
@pytest.mark.parametrize("status", [0, 7])
def test_the_allocation_ends_with_the_command(folder: CommandFolder, status: int) -> None:
    job = job_of(folder)
    assert isinstance(job, ProcessJob)
    pids = [host.pid for host in job.hosts]
    assert all(map(is_running, pids))
    said = folder.monarch(
        "exec", "--kill", "--all", "sh", "-c", f"echo here; exit {status}", status=status
    )
    assert said.count("here") == 3
    assert not any(map(is_running, pids))
    told = folder.monarch("exec", "true", status=1)
    assert "no allocation is up for this folder" in " ".join(told.split())
