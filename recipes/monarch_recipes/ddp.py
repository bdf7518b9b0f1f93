"""Data-parallel training: every rank has the whole model, and its share of each batch.

    monarch run ddp
    monarch run ddp --config ddp.toml learning_rate=1e-3 num_epochs=4

The defaults fit two processes on two CPU cores: a small network learns handwritten digits to
more than 97 % held-out accuracy in about ten seconds. With CUDA, each process takes the
GPU of its local rank. Read this file from top to bottom; copy it, and make it yours.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import socket
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from monarch.actor import Actor, ProcMesh, context, endpoint
from monarch.config_file import ConfigError
from monarch.spmd import setup_torch_elastic_env
from monarch_recipes.checkpoint import (
    Checkpoint,
    CheckpointError,
    load_checkpoint,
    load_latest_checkpoint,
    save_checkpoint,
)
from monarch_recipes.digits import NUM_CLASSES, load_digit_samples
from monarch_recipes.display import Display
from monarch_recipes.schedule import learning_rate_factor, position_of, split_batch


@dataclass(frozen=True)
class DDPConfig:
    """Everything that a run depends on, but for the processes it is given."""

    # Your own part: a module with `build_model`, `compute_loss` or both, instead of those below.
    task: str | None = None

    # The model.
    num_channels: int = 32  # of the first convolution; the second has twice as many
    dropout: float = 0.2

    # The data.
    held_out_fraction: float = 0.2  # of the data set, for evaluation only
    data_seed: int = 1  # decides the split and the order of the samples
    num_epochs: int = 24
    global_batch_size: int = 128  # samples a step, over all ranks
    max_micro_batch_size: int = 32  # samples a pass of one rank; more are accumulated

    # The optimizer: AdamW, linear warm-up, then a cosine down to zero.
    learning_rate: float = 4e-3  # the highest
    weight_decay: float = 0.01
    num_warmup_steps: int = 10
    clip_norm: float | None = 1.0  # of the whole gradient; "none" does not clip

    # Where and how it computes.
    seed: int = 0  # decides the first weights and the dropout
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["float32", "bfloat16"] = "float32"  # bfloat16 is autocast
    num_threads: int = 1  # of each rank, on a CPU
    collective_timeout_seconds: float = 300.0  # a rank that waits longer gives up

    # Evaluation and checkpoints, in steps; 0 leaves it to the end of the run.
    evaluate_every: int = 44
    checkpoint_every: int = 88
    checkpoint_dir: Path = Path("runs/ddp/checkpoints")
    num_checkpoints_kept: int = 3
    resume: str = "auto"  # the latest in checkpoint_dir; or "never"; or a checkpoint's path

    def __post_init__(self) -> None:
        for key in (
            "num_channels",
            "num_epochs",
            "global_batch_size",
            "max_micro_batch_size",
            "num_threads",
            "num_checkpoints_kept",
        ):
            if getattr(self, key) < 1:
                raise ConfigError("must be at least 1", key=key)
        for key in ("num_warmup_steps", "evaluate_every", "checkpoint_every"):
            if getattr(self, key) < 0:
                raise ConfigError("must not be negative", key=key)
        if not 0 < self.held_out_fraction < 1:
            raise ConfigError("must lie between 0 and 1", key="held_out_fraction")
        if not 0 <= self.dropout < 1:
            raise ConfigError("must be at least 0 and less than 1", key="dropout")
        if self.clip_norm is not None and self.clip_norm <= 0:
            raise ConfigError('must be more than 0, or "none"', key="clip_norm")


def build_model(config: DDPConfig) -> nn.Module:
    """Images (N, 1, 8, 8) to logits (N, 10)."""
    width = config.num_channels
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(config.dropout),
        nn.Linear(2 * width * 4 * 4, 128),
        nn.ReLU(),
        nn.Linear(128, NUM_CLASSES),
    )


def compute_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The mean loss of a micro-batch. Edit it while a run is going on, and sync."""
    return functional.cross_entropy(logits, labels)


def part(config: DDPConfig, name: str) -> Any:
    """`name` of the task module, where it has one; else of this file. Looked up at each use."""
    module = importlib.import_module(config.task) if config.task else None
    return getattr(module, name, None) or globals()[name]


