"""Data-parallel training: every rank has the whole model, and its share of each batch.

    monarch run ddp
    monarch run ddp --config ddp.toml learning_rate=1e-3 num_epochs=4

The defaults fit two processes on two CPU cores: a small network learns handwritten digits to
more than 97 % held-out accuracy in about ten seconds. With CUDA, each process takes the
GPU of its local rank. Read this file from top to bottom; copy it (`monarch recipe cp ddp
my_recipe.py`), and make it yours: your data, model and loss go into the four functions below.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import math
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler, default_collate

from monarch.actor import Actor, HostMesh, ProcMesh, context, endpoint
from monarch.config import configured
from monarch.config_file import ConfigError, live
from monarch.errors import ActorError
from monarch.runs import Record
from monarch.runs.ranks import RunFailed, ask_all
from monarch.runs.recovery import noticing_losses, with_restarts
from monarch.runs.restarts import Restarts
from monarch.runs.witness import Witness
from monarch.spmd import setup_torch_elastic_env
from monarch_recipes.checkpoint import (
    Checkpoint,
    CheckpointError,
    check_model,
    load_checkpoint,
    load_latest_checkpoint,
    random_state,
    save_checkpoint,
    set_random_state,
)
from monarch_recipes.digits import NUM_CLASSES, load_digit_samples
from monarch_recipes.memory import memory_of_step
from monarch_recipes.rendezvous import meet_at, open_store
from monarch_recipes.schedule import learning_rate_factor, position_of, split_batch

# Imported once a host, ahead of its procs, which are forked from there and so begin in
# milliseconds. Without the second, each proc would take seconds to import it for its optimizer.
PRELOAD = ("torch", "torch._dynamo")


@dataclass(frozen=True)
class DDPConfig:
    """Everything that a run depends on, but for the hosts it is given.

    Keys with `live` may change while it runs: edit the TOML file.
    """

    # Your own part: a module with some of the four functions below, to be used instead of them.
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
    learning_rate: float = live(4e-3)  # the highest
    weight_decay: float = live(0.01)
    num_warmup_steps: int = 10
    clip_norm: float | None = live(1.0)  # of the whole gradient; "none" does not clip

    # Where and how it computes.
    seed: int = 0  # decides the first weights and the dropout
    num_ranks: int | None = None  # "none" takes all procs
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["float32", "bfloat16", "float16"] = "float32"  # the latter by autocast
    num_threads: int = 1  # of each rank, on a CPU
    master_port: int = 0  # where the ranks meet; 0 is any port that is free

    # What may go wrong.
    collective_timeout_seconds: float = 300.0  # a step that takes longer hangs
    max_restarts: int = 5  # after deaths and hangs, in a row without a new checkpoint

    # Evaluation and checkpoints, in steps; 0 leaves it to the end of the run.
    evaluate_every: int = live(44)
    checkpoint_every: int = live(44)
    log_every: int = live(1)
    num_checkpoints_kept: int = 3
    resume: str = "auto"  # the latest of the run's; or "never"; or a checkpoint's path

    def __post_init__(self) -> None:
        for key in (
            "num_channels",
            "num_epochs",
            "global_batch_size",
            "max_micro_batch_size",
            "num_threads",
            "log_every",
            "num_checkpoints_kept",
        ):
            if getattr(self, key) < 1:
                raise ConfigError("must be at least 1", key=key)
        for key in ("num_warmup_steps", "evaluate_every", "checkpoint_every", "max_restarts"):
            if getattr(self, key) < 0:
                raise ConfigError("must not be negative", key=key)
        if not 0 < self.held_out_fraction < 1:
            raise ConfigError("must lie between 0 and 1", key="held_out_fraction")
        if not 0 <= self.dropout < 1:
            raise ConfigError("must be at least 0 and less than 1", key="dropout")
        if self.clip_norm is not None and self.clip_norm <= 0:
            raise ConfigError('must be more than 0, or "none"', key="clip_norm")
        if self.num_ranks is not None and self.num_ranks < 1:
            raise ConfigError('must be at least 1, or "none"', key="num_ranks")
        if not self.collective_timeout_seconds > 0:
            raise ConfigError("must be more than 0", key="collective_timeout_seconds")


# What is learned from what. Edit it while a run is going on, with `monarch sync --watch` beside it:
# all ranks take the new loss or schedule between two steps, and keep weights and optimizer.


class Data(NamedTuple):
    """Two data sets, with `len(data)` and `data[index] -> (input, label)`."""

    train: Any
    held_out: Any


def load_data(config: DDPConfig) -> Data:
    """Any data set goes here. Every rank has it; a sampler gives each its share of the indices."""
    digits = load_digit_samples(config.data_seed, config.held_out_fraction)
    return Data(digits.train, digits.held_out)


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
    """The mean loss of a micro-batch."""
    return functional.cross_entropy(logits, labels)


def learning_rate_at(config: DDPConfig, step: int, num_steps: int) -> float:
    """The learning rate of `step`, counted from 0."""
    return config.learning_rate * learning_rate_factor(step, config.num_warmup_steps, num_steps)


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
    skipped: tuple[str, ...] = ()  # checkpoints that could not be used, and why


@dataclass(frozen=True)
class StepResult:
    """One step, averaged over all ranks; the last three are of this rank alone."""

    step: int  # counted from 1
    loss: float
    accuracy: float  # on the samples of this step, in training mode
    samples_per_second: float  # over all ranks
    learning_rate: float
    grad_norm: float  # before clipping
    rank: int = 0
    busy_seconds: float = 0.0  # until it began to wait for the others
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


class SampleError(RuntimeError):
    """A sample could not be read; the message names rank and sample."""


class NonFiniteLoss(ArithmeticError):
    """The loss is no number any more; nothing was learned from this step."""


class Training:
    """The training of one rank. Every method is collective: all ranks must call it together.

    Expects the environment that torchrun gives: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, ...
    """

    def __init__(self, config: DDPConfig, checkpoint_dir: Path) -> None:
        self.config = config
        self.checkpoint_dir = checkpoint_dir
        self.device = pick_device(config)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        else:
            torch.set_num_threads(config.num_threads)
        self.backend = pick_backend(self.device)
        if dist.is_initialized():
            dist.destroy_process_group()
        # Whoever waits for a rank that hangs is asked for its stack first, and gives up later.
        timeout = timedelta(seconds=2 * config.collective_timeout_seconds + 10)
        dist.init_process_group(self.backend, timeout=timeout)
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()

        self.data: Data = part(config, "load_data")(config)
        self.sampler: DistributedSampler[int] = DistributedSampler(
            range(len(self.data.train)), shuffle=True, seed=config.data_seed, drop_last=True
        )
        self.batch = split_batch(
            config.global_batch_size, self.world_size, config.max_micro_batch_size
        )
        self.num_steps_per_epoch = len(self.data.train) // config.global_batch_size
        self.num_steps = self.num_steps_per_epoch * config.num_epochs
        if not self.num_steps:
            raise ValueError(
                f"a global batch of {config.global_batch_size} is more than "
                f"the {len(self.data.train)} samples there are"
            )

        torch.manual_seed(config.seed)
        self.model = part(config, "build_model")(config).to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=config.learning_rate)
        # Half precision has too little range for small gradients; bfloat16 needs no scaling.
        self.scaler = torch.amp.GradScaler(
            self.device.type, enabled=config.precision == "float16", init_scale=2.0**12
        )
        self.step = 0
        self.epoch = -1
        self.epoch_order: list[int] = []
        # Ranks draw their dropout from different streams.
        torch.manual_seed(config.seed + 1 + self.rank)
        self.skipped: list[str] = []
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
            skipped=tuple(self.skipped),
        )

    def train_step(self) -> StepResult:
        """Learn from one global batch."""
        started = time.perf_counter()
        config = self.config
        learning_rate = part(config, "learning_rate_at")(config, self.step, self.num_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
            group["weight_decay"] = config.weight_decay

        self.model.train()
        self.optimizer.zero_grad()
        totals = torch.zeros(2, dtype=torch.float64, device=self.device)  # loss, correct
        busy_seconds = 0.0
        indices = self.next_samples()
        for first in range(0, len(indices), self.batch.micro_batch_size):
            last = first + self.batch.micro_batch_size
            inputs, labels = self.fetch(self.data.train, indices[first:last])
            # Gradients travel once a step, with the last micro-batch.
            is_last = last == len(indices)
            with contextlib.nullcontext() if is_last else self.parallel_model.no_sync():
                with self.autocast():
                    logits = self.parallel_model(inputs)
                loss = part(config, "compute_loss")(logits.float(), labels)
                busy_seconds = time.perf_counter() - started
                self.scaler.scale(loss / self.batch.num_micro_batches).backward()
            totals[0] += loss.detach() * len(labels)
            totals[1] += (logits.argmax(1) == labels).sum()
        loss_sum, num_correct = self.sum_over_ranks(totals, indices)
        self.scaler.unscale_(self.optimizer)
        limit = math.inf if config.clip_norm is None else config.clip_norm
        grad_norm = float(nn.utils.clip_grad_norm_(self.model.parameters(), limit))
        if not math.isfinite(grad_norm) and not self.scaler.is_enabled():
            raise NonFiniteLoss(
                f"the gradient is {grad_norm} in step {self.step + 1}, on all ranks"
            )
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.step += 1
        return StepResult(
            step=self.step,
            loss=loss_sum / config.global_batch_size,
            accuracy=num_correct / config.global_batch_size,
            samples_per_second=config.global_batch_size / (time.perf_counter() - started),
            learning_rate=learning_rate,
            grad_norm=grad_norm,
            rank=self.rank,
            busy_seconds=busy_seconds,
        )

    def sum_over_ranks(self, totals: torch.Tensor, indices: Sequence[int]) -> list[float]:
        """The sums; raises NonFiniteLoss on all ranks if the loss of any is no number."""
        by_rank = [torch.zeros_like(totals) for _ in range(self.world_size)]
        dist.all_gather(by_rank, totals)
        bad = [rank for rank, one in enumerate(by_rank) if not one[0].isfinite()]
        if bad:
            mine = f"; its samples were {list(indices)}" if self.rank in bad else ""
            raise NonFiniteLoss(
                f"the loss is {float(by_rank[bad[0]][0])} in step {self.step + 1}, "
                f"on rank {', '.join(map(str, bad))}{mine}"
            )
        return torch.stack(by_rank).sum(0).tolist()  # type: ignore[no-any-return]

    def next_samples(self) -> list[int]:
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
        return self.epoch_order[start : start + self.batch.per_rank]

    def fetch(self, data: Any, indices: Sequence[int]) -> Any:
        """These samples as one batch on the device. Raises SampleError."""
        samples = []
        for index in indices:
            try:
                samples.append(data[index])
            except Exception as error:
                raise SampleError(
                    f"rank {self.rank} could not read sample {index} for step {self.step + 1}: "
                    f"{type(error).__name__}: {error}"
                ) from error
        return [tensor.to(self.device) for tensor in default_collate(samples)]

    def evaluate(self) -> float:
        """Accuracy on the held-out samples, of which each rank looks at its share."""
        share = range(self.rank, len(self.data.held_out), self.world_size)
        counts = torch.tensor([0, len(share)], dtype=torch.float64, device=self.device)
        self.model.eval()
        size = 4 * self.config.max_micro_batch_size
        for first in range(0, len(share), size):
            inputs, labels = self.fetch(self.data.held_out, share[first : first + size])
            with torch.no_grad(), self.autocast():
                counts[0] += (self.model(inputs).argmax(1) == labels).sum()
        dist.all_reduce(counts)
        return float(counts[0] / counts[1])

    def save(self, generation: int = 0) -> Path:
        """Write a checkpoint. Rank 0 does it; the path is only good on its machine."""
        random_states: list[Any] = [None] * self.world_size
        dist.all_gather_object(random_states, random_state(self.device))
        if self.rank == 0:
            state = {
                "step": self.step,
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "scaler": self.scaler.state_dict(),
                "random_states": random_states,
                "generation": generation,
            }
            save_checkpoint(self.checkpoint_dir, self.step, state, self.config.num_checkpoints_kept)
        return self.checkpoint_dir / f"step-{self.step:08}.pt"

    def resume(self) -> Path | None:
        """Go on from the checkpoint that the config asks for, if there is one.

        Only rank 0 needs to see the file. A run may be resumed by any number of ranks.
        """
        found: list[Any] = (
            [self.find_checkpoint(), self.skipped] if self.rank == 0 else [None, None]
        )
        dist.broadcast_object_list(found)
        checkpoint: Checkpoint | CheckpointError | None = found[0]
        self.skipped = found[1]
        if isinstance(checkpoint, CheckpointError):
            raise checkpoint
        if checkpoint is None:
            return None
        self.model.load_state_dict(checkpoint.state["model"])
        self.optimizer.load_state_dict(checkpoint.state["optimizer"])
        self.scaler.load_state_dict(checkpoint.state.get("scaler", {}) or self.scaler.state_dict())
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
                return load_latest_checkpoint(
                    self.checkpoint_dir,
                    lambda one: check_model(one, self.model),
                    self.skipped.append,
                )
            checkpoint = load_checkpoint(Path(self.config.resume))
            check_model(checkpoint, self.model)
            return checkpoint
        except CheckpointError as error:
            return CheckpointError(str(error))

    def autocast(self) -> torch.autocast:
        """Computes in half precision where the config asks for it."""
        dtype = torch.float16 if self.config.precision == "float16" else torch.bfloat16
        enabled = self.config.precision != "float32"
        return torch.autocast(self.device.type, dtype, enabled=enabled)


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


class DDPTrainer(Actor):
    """One rank of the training, to be driven by hand from a notebook cell or by `run`."""

    def __init__(self, config: DDPConfig, checkpoint_dir: Path | str = "checkpoints") -> None:
        self.config = config
        self.checkpoint_dir = Path(checkpoint_dir)
        self.training: Training | None = None

    @endpoint
    def open_store(self) -> tuple[str, int]:
        """Where the ranks meet. For rank 0 only, and before `setup`."""
        self.store, host, port = open_store(self.config.master_port)
        return host, port

    @endpoint
    def setup(self, store: tuple[str, int] | None = None) -> Plan:
        """Join the process group, build the model, resume. Call it first.

        Without `store`, the ranks meet where their environment says, as under torchrun.
        """
        if store is not None:
            meet_at(*store)
        self.training = Training(self.config, self.checkpoint_dir)
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
    def configure(self, config: DDPConfig) -> None:
        """Go on with another config, which differs in live keys only."""
        self.config = self.running().config = config

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
    held_out_accuracy: float | None  # None where it was stopped
    checkpoint: Path | None
    num_restarts: int


def run(config: DDPConfig, hosts: HostMesh, record: Record) -> Outcome:
    """Train to the end on `hosts`, step by step, so that code can change between two steps.

    When a rank dies or hangs, all begin again in new procs, from the last checkpoint. When the
    record is stopping, a checkpoint is saved first; the same command then goes on from there.
    """
    check(config, len(hosts), record.procs_per_host)
    restarts = Restarts(config.max_restarts)
    return with_restarts(
        lambda lost_at: attempt(record.live(config), hosts, record, restarts, lost_at),
        restarts,
        record,
    )


def attempt(
    config: DDPConfig, hosts: HostMesh, record: Record, restarts: Restarts, lost_at: float | None
) -> Outcome:
    """Train in procs of their own, from the last checkpoint, until the end or the first loss."""
    ranks_per_host = (config.num_ranks or len(hosts) * record.procs_per_host) // len(hosts)
    procs = hosts.spawn_procs({"procs": ranks_per_host}, name="ddp", preload=PRELOAD)
    grace_seconds = 1.0  # for ranks that are stuck; there is nothing to save
    try:
        with noticing_losses():
            outcome = Driver(config, procs, record, restarts).train(lost_at)
        grace_seconds = 10.0
        return outcome
    finally:
        with configured(stop_timeout_seconds=grace_seconds, cleanup_timeout_seconds=1.0):
            procs.stop().get()


class Driver:
    """Drives the trainers of one attempt from the client, and reports to the record."""

    def __init__(
        self, config: DDPConfig, procs: ProcMesh, record: Record, restarts: Restarts
    ) -> None:
        self.config = config
        self.record = record
        self.restarts = restarts
        self.witnesses = procs.spawn("witness", Witness)
        self.trainer = procs.spawn("trainer", DDPTrainer, config, record.checkpoint_dir.absolute())
        setup_torch_elastic_env(procs)
        store = self.trainer.flatten("rank").slice(rank=0).open_store.call_one().get()
        self.plan: Plan = self.ask(self.trainer.setup, store, doing="setting up")[0]
        self.step = self.plan.first_step
        self.saved: Path | None = self.plan.resumed_from

    def ask(self, endpoint: Any, *args: Any, doing: str) -> list[Any]:
        """What all ranks answer, unless one hangs."""
        seconds = self.config.collective_timeout_seconds
        return ask_all(endpoint, *args, seconds=seconds, witnesses=self.witnesses, doing=doing)

    def train(self, lost_at: float | None) -> Outcome:
        """To the end, or until the record is stopping."""
        self.tell_plan()
        num_steps, record = self.plan.num_steps, self.record
        while self.step < num_steps and not record.is_stopping:
            self.follow_config()
            results = self.ask(self.trainer.step, doing=f"step {self.step + 1}")
            self.step = results[0].step
            if lost_at is not None:
                seconds = time.monotonic() - lost_at
                text = f"all ranks train again, {seconds:.1f} s later, from step {self.step}"
                record.event("respawned", text, seconds=seconds, step=self.step)
                lost_at = None
            if self.step % self.config.log_every == 0 or self.step == num_steps:
                record.metrics(self.step, num_steps, measured(results))
            if self.step < num_steps and self.is_due(self.config.evaluate_every):
                self.evaluate()
            if self.step < num_steps and self.is_due(self.config.checkpoint_every):
                self.save()

        if self.step < num_steps:
            if self.step > self.plan.first_step:
                self.save(must=True)
                record.message(f"stopped after step {self.step}: saved {self.saved}")
            return Outcome(self.step, None, self.saved, self.restarts.num_in_all)
        accuracy = self.evaluate()
        self.save(must=True)
        record.message(
            f"held-out accuracy {accuracy:.1%} after step {self.step}; saved {self.saved}"
        )
        return Outcome(self.step, accuracy, self.saved, self.restarts.num_in_all)

    def tell_plan(self) -> None:
        plan, record = self.plan, self.record
        record.message(
            f"{plan.num_parameters:,} parameters on {len(self.trainer)} ranks, "
            f"{plan.num_micro_batches} x {plan.micro_batch_size} samples each a step, "
            f"{plan.num_steps} steps, {plan.num_steps_per_epoch} an epoch"
        )
        for text in plan.skipped:
            record.event("skipped", text)
        if plan.resumed_from:
            text = f"resumed from {shown(plan.resumed_from)}, after step {plan.first_step}"
            record.event("resumed", text, step=plan.first_step)

    def follow_config(self) -> None:
        """Take over what was changed in the config file, where that is possible."""
        config = self.record.live(self.config)
        if config != self.config:
            self.ask(self.trainer.configure, config, doing="changing the config")
            self.config = config

    def is_due(self, every: int) -> bool:
        return every > 0 and self.step % every == 0

    def evaluate(self) -> float:
        accuracy: float = self.ask(self.trainer.evaluate, doing="the evaluation")[0]
        self.record.metrics(self.step, self.plan.num_steps, {"held_out_accuracy": accuracy})
        return accuracy

    def save(self, must: bool = False) -> None:
        """Save a checkpoint; a full disk stops the run only where this is its last chance."""
        try:
            path = self.ask(self.trainer.save, doing="saving a checkpoint")[0]
        except ActorError as error:
            if not isinstance(error.exception, OSError):
                raise
            kept = (
                f"the last good one is {shown(self.saved)}" if self.saved else "there is none yet"
            )
            text = f"could not save a checkpoint after step {self.step}: {error.exception}; {kept}"
            if must:
                raise RunFailed(text) from error
            self.record.event("unsaved", text, step=self.step)
            return
        self.saved = shown(path)
        self.restarts.progressed()
        self.record.event("saved", f"saved {self.saved}", step=self.step, path=str(path))


def measured(results: Sequence[StepResult]) -> dict[str, float]:
    """The numbers of a step for the record, out of what all ranks say."""
    values = dataclasses.asdict(results[0])
    busy = [result.busy_seconds for result in results]
    values["rank_skew_seconds"] = max(busy) - min(busy)
    values["generation"] = min(result.generation for result in results)
    for name in ("step", "rank", "busy_seconds"):
        del values[name]
    return values


def shown(path: Path) -> Path:
    """As short as it can be said from here."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def check(config: DDPConfig, num_hosts: int, procs_per_host: int) -> None:
    """Whether the config fits so many procs; raises ConfigError before any is started."""
    num_procs = num_hosts * procs_per_host
    num_ranks = config.num_ranks or num_procs
    if num_ranks > num_procs:
        raise ConfigError(
            f"asks for {num_ranks} ranks, and there are {num_procs} procs ({num_hosts} host(s) x "
            f"{procs_per_host}); --procs gives each host more",
            key="num_ranks",
        )
    if num_ranks % num_hosts:
        raise ConfigError(
            f"asks for {num_ranks} ranks, which {num_hosts} hosts cannot share evenly",
            key="num_ranks",
        )
    try:
        split_batch(config.global_batch_size, num_ranks, config.max_micro_batch_size)
    except ValueError as error:
        raise ConfigError(f"does not fit: {error}", key="global_batch_size") from None


def plan(config: DDPConfig, num_hosts: int, procs_per_host: int) -> dict[str, Any]:
    """For `monarch run ddp --plan`: computed without a process, and without the weights."""
    num_ranks = config.num_ranks or num_hosts * procs_per_host
    batch = split_batch(config.global_batch_size, num_ranks, config.max_micro_batch_size)
    data: Data = part(config, "load_data")(config)
    inputs, labels = default_collate([data.train[0]] * batch.micro_batch_size)
    memory = memory_of_step(
        lambda: part(config, "build_model")(config), part(config, "compute_loss"), inputs, labels
    )
    num_steps = len(data.train) // config.global_batch_size * config.num_epochs
    return {
        "parameters": f"{memory.num_parameters:,}",
        "memory of a rank": str(memory),
        "a step": f"{batch.num_micro_batches} x {batch.micro_batch_size} samples on each rank",
        "steps": f"{num_steps} in {config.num_epochs} epochs of {len(data.train)} samples",
    }
