"""Replica groups that go on when one of them dies, and take it back when it lives again.

    monarch run fault_tolerant
    monarch run fault_tolerant --config fault_tolerant.toml chaos="kill@40 group=1"

Each group has the whole model and its own share of every batch; TorchFT averages their
gradients, and says in each step who takes part. A group that dies is started again, alone,
while the others train; it gets the parameters from one of them. The defaults fit two groups of
one process on two CPU cores: a small network learns handwritten digits. With CUDA each process
takes a GPU, and the groups meet over NCCL. Read this file from top to bottom; copy it, and
make it yours.

What a batch is: in every step each process of each group that takes part learns from
``batch_size`` samples, and the gradient is the mean over them. So a step without a group has a
smaller batch, at the same learning rate; and the samples that were that group's share of it are not
seen in this epoch. Which samples a process gets depends on the step alone, not on who lives.
"""

from __future__ import annotations

import importlib
import math
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.data import DistributedSampler
from torchft import ProcessGroupGloo, ProcessGroupNCCL
from torchft.local_sgd import DiLoCo, LocalSGD

from monarch.actor import Actor, Channel, HostMesh, PortReceiver, context, endpoint, this_proc
from monarch.config_file import ConfigError, live
from monarch.runs import Record
from monarch_recipes.checkpoint import (
    Checkpoint,
    CheckpointError,
    check_model,
    load_checkpoint,
    load_latest_checkpoint,
    save_checkpoint,
)
from monarch_recipes.digits import NUM_CLASSES, load_digit_samples
from monarch_recipes.memory import memory_of_step
from monarch_recipes.replicas.chaos import ChaosError, Fault, read_chaos
from monarch_recipes.replicas.controller import Controller
from monarch_recipes.replicas.crew import Limits
from monarch_recipes.replicas.fingerprint import fingerprint
from monarch_recipes.replicas.lighthouse import LighthouseTimes, check_reachable, host_name
from monarch_recipes.replicas.messages import (
    Event,
    Failed,
    Finished,
    Message,
    Metrics,
    Order,
    Outcome,
    Ready,
    Rendezvous,
    Seat,
    StepResult,
    TaskError,
)
from monarch_recipes.replicas.placement import place_groups
from monarch_recipes.replicas.torchft_cures import (
    CarefulManager,
    DistributedDataParallel,
    ReachableTransport,
    average_in_group,
    silence_logs,
)
from monarch_recipes.schedule import learning_rate_factor, position_of

QUORUM_PAUSE_SECONDS = 0.1
LOOK_SECONDS = 0.5