@dataclass(frozen=True)
class Plan:
    """What `setup` found: how long the run is, and where it goes on."""

    first_step: int  # steps done before, by the run that is resumed
    num_steps: int
    num_steps_per_epoch: int
    num_parameters: int
    micro_batch_size: int
    num_micro_batches: int
    resumed_from: Path | None


@dataclass(frozen=True)
class StepResult:
    """One step, averaged over all ranks; equal on every rank but for the time it took there."""

    step: int  # counted from 1
    loss: float
    accuracy: float  # on the samples of this step, in training mode
    samples_per_second: float  # over all ranks
    learning_rate: float
    grad_norm: float  # before clipping
    generation: int = 0  # of the workspace whose code ran


@dataclass(frozen=True)
class SystemInfo:
    """Where a rank runs."""

    rank: int
    world_size: int
    hostname: str
    pid: int
    device: str
    backend: str
    torch_version: str


class Training:
    """The training of one rank. Every method is collective: all ranks must call it together.

    Expects the environment that torchrun gives: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, ...
    """

    def __init__(self, config: DDPConfig) -> None:
        self.config = config
        self.device = pick_device(config)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        else:
            torch.set_num_threads(config.num_threads)
        self.backend = pick_backend(self.device)
        if dist.is_initialized():
            dist.destroy_process_group()
        timeout = timedelta(seconds=config.collective_timeout_seconds)
        dist.init_process_group(self.backend, timeout=timeout)
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()

        digits = load_digit_samples(config.data_seed, config.held_out_fraction)
        self.train_samples = digits.train.to(self.device)
        self.held_out_samples = digits.held_out.to(self.device)
        self.sampler: DistributedSampler[int] = DistributedSampler(
            range(len(digits.train)), shuffle=True, seed=config.data_seed, drop_last=True
        )
        self.batch = split_batch(
            config.global_batch_size, self.world_size, config.max_micro_batch_size
        )
        self.num_steps_per_epoch = len(digits.train) // config.global_batch_size
        self.num_steps = self.num_steps_per_epoch * config.num_epochs
        if not self.num_steps:
            raise ValueError(
                f"a global batch of {config.global_batch_size} is more than "
                f"the {len(digits.train)} samples there are"
            )

        torch.manual_seed(config.seed)
        self.model = part(config, "build_model")(config).to(self.device)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay
        )
        self.step = 0
        self.epoch = -1
        self.epoch_order: list[int] = []
        # Ranks draw their dropout from different streams.
        torch.manual_seed(config.seed + 1 + self.rank)
        self.resumed_from = self.resume()
        # Wrapped last, so that rank 0's weights reach everybody, resumed or fresh.
        device_ids = [self.device.index] if self.device.type == "cuda" else None
        self.parallel_model = DistributedDataParallel(self.model, device_ids=device_ids)

    def plan(self) -> Plan:
        """How long the run is, and where it goes on."""
        return Plan(
            first_step=self.step,
            num_steps=self.num_steps,
            num_steps_per_epoch=self.num_steps_per_epoch,
            num_parameters=sum(parameter.numel() for parameter in self.model.parameters()),
            micro_batch_size=self.batch.micro_batch_size,
            num_micro_batches=self.batch.num_micro_batches,
            resumed_from=self.resumed_from,
        )

    def train_step(self) -> StepResult:
        """Learn from one global batch."""
        started = time.perf_counter()
        config = self.config
        learning_rate = config.learning_rate * learning_rate_factor(
            self.step, config.num_warmup_steps, self.num_steps
        )
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate

        self.model.train()
        self.optimizer.zero_grad()
        totals = torch.zeros(2, dtype=torch.float64, device=self.device)  # loss, correct
        micro_batches = self.next_samples().split(self.batch.micro_batch_size)
        for number, indices in enumerate(micro_batches, 1):
            images, labels = self.train_samples.images[indices], self.train_samples.labels[indices]
            # Gradients travel once a step, with the last micro-batch.
            is_last = number == self.batch.num_micro_batches
            with contextlib.nullcontext() if is_last else self.parallel_model.no_sync():
                with self.autocast():
                    logits = self.parallel_model(images)
                loss = part(self.config, "compute_loss")(logits.float(), labels)
                (loss / self.batch.num_micro_batches).backward()
            totals[0] += loss.detach() * len(labels)
            totals[1] += (logits.argmax(1) == labels).sum()
        limit = float("inf") if config.clip_norm is None else config.clip_norm
        grad_norm = nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        self.optimizer.step()
        self.step += 1

        dist.all_reduce(totals)
        loss_sum, num_correct = totals.tolist()
        return StepResult(
            step=self.step,
            loss=loss_sum / config.global_batch_size,
            accuracy=num_correct / config.global_batch_size,
            samples_per_second=config.global_batch_size / (time.perf_counter() - started),
            learning_rate=learning_rate,
            grad_norm=float(grad_norm),
        )

    def next_samples(self) -> torch.Tensor:
        """Which training samples are this rank's share of the coming step.

        It depends on the step alone, so a resumed run goes on in the middle of its epoch; and all
        ranks together see the same samples in a step, however many they are.
        """
        position = position_of(self.step, self.num_steps_per_epoch)
        if position.epoch != self.epoch:
            self.epoch = position.epoch
            self.sampler.set_epoch(position.epoch)
            self.epoch_order = list(self.sampler)
        start = position.step_in_epoch * self.batch.per_rank
        indices = self.epoch_order[start : start + self.batch.per_rank]
        return torch.tensor(indices, device=self.device)

    def evaluate(self) -> float:
        """Accuracy on the held-out samples, of which each rank looks at its share."""
        share = slice(self.rank, None, self.world_size)
        images, labels = self.held_out_samples.images[share], self.held_out_samples.labels[share]
        self.model.eval()
        with torch.no_grad(), self.autocast():
            num_correct = (self.model(images).argmax(1) == labels).sum()
        counts = torch.tensor([num_correct, len(labels)], dtype=torch.float64, device=self.device)
        dist.all_reduce(counts)
        return float(counts[0] / counts[1])

    def save(self, generation: int = 0) -> Path:
        """Write a checkpoint. Rank 0 does it; the path is only good on its machine."""
        random_states: list[Any] = [None] * self.world_size
        dist.all_gather_object(random_states, random_state(self.device))
        path = self.config.checkpoint_dir / f"step-{self.step:08}.pt"
        if self.rank == 0:
            state = {
                "step": self.step,
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "random_states": random_states,
                "generation": generation,
            }
            save_checkpoint(
                self.config.checkpoint_dir, self.step, state, self.config.num_checkpoints_kept
            )
        return path

    def resume(self) -> Path | None:
        """Go on from the checkpoint that the config asks for, if there is one.

        Only rank 0 needs to see the file. A run may be resumed by any number of ranks.
        """
        found: list[Any] = [self.find_checkpoint() if self.rank == 0 else None]
        dist.broadcast_object_list(found)
        checkpoint: Checkpoint | CheckpointError | None = found[0]
        if isinstance(checkpoint, CheckpointError):
            raise checkpoint
        if checkpoint is None:
            return None
        self.model.load_state_dict(checkpoint.state["model"])
        self.optimizer.load_state_dict(checkpoint.state["optimizer"])
        self.step = checkpoint.state["step"]
        random_states = checkpoint.state["random_states"]
        if len(random_states) == self.world_size:
            set_random_state(random_states[self.rank])
        else:
            torch.manual_seed(self.config.seed + 1 + self.rank + self.world_size * self.step)
        return checkpoint.path

    def find_checkpoint(self) -> Checkpoint | CheckpointError | None:
        """The checkpoint to resume; an error is a value here, for all ranks to raise together."""
        if self.config.resume == "never":
            return None
        try:
            if self.config.resume == "auto":
                return load_latest_checkpoint(self.config.checkpoint_dir)
            return load_checkpoint(Path(self.config.resume))
        except CheckpointError as error:
            return CheckpointError(str(error))

    def autocast(self) -> torch.autocast:
        """Computes in bfloat16 where the config asks for it."""
        enabled = self.config.precision == "bfloat16"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=enabled)


