"""Distributed tensors on real GPUs, and groups of as many ranks as there are."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from monarch import inspect
from monarch.actor import Actor, endpoint, this_host
from monarch.spmd import setup_torch_elastic_env
from tests.gpu_here import num_gpus

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
SECONDS = 120


@pytest.fixture
def mesh() -> Iterator[Any]:
    procs = this_host().spawn_procs({"gpus": num_gpus()})
    with procs.activate():
        yield procs
    procs.stop().get()


def train(device: str) -> Any:
    """The loss of a few steps."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    model = model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = torch.zeros(())
    for number in range(4):
        given = torch.full((4, 8), float(number), device=device)
        loss = (model(given) - 1).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.detach()


class Plain(Actor):
    @endpoint
    def train(self, device: str) -> float:
        return float(train(device))


def test_a_training_step_is_the_one_that_torch_makes(mesh: Any) -> None:
    ours = float(inspect(train("cuda")))
    plain = this_host().spawn_procs({"gpus": 1}).spawn("plain", Plain)
    assert abs(ours - plain.train.call_one("cuda").get(timeout=SECONDS)) < 1e-4


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_reductions_on_both_devices_of_the_same_procs(mesh: Any, device: str) -> None:
    """Groups are of two backends: the host's memory goes by gloo, that of GPUs by NCCL."""
    rank = mesh.rank_tensor("gpus").to(device)
    total = (rank.float() + 1).reduce("gpus", "sum")
    assert float(inspect(total)) == sum(range(1, num_gpus() + 1))


class Rank(Actor):
    @endpoint
    def add_up(self) -> tuple[float, float, str]:
        import torch.distributed as dist

        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        torch.cuda.set_device(rank)
        dist.init_process_group("cpu:gloo,cuda:nccl")
        on_gpu, on_cpu = torch.ones(5, device="cuda") * rank, torch.ones(5) * rank
        dist.all_reduce(on_gpu)
        dist.all_reduce(on_cpu)
        found = float(on_gpu.mean()), float(on_cpu.mean()), str(dist.get_backend_config())
        dist.destroy_process_group()
        assert size == num_gpus()
        return found


def test_nccl_with_as_many_ranks_as_gpus() -> None:
    procs = this_host().spawn_procs({"gpus": num_gpus()})
    setup_torch_elastic_env(procs)
    ranks = procs.spawn("rank", Rank)
    expected = sum(range(num_gpus()))
    for _, (on_gpu, on_cpu, backend) in ranks.add_up.call().get(timeout=SECONDS).items():
        assert (on_gpu, on_cpu) == (expected, expected)
        assert "nccl" in backend