@dataclass(frozen=True)
class FaultTolerantConfig:
    """Everything that a run depends on, but for the hosts it is given."""

    # Your own part: a module with `build_model`, `compute_loss` or both, instead of those below.
    task: str | None = None

    # The groups, and how they stay together.
    num_groups: int = 2
    procs_per_group: int = 1
    algorithm: Literal["ddp", "localsgd", "diloco"] = "ddp"
    sync_every: int = 5  # batches between two steps that all share; with ddp each batch is one
    outer_learning_rate: float = 0.7  # diloco: SGD with Nesterov momentum over the groups' steps
    outer_momentum: float = 0.9

    # The model.
    hidden_size: int = 128

    # The data.
    held_out_fraction: float = 0.2  # of the data set, for evaluation only
    data_seed: int = 1  # decides the split and the order of the samples
    batch_size: int = 32  # samples of one process
    num_steps: int = 300  # that groups commit together; with localsgd and diloco `sync_every` each

    # The optimizer: AdamW, linear warm-up, then a cosine down to zero.
    learning_rate: float = live(1e-2)  # the highest
    weight_decay: float = 0.01
    num_warmup_steps: int = 10
    clip_norm: float | None = 1.0  # of the whole gradient; "none" does not clip

    # Where and how it computes.
    seed: int = 0  # decides the first weights, and what chaos leaves open
    device: Literal["auto", "cpu", "cuda"] = "auto"
    num_threads: int = 1  # of each process, on a CPU

    # When somebody is given up. A group whose heartbeats stay out is gone from the next quorum.
    heartbeat_timeout_seconds: float = 1.0
    collective_timeout_seconds: float = 10.0  # a step that waits longer is discarded
    join_timeout_seconds: float = 10.0  # not less than that, or two groups may train apart
    quorum_timeout_seconds: float = 60.0
    hang_timeout_seconds: float = 5.0  # after the others have gone on, it is started again
    step_timeout_seconds: float = 180.0  # the same for a step that nobody makes
    max_restarts: int = 5  # of one group within the window; then the run goes on without it
    restart_window_seconds: float = 300.0
    lighthouse: str = ""  # the URL of one that runs elsewhere; ours is started where it is empty
    lighthouse_port: int = 0  # of ours; 0 takes a free one

    # Fingerprints of the parameters, and checkpoints, in steps; 0 leaves it to the end of the run.
    fingerprint_every: int = 20
    checkpoint_every: int = live(50)
    num_checkpoints_kept: int = 3
    resume: str = "auto"  # the latest of this run's folder; or "never"; or a checkpoint's path

    # Faults on purpose: "kill@40 group=1; hang@80; lighthouse@100" or "random every=50 seed=7".
    chaos: str = ""

    def __post_init__(self) -> None:
        for key in (
            "num_groups", "procs_per_group", "sync_every", "hidden_size", "batch_size",
            "num_steps", "num_threads", "num_checkpoints_kept",
        ):  # fmt: skip
            if getattr(self, key) < 1:
                raise ConfigError("must be at least 1", key=key)
        for key in (
            "num_warmup_steps", "max_restarts", "fingerprint_every", "checkpoint_every",
            "lighthouse_port",
        ):  # fmt: skip
            if getattr(self, key) < 0:
                raise ConfigError("must not be negative", key=key)
        for key in (
            "heartbeat_timeout_seconds", "collective_timeout_seconds", "quorum_timeout_seconds",
            "hang_timeout_seconds", "step_timeout_seconds", "restart_window_seconds",
        ):  # fmt: skip
            if getattr(self, key) <= 0:
                raise ConfigError("must be more than 0", key=key)
        if not 0 < self.held_out_fraction < 1:
            raise ConfigError("must lie between 0 and 1", key="held_out_fraction")
        if self.clip_norm is not None and self.clip_norm <= 0:
            raise ConfigError('must be more than 0, or "none"', key="clip_norm")
        if self.join_timeout_seconds < self.collective_timeout_seconds:
            raise ConfigError(
                f"must not be less than collective_timeout_seconds "
                f"({self.collective_timeout_seconds:g}): a group that still waits for a dead one's "
                "gradients would be left out of the quorum, and both would train apart",
                key="join_timeout_seconds",
            )
        if self.quorum_timeout_seconds <= self.join_timeout_seconds:
            raise ConfigError(
                f"must be more than join_timeout_seconds ({self.join_timeout_seconds:g})",
                key="quorum_timeout_seconds",
            )
        try:
            self.faults()
        except ChaosError as error:
            raise ConfigError(str(error), key="chaos", suggestion=error.suggestion) from None

    def faults(self) -> list[Fault]:
        """What `chaos` comes to."""
        return read_chaos(
            self.chaos,
            num_steps=self.num_steps,
            num_groups=self.num_groups,
            procs_per_group=self.procs_per_group,
            seed=self.seed,
        )

    def limits(self) -> Limits:
        """What of it concerns the controller."""
        return Limits(
            num_groups=self.num_groups,
            procs_per_group=self.procs_per_group,
            num_steps=self.num_steps,
            learning_rate=self.learning_rate,
            checkpoint_every=self.checkpoint_every,
            lighthouse=self.lighthouse,
            lighthouse_port=self.lighthouse_port,
            times=LighthouseTimes(self.heartbeat_timeout_seconds, self.join_timeout_seconds),
            hang_timeout_seconds=self.hang_timeout_seconds,
            step_timeout_seconds=self.step_timeout_seconds,
            max_restarts=self.max_restarts,
            restart_window_seconds=self.restart_window_seconds,
            faults=tuple(self.faults()),
        )


