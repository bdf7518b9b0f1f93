"""Some procs train, others evaluate what they have learned so far, at the same time.

    monarch run examples/roles/train_eval.py                         2 train, 1 evaluates
    monarch run examples/roles/train_eval.py --roles train=4,eval=2  with GPUs: one for each proc

The trainers publish their weights each `publish_every` steps, and go on. The evaluators
fetch the newest version when they have time, so that nobody waits for anybody; the best of them is
saved. `monarch.toml` may say it, too:  [roles]  train = 4  eval = 2
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from monarch.actor import Actor, Future, ProcMesh, ValueMesh, current_rank, endpoint
from monarch.config_file import live
from monarch.rdma import SharedStateDict
from monarch.runs import Holding, Record
from monarch.spmd import setup_torch_elastic_env

ROLES = {"train": 2, "eval": 1}  # procs of each, where nobody says otherwise
PRELOAD = ("torch", "torch._dynamo")  # imported once a host


@dataclass(frozen=True)
class Config:
    num_steps: int = 60
    publish_every: int = 10
    batch_size: int = 64  # of each trainer
    num_held_out: int = 1000  # over all evaluators
    learning_rate: float = live(1e-2)


def build_model() -> nn.Module:
    return nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 1))


def samples(num: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = 6 * torch.rand(num, 1, generator=torch.Generator().manual_seed(seed)) - 3
    return inputs, torch.sin(inputs)


def own_device() -> torch.device:
    """Return the GPU of this proc, or the CPU if there is none."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())


class Trainer(Actor):
    """A rank of the process group that trains the model."""

    def __init__(self, config: Config, weights: SharedStateDict) -> None:
        self.config, self.weights = config, weights

    @endpoint
    def setup(self) -> None:
        self.device = own_device()
        is_cpu = self.device.type == "cpu"
        dist.init_process_group("gloo" if is_cpu else "cpu:gloo,cuda:nccl")
        torch.manual_seed(0)
        self.model = build_model().to(self.device)
        self.parallel_model = DistributedDataParallel(self.model)
        self.optimizer = torch.optim.Adam(self.model.parameters())

    @endpoint
    def step(self, step: int, learning_rate: float) -> float:
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        seed = step * dist.get_world_size() + dist.get_rank()
        inputs, labels = samples(self.config.batch_size, seed)
        outputs = self.parallel_model(inputs.to(self.device))
        loss = functional.mse_loss(outputs, labels.to(self.device))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    @endpoint
    def publish(self, step: int) -> None:
        """Publish the weights as the version of this step, from rank 0: all ranks have the same."""
        self.weights.publish(self.model.state_dict(), version=step).get()


class Evaluator(Actor):
    """Looks at its share of the held-out samples."""

    def __init__(self, config: Config, weights: SharedStateDict) -> None:
        self.config, self.weights = config, weights
        self.device = own_device()
        self.model = build_model().to(self.device)

    @endpoint
    def evaluate(self, version: int) -> tuple[float, int]:
        """Evaluate this version of the weights on this rank's share of the held-out samples.

        Returns the sum of the losses, and the number of samples.
        """
        self.weights.fetch(self.model, version=version).get()
        point = current_rank()  # among the evaluators
        mine = slice(point.rank, None, point.extent.nelements)
        inputs, labels = (
            tensor[mine].to(self.device) for tensor in samples(self.config.num_held_out, -1)
        )
        with torch.no_grad():
            loss = functional.mse_loss(self.model(inputs), labels, reduction="sum")
        return loss.item(), len(inputs)

    @endpoint
    def save(self, path: str) -> None:
        torch.save(self.model.state_dict(), path)


def run(config: Config, procs: ProcMesh, record: Record) -> dict[str, float]:
    meshes = record.meshes_of(procs, **ROLES)
    setup_torch_elastic_env(meshes["train"])
    weights = SharedStateDict("weights")
    trainers = meshes["train"].spawn("trainer", Trainer, config, weights)
    evaluators = meshes["eval"].spawn("evaluator", Evaluator, config, weights)
    trainers.setup.call().get()
    publisher = trainers.flatten("rank").slice(rank=0)
    holding = Holding(meshes["train"], trainers, record)
    going_on: tuple[int, Future[ValueMesh[tuple[float, int]]]] | None = None
    best, published = float("inf"), 0

    def take(step: int) -> None:
        """Report an evaluation that has ended; its weights are of an earlier step."""
        nonlocal best, going_on
        assert going_on is not None
        version, future = going_on
        going_on = None
        answers = future.get().values()
        loss = sum(total for total, _ in answers) / sum(number for _, number in answers)
        record.metrics(step, config.num_steps, {"held_out_loss": loss})
        if loss < best:
            best = loss
            path = record.checkpoint_dir / "best.pt"
            evaluators.flatten("rank").slice(rank=0).save.call_one(str(path.absolute())).get()
            record.event("best", f"the best so far, {loss:.4g}, is of step {version}", step=version)

    step = 0
    while step < config.num_steps and not record.is_stopping:
        step += 1
        config = record.live(config)
        losses = holding.ask(trainers.step, step, config.learning_rate, doing=f"step {step}")
        record.metrics(step, config.num_steps, {"loss": sum(losses) / len(losses)})
        if step % config.publish_every == 0 or step == config.num_steps:
            publisher.publish.call_one(step).get()
            published = step
        if going_on is not None and going_on[1].done():
            take(step)
        if going_on is None and published:
            going_on, published = (published, evaluators.evaluate.call(published)), 0
    if going_on is not None:
        take(step)
    if published:
        going_on = published, evaluators.evaluate.call(published)
        take(step)
    return {"best_held_out_loss": best}