def pick_device(config: DDPConfig) -> torch.device:
    """The GPU of this process's local rank, or the CPU."""
    if config.device == "cpu" or (config.device == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())


def pick_backend(device: torch.device) -> str:
    """NCCL where every process has a GPU of its own, else gloo."""
    if device.type == "cuda" and int(os.environ["LOCAL_WORLD_SIZE"]) <= torch.cuda.device_count():
        return "nccl"
    return "gloo"


def random_state(device: torch.device) -> dict[str, torch.Tensor]:
    """The state of the generators that this rank draws from."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: dict[str, torch.Tensor]) -> None:
    """The reverse of `random_state`."""
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


class DDPTrainer(Actor):
    """One rank of the training, to be driven by hand from a notebook cell or by `run`."""

    def __init__(self, config: DDPConfig) -> None:
        self.config = config
        self.training: Training | None = None

    @endpoint
    def setup(self) -> Plan:
        """Join the process group, build the model, resume. Call it first."""
        self.training = Training(self.config)
        return self.training.plan()

    @endpoint
    def step(self) -> StepResult:
        """One step of training."""
        return self.train_step()

    @endpoint
    def train(self, num_steps: int) -> list[StepResult]:
        """Several steps without a message in between, and so without a reload."""
        return [self.train_step() for _ in range(num_steps)]

    @endpoint
    def evaluate(self) -> float:
        """Accuracy on the held-out samples."""
        return self.running().evaluate()

    @endpoint
    def save(self) -> Path:
        """Write a checkpoint, and say where."""
        return self.running().save(context().generation)

    @endpoint
    def system_info(self) -> SystemInfo:
        """Where this rank runs."""
        training = self.running()
        return SystemInfo(
            rank=training.rank,
            world_size=training.world_size,
            hostname=socket.gethostname(),
            pid=os.getpid(),
            device=str(training.device),
            backend=training.backend,
            torch_version=torch.__version__,
        )

    def train_step(self) -> StepResult:
        result = self.running().train_step()
        return dataclasses.replace(result, generation=context().generation)

    def running(self) -> Training:
        if self.training is None:
            raise RuntimeError("call setup() on the trainer first")
        return self.training

    def __cleanup__(self, error: Exception | None) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    step: int
    held_out_accuracy: float
    checkpoint: Path


def run(config: DDPConfig, procs: ProcMesh, display: Display) -> Outcome:
    """Train to the end on `procs`, step by step, so that code can change between two steps.

    Ctrl-C saves a checkpoint first; the same command then goes on from there.
    """
    setup_torch_elastic_env(procs)
    trainer = procs.spawn("trainer", DDPTrainer, config)
    plan: Plan = of_first_rank(trainer.setup.call().get())
    num_ranks = len(trainer)
    display.message(
        f"{plan.num_parameters:,} parameters on {num_ranks} ranks, "
        f"{plan.num_micro_batches} x {plan.micro_batch_size} samples each a step, "
        f"{plan.num_steps} steps, {plan.num_steps_per_epoch} an epoch"
    )
    if plan.resumed_from:
        display.message(f"resumed from {plan.resumed_from}, after step {plan.first_step}")

    step = plan.first_step
    try:
        while step < plan.num_steps:
            result: StepResult = of_first_rank(trainer.step.call().get())
            step = result.step
            values = dataclasses.asdict(result)
            del values["step"]
            display.metrics(step, plan.num_steps, values)
            is_end = step == plan.num_steps
            if not is_end and config.evaluate_every and step % config.evaluate_every == 0:
                accuracy = of_first_rank(trainer.evaluate.call().get())
                display.metrics(step, plan.num_steps, {"held_out_accuracy": accuracy})
            if not is_end and config.checkpoint_every and step % config.checkpoint_every == 0:
                display.message(f"saved {of_first_rank(trainer.save.call().get())}")
    except KeyboardInterrupt:
        display.message(f"interrupted: saved {of_first_rank(trainer.save.call().get())}")
        trainer.stop().get()
        raise

    accuracy = of_first_rank(trainer.evaluate.call().get())
    display.metrics(step, plan.num_steps, {"held_out_accuracy": accuracy})
    checkpoint = of_first_rank(trainer.save.call().get())
    display.message(f"held-out accuracy {accuracy:.1%} after step {step}; saved {checkpoint}")
    trainer.stop().get()
    return Outcome(step, accuracy, checkpoint)


def of_first_rank(values: Any) -> Any:
    """What rank 0 answered."""
    return values.get(0)