def build_model(config: FaultTolerantConfig) -> nn.Module:
    """Images (N, 1, 8, 8) to logits (N, 10)."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, config.hidden_size),
        nn.ReLU(),
        nn.Linear(config.hidden_size, NUM_CLASSES),
    )


def compute_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The mean loss of a batch. Edit it while a run is going on, and sync."""
    return functional.cross_entropy(logits, labels)


def part(config: FaultTolerantConfig, name: str) -> Any:
    """`name` of the task module, where it has one; else of this file. Looked up at each use."""
    module = importlib.import_module(config.task) if config.task else None
    return getattr(module, name, None) or globals()[name]


class Training:
    """One process of a group. First it builds the model; then it joins the others, and trains."""

    def __init__(
        self, config: FaultTolerantConfig, seat: Seat, checkpoint_dir: Path, path: Path | None
    ) -> None:
        self.config = config
        self.seat = seat
        self.checkpoint_dir = checkpoint_dir
        self.device = pick_device(config, seat)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        else:
            torch.set_num_threads(config.num_threads)
        digits = load_digit_samples(config.data_seed, config.held_out_fraction)
        self.train_samples = digits.train.to(self.device)
        self.held_out_samples = digits.held_out.to(self.device)
        num_members = seat.num_groups * seat.num_ranks
        self.sampler: DistributedSampler[int] = DistributedSampler(
            range(len(digits.train)),
            num_replicas=num_members,
            rank=seat.group * seat.num_ranks + seat.rank,
            shuffle=True,
            seed=config.data_seed,
            drop_last=True,
        )
        self.num_batches_per_epoch = len(digits.train) // (num_members * config.batch_size)
        if not self.num_batches_per_epoch:
            raise ValueError(
                f"{num_members} processes with {config.batch_size} samples each want more than "
                f"the {len(digits.train)} samples there are"
            )
        self.epoch = -1
        self.epoch_order: list[int] = []

        torch.manual_seed(config.seed)
        self.model = part(config, "build_model")(config).to(self.device)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay
        )
        self.outer_optimizer = torch.optim.SGD(
            self.model.parameters(),
            lr=config.outer_learning_rate,
            momentum=config.outer_momentum,
            nesterov=config.outer_momentum > 0,
        )
        self.progress = {"step": 0, "batches_committed": 0}
        self.skipped: list[str] = []  # checkpoints that cannot be used, in words
        self.manager: CarefulManager | None = None
        self.resumed_from = self.resume(path)

    # Joining the others.

    def join(self, store: dist.Store, meet: Rendezvous) -> None:
        """Become a member; from now on the others wait for this group in every step."""
        config, seat = self.config, self.seat
        check_reachable(meet.lighthouse, config.collective_timeout_seconds)
        timeout = timedelta(seconds=config.collective_timeout_seconds)
        uses_nccl = self.device.type == "cuda"
        if seat.num_ranks > 1:
            dist.init_process_group(
                "nccl" if uses_nccl else "gloo",
                store=dist.PrefixStore("within_group", store),
                rank=seat.rank,
                world_size=seat.num_ranks,
                timeout=timeout,
            )
        make_group = ProcessGroupNCCL if uses_nccl else ProcessGroupGloo
        self.manager = CarefulManager(
            patience_seconds=config.step_timeout_seconds / 2,
            pg=make_group(timeout=timeout),
            state_dict=self.state,
            load_state_dict=self.load_state,
            min_replica_size=1,
            timeout=timeout,
            quorum_timeout=timedelta(seconds=config.quorum_timeout_seconds),
            # It pauses for the share of the timeout that a retry has, and at least so long.
            quorum_retries=round(config.quorum_timeout_seconds / QUORUM_PAUSE_SECONDS),
            connect_timeout=timeout,
            rank=seat.rank,
            world_size=seat.num_ranks,
            store_addr=meet.store_host,
            store_port=meet.store_port,
            lighthouse_addr=meet.lighthouse,
            replica_id=f"group{seat.group}",
            port=0,
            hostname=host_name(),
            heartbeat_interval=timedelta(milliseconds=100),
            checkpoint_transport=ReachableTransport(timeout),
        )
        self.manager.load_state_dict(self.progress)
        self.algorithm: LocalSGD | DiLoCo | None = None
        if config.algorithm == "ddp":
            self.parallel_model: nn.Module = DistributedDataParallel(self.manager, self.model)
            return
        self.parallel_model = (
            nn.parallel.DistributedDataParallel(self.model) if seat.num_ranks > 1 else self.model
        )
        self.algorithm = (
            LocalSGD(self.manager, self.model, self.optimizer, config.sync_every)
            if config.algorithm == "localsgd"
            else DiLoCo(
                self.manager, [self.model], self.optimizer, self.outer_optimizer, config.sync_every
            )
        )
        self.algorithm.__enter__()

    def leave(self) -> None:
        """Nobody waits for this group any longer. It may join again."""
        if self.manager is not None:
            self.progress = self.manager.state_dict()
            if isinstance(self.algorithm, DiLoCo):
                # What this group has learnt since the last step that all shared is its own.
                self.algorithm._restore_parameters()
            if self.algorithm is not None:
                self.algorithm.__exit__(None, None, None)
            self.manager.shutdown()
            self.manager = None
        if dist.is_initialized():
            dist.destroy_process_group()

    # A step.

    def train_step(self, order: Order) -> StepResult:
        """Learn from one batch of each group, with ddp; with the others from `sync_every`."""
        assert self.manager is not None
        started = time.perf_counter()
        self.manager.least_step = order.least_step
        self.suffer(order.fault, "before")
        make = self.averaged_step if self.config.algorithm == "ddp" else self.local_steps
        loss, accuracy, learning_rate, grad_norm = make(order)
        step, committed = self.manager.current_step(), self.manager.has_committed
        return StepResult(
            step=step,
            committed=committed,
            healed=self.manager.has_healed,
            participants=self.manager.num_participants(),
            loss=loss,
            accuracy=accuracy,
            learning_rate=learning_rate,
            grad_norm=grad_norm,
            seconds=time.perf_counter() - started,
            generation=context().generation,
            fingerprint=self.fingerprint() if committed and self.is_due(step, order) else None,
            error=None if committed else str(self.manager.errored() or "a rank of it failed"),
        )

    def averaged_step(self, order: Order) -> tuple[float, float, float, float]:
        """One batch; its gradient is the mean over all groups that take part."""
        manager = self.manager
        assert manager is not None
        manager.start_quorum()
        # Read afterwards: a group that has healed is at the others' step.
        step = manager.current_step()
        learning_rate = order.learning_rate * self.schedule(step)
        self.optimizer.zero_grad()
        loss, accuracy = self.forward(step)
        self.suffer(order.fault, "inside")
        loss.backward()
        # The learning rate is averaged like the gradients. So all groups take the very same step,
        # even if the schedule's code was changed between this group's step and that one's.
        shared = torch.tensor(
            [loss.item(), accuracy, learning_rate], dtype=torch.float64, device=self.device
        )
        average_in_group(shared)
        manager.allreduce(shared).wait()
        mean_loss, mean_accuracy, learning_rate = shared.tolist()
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        grad_norm = self.clip()
        self.suffer(order.fault, "commit")
        if manager.should_commit():
            self.optimizer.step()
        return mean_loss, mean_accuracy, learning_rate, grad_norm

    def local_steps(self, order: Order) -> tuple[float, float, float, float]:
        """`sync_every` batches of this group's own; the last optimizer step meets the others.

        The loss is the mean over this group's batches.
        """
        assert self.manager is not None
        first = self.manager.current_step()
        losses, accuracies = [], []
        for number in range(self.config.sync_every):
            is_last = number == self.config.sync_every - 1
            learning_rate = order.learning_rate * self.schedule(first)
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate
            self.optimizer.zero_grad()
            loss, accuracy = self.forward(first * self.config.sync_every + number)
            loss.backward()
            grad_norm = self.clip()
            if is_last:
                self.suffer(order.fault, "inside", "commit")
            self.optimizer.step()
            losses.append(loss.item())
            accuracies.append(accuracy)
        count = self.config.sync_every
        return sum(losses) / count, sum(accuracies) / count, learning_rate, grad_norm

    def forward(self, batch: int) -> tuple[torch.Tensor, float]:
        """Loss and accuracy on this process's samples of a batch; TaskError where code raises."""
        indices: list[int] = []
        try:
            indices = self.indices_of(batch)
            where = torch.tensor(indices, device=self.device)
            images, labels = self.train_samples.images[where], self.train_samples.labels[where]
            logits = self.parallel_model(images)
            loss: torch.Tensor = part(self.config, "compute_loss")(logits, labels)
            if not math.isfinite(loss.item()):
                raise ValueError(f"the loss is {loss.item()}")
        except Exception as error:
            seat = self.seat
            raise TaskError(
                f"group {seat.group}, rank {seat.rank}, on {socket.gethostname()}, in batch "
                f"{batch}" + (f", samples {indices}" if indices else ""),
                f"{type(error).__name__}: {error}",
            ) from error
        return loss, float((logits.argmax(1) == labels).float().mean())

    def indices_of(self, batch: int) -> list[int]:
        """Which training samples are this process's share of a batch: it depends on nothing else,
        so that a group that has healed goes on where the others are."""
        position = position_of(batch, self.num_batches_per_epoch)
        if position.epoch != self.epoch:
            self.epoch = position.epoch
            self.sampler.set_epoch(position.epoch)
            self.epoch_order = list(self.sampler)
        start = position.step_in_epoch * self.config.batch_size
        return self.epoch_order[start : start + self.config.batch_size]

    def schedule(self, step: int) -> float:
        return learning_rate_factor(step, self.config.num_warmup_steps, self.config.num_steps)

    def clip(self) -> float:
        limit = float("inf") if self.config.clip_norm is None else self.config.clip_norm
        return float(nn.utils.clip_grad_norm_(self.model.parameters(), limit))

    def suffer(self, fault: Fault | None, *moments: str) -> None:
        """A fault on purpose, if it is this process's and now."""
        if fault is None or fault.rank != self.seat.rank or fault.when not in moments:
            return
        if fault.kind == "slow":
            time.sleep(fault.seconds)
        elif fault.kind == "exit":
            sys.stdout.flush()
            os._exit(3)
        else:
            os.kill(os.getpid(), signal.SIGKILL if fault.kind == "kill" else signal.SIGSTOP)

    # What can be compared, kept and healed from.

    def fingerprint(self) -> str:
        """Of the parameters; with ddp of the optimizer too, which groups have in common then."""
        tensors = list(self.model.parameters())
        if self.config.algorithm == "ddp":
            moments = self.optimizer.state_dict()["state"]
            tensors += [
                value
                for _, state in sorted(moments.items())
                for _, value in sorted(state.items())
                if isinstance(value, torch.Tensor)
            ]
        return fingerprint(tensors)

    def is_due(self, step: int, order: Order) -> bool:
        every = self.config.fingerprint_every
        return step >= order.last_step or bool(every and step % every == 0)

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])

    def save(self, generation: int) -> Path:
        """Write a checkpoint. All hosts should see the folder, so that any group may resume."""
        if self.manager is not None:
            self.progress = self.manager.state_dict()
        state = {
            **self.state(),
            "outer_optimizer": self.outer_optimizer.state_dict(),
            "progress": self.progress,
            "algorithm": self.config.algorithm,
            "generation": generation,
        }
        return save_checkpoint(
            self.checkpoint_dir, self.progress["step"], state, self.config.num_checkpoints_kept
        )

    def resume(self, path: Path | None) -> Path | None:
        """Load the checkpoint at `path`, else the one that the config asks for, if there is one."""
        checkpoint = self.find_checkpoint(path)
        if checkpoint is None:
            return None
        self.load_state(checkpoint.state)
        self.outer_optimizer.load_state_dict(checkpoint.state["outer_optimizer"])
        self.progress = checkpoint.state["progress"]
        return checkpoint.path

    def find_checkpoint(self, path: Path | None) -> Checkpoint | None:
        resume = self.config.resume
        if path is None and resume in ("auto", "never"):
            if resume == "never":
                return None
            return load_latest_checkpoint(self.checkpoint_dir, self.check_fits, self.skipped.append)
        checkpoint = load_checkpoint(path or Path(resume))
        self.check_fits(checkpoint)
        return checkpoint

    def check_fits(self, checkpoint: Checkpoint) -> None:
        check_model(checkpoint, self.model)
        if "progress" not in checkpoint.state:
            raise CheckpointError(f"{checkpoint.path} is of another recipe")

    def evaluate(self) -> tuple[int, int]:
        """Right answers, and samples: this rank's share of those that are held out."""
        share = slice(self.seat.rank, None, self.seat.num_ranks)
        images, labels = self.held_out_samples.images[share], self.held_out_samples.labels[share]
        with torch.no_grad():
            return int((self.model(images).argmax(1) == labels).sum()), len(labels)


