"""SIGKILL for any one process of a DDP run, at random moments: the run ends right all the same.

Whatever is left is run again by the same command, as a person would, until it has ended.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch

from monarch.job import ProcessJob, job_load
from monarch.runs.record.folder import RunFolder, find_run, runs_in
from monarch_recipes.checkpoint import checkpoint_paths, load_checkpoint

COMMAND = [
    sys.executable, "-m", "monarch.cli.main", "run", "ddp", "num_channels=4", "num_epochs=6",
    "checkpoint_every=10", "evaluate_every=0", "device=cpu", "collective_timeout_seconds=60",
]  # fmt: skip
NUM_STEPS = 66
PATIENCE_SECONDS = 240.0


def start(folder: Path) -> subprocess.Popen[bytes]:
    with open(folder / "said.txt", "ab") as said:
        return subprocess.Popen(
            COMMAND, cwd=folder, stdin=subprocess.DEVNULL, stdout=said, stderr=said
        )


def processes_of(client: subprocess.Popen[bytes], folder: Path) -> dict[str, psutil.Process]:
    """One of each kind that there is at the moment: client, host agent, zygote, proc."""
    found = {"client": psutil.Process(client.pid)}
    state = folder / ".monarch/job_state.json"
    roots = [found["client"]]
    if state.exists():
        job = job_load(state)
        assert isinstance(job, ProcessJob)
        for host in job.hosts:
            found["host"] = psutil.Process(host.pid)
            roots.append(found["host"])
    for zygote in (child for root in roots for child in root.children()):
        found["zygote"] = zygote
        for proc in zygote.children():
            found["proc"] = proc
    return found


def last_of(folder: Path) -> dict[str, torch.Tensor]:
    found = checkpoint_paths(find_run("latest", folder / "runs").checkpoint_dir)[-1]
    model: dict[str, torch.Tensor] = load_checkpoint(found).state["model"]
    return model


def run_with_kills(folder: Path, victims: list[str], seed: int) -> RunFolder:
    """Kill each of ``victims`` at a random moment, and run again what has ended too early."""
    chance = random.Random(seed)
    deadline = time.monotonic() + PATIENCE_SECONDS
    client = start(folder)
    left = list(victims)
    try:
        while time.monotonic() < deadline:
            if left:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    client.wait(chance.uniform(0.0, 6.0))  # The random moment.
            if client.poll() is None and left:
                try:
                    victim = processes_of(client, folder).get(left[0])
                    if victim is not None:
                        victim.kill()
                        left.pop(0)
                except (psutil.Error, OSError):
                    pass  # It ended meanwhile, or the allocation is just being read.
                continue
            if not left and client.poll() is None:
                client.wait(max(1.0, deadline - time.monotonic()))
            run = find_run("latest", folder / "runs") if runs_in(folder / "runs") else None
            if run is not None and run.status == "finished" and not left:
                return run
            client = start(folder)
    finally:
        client.kill()
        client.wait()
    raise AssertionError((folder / "said.txt").read_text())


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    folder = tmp_path_factory.mktemp("straight")
    assert start(folder).wait(PATIENCE_SECONDS) == 0, (folder / "said.txt").read_text()
    return last_of(folder)


def check_end(run: RunFolder, folder: Path, straight: dict[str, torch.Tensor]) -> None:
    assert [row["step"] for row in run.metrics()] == list(range(1, NUM_STEPS + 1))
    for name, tensor in last_of(folder).items():
        assert torch.equal(tensor, straight[name]), name


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_one_kill_of_each_kind(tmp_path: Path, straight: dict[str, torch.Tensor]) -> None:
    run = run_with_kills(tmp_path, ["proc", "client", "zygote"], seed=1)
    check_end(run, tmp_path, straight)


@pytest.mark.huge
@pytest.mark.timeout(3000)
def test_twenty_kills_at_random_moments(tmp_path: Path, straight: dict[str, torch.Tensor]) -> None:
    chance = random.Random(20)
    for number in range(5):
        folder = tmp_path / str(number)
        folder.mkdir()
        victims = chance.choices(["proc", "proc", "client", "zygote"], k=4)
        run = run_with_kills(folder, victims, seed=number)
        check_end(run, folder, straight)


@pytest.mark.huge
@pytest.mark.timeout(1200)
def test_a_host_agent_that_is_killed(tmp_path: Path, straight: dict[str, torch.Tensor]) -> None:
    """Its allocation is gone with it; the same command goes on, on this machine alone."""
    (tmp_path / "monarch.toml").write_text("[job]\nhosts = { trainers = 2 }\n")
    monarch = [sys.executable, "-m", "monarch.cli.main"]
    subprocess.run([*monarch, "apply"], cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    try:
        run = run_with_kills(tmp_path, ["host"], seed=3)
    finally:
        subprocess.run([*monarch, "kill"], cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    check_end(run, tmp_path, straight)
    assert not os.path.exists(tmp_path / ".monarch/job_state.json")