def pick_device(config: FaultTolerantConfig, seat: Seat) -> torch.device:
    """The GPU of this process's slot on its host, or the CPU."""
    if config.device == "cpu" or (config.device == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    return torch.device("cuda", seat.slot % torch.cuda.device_count())


class ReplicaTrainer(Actor):
    """One process of a group, as the controller drives it. `seats` has one for each rank."""

    def __init__(
        self, config: FaultTolerantConfig, checkpoint_dir: Path, seats: list[Seat]
    ) -> None:
        self.config = config
        self.checkpoint_dir = checkpoint_dir
        self.seat = seats[context().actor_instance.rank.rank]
        self.training: Training | None = None
        silence_logs()  # Its faults are events of the run.
        self.store: dist.TCPStore | None = None

    @endpoint
    def setup(self, checkpoint: Path | None) -> Ready:
        """Build the model anew, and load the checkpoint, or the one that the config asks for."""
        if self.training is not None:
            self.training.leave()
        try:
            training = Training(self.config, self.seat, self.checkpoint_dir, checkpoint)
        except Exception as error:
            where = f"group {self.seat.group}, rank {self.seat.rank}, cannot be set up"
            raise TaskError(where, f"{type(error).__name__}: {error}") from error
        self.training = training
        return Ready(
            step=training.progress["step"],
            num_parameters=sum(p.numel() for p in training.model.parameters()),
            pid=os.getpid(),
            hostname=socket.gethostname(),
            resumed_from=training.resumed_from,
            skipped=tuple(training.skipped),
        )

    @endpoint
    def open_store(self) -> tuple[str, int]:
        """Where the ranks of this group meet, a new place each time. Call it on its rank 0."""
        self.store = dist.TCPStore(host_name(), 0, is_master=True, wait_for_workers=False)
        return host_name(), self.store.port

    @endpoint
    def join(self, meet: Rendezvous) -> None:
        """Become a member of the quorum."""
        store = dist.TCPStore(
            meet.store_host, meet.store_port, is_master=False, wait_for_workers=False
        )
        self.running().join(store, meet)

    @endpoint
    def step(self, order: Order) -> StepResult:
        """One step of training."""
        return self.running().train_step(order)

    @endpoint
    def fingerprint(self) -> str:
        """Of the parameters as they are."""
        return self.running().fingerprint()

    @endpoint
    def evaluate(self) -> tuple[int, int]:
        """Right answers on this rank's share of the held-out samples, and how many these are."""
        return self.running().evaluate()

    @endpoint
    def save(self) -> Path:
        """Write a checkpoint, and say where."""
        return self.running().save(context().generation)

    @endpoint
    def leave(self) -> None:
        """Train no more; evaluate and save still work."""
        self.running().leave()

    def running(self) -> Training:
        if self.training is None:
            raise RuntimeError("call setup() on the trainer first")
        return self.training


def check(config: FaultTolerantConfig, num_hosts: int, procs_per_host: int) -> None:
    """Whether the groups fit on so many hosts; raises ConfigError before any process starts."""
    try:
        place_groups(config.num_groups, config.procs_per_group, num_hosts, procs_per_host)
    except ValueError as error:
        raise ConfigError(f"does not fit: {error}", key="num_groups") from None


def plan(config: FaultTolerantConfig, num_hosts: int, procs_per_host: int) -> dict[str, Any]:
    """For `monarch run fault_tolerant --plan`: computed without a process, or the weights."""
    places = place_groups(config.num_groups, config.procs_per_group, num_hosts, procs_per_host)
    samples = load_digit_samples(config.data_seed, config.held_out_fraction).train
    memory = memory_of_step(
        lambda: part(config, "build_model")(config),
        part(config, "compute_loss"),
        samples.images[: config.batch_size],
        samples.labels[: config.batch_size],
    )
    num_procs = config.num_groups * config.procs_per_group
    num_batches = config.num_steps * (1 if config.algorithm == "ddp" else config.sync_every)
    epochs = num_batches * num_procs * config.batch_size / len(samples)
    rows: dict[str, Any] = {
        f"group {number}": f"{config.procs_per_group} proc(s) on "
        + ", ".join(f"host {place.first_host + i}" for i in range(place.num_hosts))
        for number, place in enumerate(places)
    }
    return rows | {
        "parameters": f"{memory.num_parameters:,}",
        "memory of a rank": str(memory),
        "a step": f"{num_batches // config.num_steps} x {config.batch_size} samples on each rank",
        "steps": f"{config.num_steps}, {epochs:.1f} epochs of {len(samples)} samples",
        "faults": "; ".join(map(str, config.faults())) or "none on purpose",
    }


def run(config: FaultTolerantConfig, hosts: HostMesh, record: Record) -> Outcome:
    """Train to the end on `hosts`, `record.procs_per_host` procs on each, whoever dies.

    Ctrl-C lets the groups finish a step, and saves; the same command then goes on from there. A
    second one ends all at once.
    """
    check(config, hosts.size(), record.procs_per_host)
    port, news = Channel[Any].open()
    controller = this_proc().spawn(
        "controller", Controller, config.limits(), ReplicaTrainer, config, hosts,
        record.procs_per_host, record.checkpoint_dir.resolve(), port,
    )  # fmt: skip
    controller.begin.call_one().get()
    asked_to_stop = is_interrupted = False
    try:
        while True:
            try:
                said = next_news(news)
                if isinstance(said, Finished):
                    break
                if isinstance(said, Failed):
                    raise said.error
                write_down(said, record)
                if record.is_stopping and not asked_to_stop:
                    asked_to_stop = True
                    controller.stop_soon.call_one().get()
                before, config = config, record.live(config)
                if config != before:
                    change = controller.reconfigure.call_one(
                        config.learning_rate, config.checkpoint_every
                    )
                    change.get()
            except KeyboardInterrupt:
                if record.is_stopping:
                    raise
                record.stop()
                is_interrupted = True
    finally:
        controller.stop().get()
    if is_interrupted:
        raise KeyboardInterrupt
    return said.outcome


def next_news(news: PortReceiver[Any]) -> Any:
    """What the controller tells next; `None` if that is nothing for a while."""
    try:
        return news.recv().get(timeout=LOOK_SECONDS)
    except TimeoutError:
        return None


def write_down(said: Metrics | Event | Message | None, record: Record) -> None:
    """What the controller tells, into the run's record."""
    if isinstance(said, Metrics):
        record.metrics(said.step, said.num_steps, said.values)
    elif isinstance(said, Event):
        record.event(said.kind, said.text, **said.data)
    elif isinstance(said, Message):
        record.message(said.text)
