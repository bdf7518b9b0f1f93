"""Replica groups: when one dies, the others go on, and it joins them again later.

    monarch run fault_tolerant
    monarch run fault_tolerant --config fault_tolerant.toml chaos="kill@40 group=1"

Each group has the whole model and its own share of every batch. TorchFT averages their gradients,
and decides in each step which groups take part. A group that dies is started again while the others
train; it gets the parameters from one of them. The defaults fit two groups of one process on two
CPU cores: a small network learns handwritten digits. With CUDA each process takes a GPU, and the
groups communicate over NCCL; over gloo if processes share a GPU. `monarch recipe cp fault_tolerant`
copies this file for you to change; the parts that keep groups alive are in `replicas/`, whose
docstring says where to begin.

In every step each process of each group that takes part learns from ``batch_size`` samples, and the
gradient is the mean over them. So a step without a group has a smaller batch, at the same learning
rate, and the samples of that group are not seen in this epoch. The samples of a process depend on
the step alone, not on which groups are alive.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import math
import os
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from monarch.actor import Actor, HostMesh, context, endpoint
from monarch.config_file import ConfigError, check_range, live
from monarch.runs import Record
from monarch.runs.hold.run_memory import HostCopies
from monarch.runs.recover.checkpoint_choice import check_choices, chosen_for
from monarch.runs.recover.saving import UnsavableState, shown
from monarch.tools.backends import gpu_of
from monarch_recipes.best import BEST, EvaluationVerdict, judge
from monarch_recipes.buffers import Buffers
from monarch_recipes.checkpoint import (
    check_model,
    check_optimizer,
    check_weights,
    find_checkpoint_or_newer,
    load_weights,
    save_checkpoint,
)
from monarch_recipes.collective import NonFiniteLoss, check_gradient, check_weight
from monarch_recipes.device import use_device
from monarch_recipes.digits import NUM_CLASSES, load_digit_samples
from monarch_recipes.evaluation import Share, evaluate_share
from monarch_recipes.export import export as export
from monarch_recipes.extra_state import refuse_extra_state
from monarch_recipes.extras import Extras
from monarch_recipes.fingerprint import Sums, digest_of, state_of, sums_of
from monarch_recipes.gradients import AveragedGradients, NotTrained
from monarch_recipes.host_copies import check_fits, read_whole
from monarch_recipes.loaders import DataSource, dealt_samples, dealt_sources
from monarch_recipes.memory import memory_of_step
from monarch_recipes.next_start import Builders, NextStart
from monarch_recipes.optimizer import clip_gradient, scale_gradient, set_rates
from monarch_recipes.profiling import Profiler
from monarch_recipes.randomness import draw_from
from monarch_recipes.rendezvous import open_store
from monarch_recipes.replicas.chaos import ChaosError, InjectedFault, read_chaos, suffer
from monarch_recipes.replicas.client import train_groups
from monarch_recipes.replicas.membership import (
    Averaging,
    SharedNumbers,
    SharedUsage,
    average_buffers_of_groups,
    become_member,
)
from monarch_recipes.replicas.messages import (
    GroupsOutcome,
    GroupStep,
    Rendezvous,
    Seat,
    StepOrder,
    TrainerReady,
    Unsaved,
    task_errors,
)
from monarch_recipes.replicas.placement import PRELOAD as PRELOAD
from monarch_recipes.replicas.placement import describe_places, place_groups
from monarch_recipes.replicas.torchft_cures import (
    CarefulManager,
    average_in_group,
    silence_logs,
)
from monarch_recipes.samples import Data, SampleOrder, batches
from monarch_recipes.savable import savable
from monarch_recipes.schedule import is_due, learning_rate_factor
from monarch_recipes.tally import Tally, Weighted, accuracy, sum_and_weight
from monarch_recipes.task import own_part, part, tell_of_lost_parts
from monarch_reload import ReloadReport, at_start
from monarch_sync.words import some

# For `--fast-dev-run`: a few steps that also evaluate and save.
FAST_DEV_RUN = ("num_steps=3", "evaluate_every=2", "checkpoint_every=2", "extras.log_to=[]")


@dataclass(frozen=True)
class FaultTolerantConfig:
    """All settings of a run, except its hosts."""

    # Your own part: a module with some of the functions below, to be used instead of them, and
    # `evaluate`, `should_stop` or `collate` (docs/recipes.md, "Your own model and data").
    task: str | None = None

    # The groups, and how they stay together.
    num_groups: int = 2
    procs_per_group: int = 1
    algorithm: Literal["ddp", "localsgd", "diloco"] = "ddp"
    sync_every: int = 5  # batches between two steps that all groups share; unused with ddp
    outer_learning_rate: float = 0.7  # diloco: SGD with Nesterov momentum over the groups' steps
    outer_momentum: float = 0.9

    # The model.
    hidden_size: int = 128

    # The data.
    held_out_fraction: float = 0.2  # of the data set, for evaluation only
    data_seed: int = 1  # decides the split and the order of the samples
    batch_size: int = 32  # samples of one process
    num_workers: int = 0  # of each process, to read samples ahead; 0 reads in the step
    num_steps: int = 300  # of all groups; with localsgd and diloco each is `sync_every` batches

    # The optimizer: AdamW, linear warm-up, then a cosine down to zero.
    learning_rate: float = live(1e-2)  # the highest
    weight_decay: float = 0.01
    num_warmup_steps: int = 10
    clip_norm: float | None = 1.0  # of the whole gradient; "none" does not clip

    # Where and how it computes.
    seed: int = 0  # decides the first weights, and the choices that chaos leaves open
    device: Literal["auto", "cpu", "cuda"] = "auto"
    num_threads: int = 1  # of each process, on a CPU

    # When a group is given up. A group without heartbeats is left out of the next quorum.
    heartbeat_timeout_seconds: float = 1.0
    collective_timeout_seconds: float = 10.0  # a step that waits longer is discarded
    join_timeout_seconds: float = 10.0  # not less than the timeout above, or groups train apart
    quorum_timeout_seconds: float = 60.0
    hang_timeout_seconds: float = 5.0  # a group that is behind for so long is restarted
    step_timeout_seconds: float = 180.0  # the same if no group makes the step
    # A step on new code that takes longer is reported; "none": MONARCH_EDIT_PATIENCE_SECONDS, 30.
    edit_patience_seconds: float | None = live(None)
    max_restarts: int = 5  # of one group within the window; then the run goes on without it
    restart_window_seconds: float = 300.0
    lighthouse: str = ""  # the URL of one that another program runs; "": the recipe starts one
    lighthouse_port: int = 0  # of the recipe's own lighthouse; 0 takes a free port

    # Fingerprints, evaluations and checkpoints, in steps; 0 leaves it to the end of the run.
    fingerprint_every: int = live(100)
    evaluate_every: int = live(0)  # by one group, while the others wait
    checkpoint_every: int = live(50)
    num_checkpoints_kept: int = 3
    resume: str = "auto"  # the latest of this run; "never"; a checkpoint's path; another run
    init_from: str | None = None  # weights to begin with, at step 0: a path, a run, or "best"

    # Faults on purpose: "kill@40 group=1; hang@80; lighthouse@100" or "random every=50 seed=7".
    chaos: str = ""

    # The best checkpoint, early stopping, TensorBoard, the profiler.
    extras: Extras = field(default_factory=Extras)

    def __post_init__(self) -> None:
        at_least_one = (
            "num_groups", "procs_per_group", "sync_every", "hidden_size", "batch_size",
            "num_steps", "num_threads", "num_checkpoints_kept",
        )  # fmt: skip
        not_negative = (
            "learning_rate", "weight_decay", "num_warmup_steps", "outer_learning_rate",
            "outer_momentum", "max_restarts", "fingerprint_every", "evaluate_every",
            "checkpoint_every", "num_workers",
        )  # fmt: skip
        positive = (
            "clip_norm", "heartbeat_timeout_seconds", "collective_timeout_seconds",
            "quorum_timeout_seconds", "hang_timeout_seconds", "step_timeout_seconds",
            "restart_window_seconds", "edit_patience_seconds",
        )  # fmt: skip
        check_range(self, *at_least_one, least=1)
        check_range(self, *not_negative, least=0)
        check_range(self, *positive, more_than=0)
        check_range(self, "held_out_fraction", more_than=0, less_than=1)
        check_range(self, "lighthouse_port", least=0, most=65535)
        join = self.join_timeout_seconds
        if join < self.collective_timeout_seconds:
            raise ConfigError(
                "must not be less than collective_timeout_seconds "
                f"({self.collective_timeout_seconds:g}): a group that still waits for a dead one's "
                "gradients would be left out of the quorum, and both would train apart",
                key="join_timeout_seconds",
            )
        if self.quorum_timeout_seconds <= join:
            text = f"must be more than join_timeout_seconds ({join:g})"
            raise ConfigError(text, key="quorum_timeout_seconds")
        try:
            self.faults()
        except ChaosError as error:
            raise ConfigError(str(error), key="chaos", suggestion=error.suggestion) from None

    def faults(self) -> list[InjectedFault]:
        """Return the faults that `chaos` describes. Raises ChaosError for an invalid text."""
        return read_chaos(
            self.chaos,
            num_steps=self.num_steps,
            num_groups=self.num_groups,
            procs_per_group=self.procs_per_group,
            seed=self.seed,
        )


# The task: model, data, loss. Edit it while a run goes on, with `monarch sync --watch` beside it.


def load_data(config: FaultTolerantConfig) -> Data:
    """Return the train and the held-out data.

    Each is a data set with `len(data)` and `data[index] -> (input, label)`, or a DataLoader of one.
    """
    return load_digit_samples(config.data_seed, config.held_out_fraction)


def build_model(config: FaultTolerantConfig) -> nn.Module:
    """Return the model: images (N, 1, 8, 8) to logits (N, 10)."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, config.hidden_size),
        nn.ReLU(),
        nn.Linear(config.hidden_size, NUM_CLASSES),
    )


def build_optimizer(config: FaultTolerantConfig, model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of the model; any torch optimizer will do.

    Before each step the recipe sets the learning rate. A parameter group may scale it by its own
    `lr_scale`.
    """
    return torch.optim.AdamW(
        model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay
    )


def compute_loss(logits: torch.Tensor, labels: torch.Tensor) -> Weighted:
    """Return the mean loss over the samples of a batch.

    If samples do not count equally, such as texts of different lengths, return (sum, weight): the
    sum of the losses of all tokens, and their number.
    """
    return functional.cross_entropy(logits, labels)


def metrics(logits: torch.Tensor, labels: torch.Tensor) -> dict[str, Weighted]:
    """Return further values by name, as means or (sum, weight) like the loss.

    All processes need the same names. They are computed in training and on the held-out samples.
    Here it is the share of right answers.
    """
    return accuracy(logits, labels)


def learning_rate_at(config: FaultTolerantConfig, step: int, num_steps: int) -> float:
    """Return the learning rate of `step`, counted from 0."""
    return config.learning_rate * learning_rate_factor(step, config.num_warmup_steps, num_steps)


class ReplicaTrainer(Actor):
    """One process of a replica group, which the controller drives.

    `seats` are those of all its ranks. After `setup` has built the model, `join` makes it a member
    of the quorum, and `step` trains.
    """

    def __init__(
        self, config: FaultTolerantConfig, checkpoint_dir: Path, seats: list[Seat]
    ) -> None:
        self.config = config
        self.checkpoint_dir = checkpoint_dir
        self.seat = seats[context().actor_instance.rank.rank]
        self.manager: CarefulManager | None = None
        self.averaging: Averaging | None = None
        self.gradients: AveragedGradients | None = None
        # The code's generation and the quorum's number in the last step. All groups see a change
        # of either in the same step.
        self.met = (context().generation, -1)
        self.progress = {"step": 0, "batches_committed": 0}
        silence_logs()  # TorchFT's; the run records faults as events.

    def __reload__(self, change: ReloadReport) -> None:
        """Warn the author of an edit that affects the next start, or removes a function of the
        task.
        """
        tell_of_lost_parts(self.config.task, change)
        if hasattr(self, "next_start"):
            self.next_start.look(
                change,
                self.builders(),
                self.model,
                self.optimizer,
                generation=context().generation,
            )

    def builders(self) -> Builders:
        """Return the functions with which a start makes the model and the optimizer."""
        return Builders.of(self.config, build_model, build_optimizer)

    @endpoint
    def setup(self, checkpoint: Path | None, copies: HostCopies | None = None) -> TrainerReady:
        """Build the model, and continue from a copy in the host's memory or from a checkpoint.

        This rank's copy of ``copies`` is used if it still exists. Otherwise ``checkpoint`` is, or
        without it the checkpoint that the config names.
        """
        self.leave()
        with task_errors(f"{self.seat.name}, cannot be set up"):
            self.build()
            is_from_memory = copies is not None and self.go_on_from(copies)
            resumed_from, skipped = (None, ()) if is_from_memory else self.resume(checkpoint)
        return TrainerReady(
            step=self.progress["step"],
            num_parameters=sum(parameter.numel() for parameter in self.model.parameters()),
            pid=os.getpid(),
            hostname=socket.gethostname(),
            resumed_from=resumed_from,
            skipped=skipped,
            history=self.history,
            gpu=gpu_of(self.device),
            is_from_memory=is_from_memory,
        )

    @at_start
    def build(self) -> None:
        """Load the data, and build the model and the optimizers."""
        config, seat = self.config, self.seat
        refuse_extra_state(config.task, "fault_tolerant")
        self.device = use_device(config.device, seat.slot, config.num_threads)
        data = at_start(part(config.task, load_data))(config)
        train, self.held_out = dealt_sources(data, "fault_tolerant")
        self.samples = dealt_samples(
            config,
            train,
            size=config.batch_size,
            per_rank=config.batch_size,
            rank=seat.group * seat.num_ranks + seat.rank,
            world_size=seat.num_groups * seat.num_ranks,
        )
        name = f"group{seat.group}-rank{seat.rank}"
        self.profiler = Profiler(config.extras, self.checkpoint_dir, name)
        torch.manual_seed(config.seed)
        builders = self.builders()
        self.model = builders.model(config).to(self.device)
        self.optimizer = builders.optimizer(config, self.model)
        self.next_start = NextStart(builders.names)
        self.outer_optimizer = torch.optim.SGD(
            self.model.parameters(),
            lr=config.outer_learning_rate,
            momentum=config.outer_momentum,
            nesterov=config.outer_momentum > 0,
        )
        self.buffers = Buffers(self.model)  # averaged like the gradients
        self.progress = {"step": 0, "batches_committed": 0}
        self.history: list[dict[str, float]] = []  # evaluations that the checkpoint contains

    @endpoint
    def open_store(self, peers: tuple[str, ...] = ()) -> tuple[str, int]:
        """Open a new store at which the ranks of this group meet; return its host and port.

        Call it on the group's rank 0 only. ``peers`` are the hosts of all groups: in each quorum,
        the groups meet at one of these stores.
        """
        self.store, host, port = open_store(peers=peers)
        return host, port

    @endpoint
    def join(self, meet: Rendezvous) -> None:
        """Become a member of the quorum. From then on the other groups wait for this group."""
        config = self.config
        self.manager = manager = become_member(self.seat, meet, config, self.state, self.load_state)
        manager.load_state_dict(self.progress)
        self.averaging = averaging = Averaging(
            config.algorithm,
            manager,
            self.model,
            inner=self.optimizer,
            outer=self.outer_optimizer,
            sync_every=config.sync_every,
            num_ranks=self.seat.num_ranks,
        )
        self.parallel_model = averaging.model
        self.usage = SharedUsage(manager, self.model)
        self.gradients = None
        if isinstance(averaging.model, nn.parallel.DistributedDataParallel):
            self.gradients = AveragedGradients(averaging.model, self.model, self.optimizer)

    @endpoint
    def leave(self) -> int:
        """Leave the quorum, so that other groups do not wait for this one.

        Return the last committed step of this group, which may join again. `evaluate` and `save`
        still work.
        """
        if self.manager is not None:
            self.progress = self.manager.state_dict()
            averaging, self.averaging = self.averaging, None
            if averaging is not None:
                averaging.end()
            self.manager.shutdown()
            self.manager = None
        if dist.is_initialized():
            dist.destroy_process_group()
        return self.progress["step"]

    @endpoint
    def step(self, order: StepOrder) -> GroupStep:
        """Make one step and return its numbers: one batch with ddp, else `sync_every` batches."""
        started = time.perf_counter()
        assert self.manager is not None
        manager = self.manager
        manager.least_step, manager.least_groups = order.least_step, order.least_groups
        if self.config.learning_rate != order.learning_rate:
            self.config = dataclasses.replace(self.config, learning_rate=order.learning_rate)
        suffer(order.fault, self.seat.rank, "before")
        self.profiler.before(manager.current_step() + 1)
        self.model.train()
        make = self.averaged_step if self.config.algorithm == "ddp" else self.local_steps
        means, learning_rate, grad_norm = make(manager, order.fault)
        step, committed = manager.current_step(), manager.has_committed
        self.profiler.after(step)
        num_groups, config = manager.num_participants(), self.config
        num_batches = 1 if config.algorithm == "ddp" else config.sync_every
        num_samples = num_batches * config.batch_size * self.seat.num_ranks * num_groups
        old_met, self.met = self.met, (context().generation, manager.quorum_number)
        is_due_now = step >= order.last_step or is_due(step, order.fingerprint_every)
        sums = self.sums() if committed and (is_due_now or self.met != old_met) else None
        return GroupStep(
            step=step,
            committed=committed,
            participants=num_groups,
            loss=means.pop("loss"),
            metrics=means,
            learning_rate=learning_rate,
            grad_norm=grad_norm,
            samples_per_second=num_samples / (time.perf_counter() - started),
            generation=context().generation,
            fingerprint=None if sums is None else digest_of(sums),
            sums=sums,
            error=None if committed else str(manager.errored() or "a rank of it failed"),
        )

    def averaged_step(
        self, manager: CarefulManager, fault: InjectedFault | None
    ) -> tuple[dict[str, float], float, float]:
        """Learn from one batch, with the gradient averaged over all groups that take part.

        Returns the mean loss and metrics by name, the learning rate, and the norm of the gradient
        before clipping. ``fault`` is a fault to inject.
        """
        manager.start_quorum()
        # Read afterwards: a group that has healed is at the others' step.
        step = manager.current_step()
        learning_rate = self.learning_rate_of(step)
        self.optimizer.zero_grad()
        shared = SharedNumbers(manager, self.buffers)
        try:
            loss, tally = self.forward(step)
            suffer(fault, self.seat.rank, "inside")
            # The learning rate is averaged like the gradients. So all groups take the very same
            # step, even if the schedule's code was changed between the steps of two groups. These
            # numbers are sent while the gradients are computed.
            generation = context().generation
            is_expected = self.usage.expected(generation)
            shared.send(tally.packed(self.device, learning_rate, is_expected))
            with task_errors(self.place_of(step), but=RuntimeError):  # as of a lost connection
                self.backward(loss)
            with task_errors(self.place_of(step)):
                self.check_all_averaged()
            *totals, learning_rate, is_expected = shared.received()
            self.usage.share(generation, is_expected=is_expected > 0)
            set_rates(self.optimizer, learning_rate)
            grad_norm = self.finish_gradient(totals[1])
            suffer(fault, self.seat.rank, "commit")
            if not math.isfinite(totals[0]):
                self.check_loss(loss, step)
                # The loss of another process is not finite; that process raises the error.
                manager.report_error(NonFiniteLoss("the loss of another process is no number"))
            is_committed = manager.should_commit()
            if is_committed:
                self.check_gradient(grad_norm, totals[1], step)
                self.optimizer.step()
        except BaseException:  # also where new code is interrupted, or the lighthouse dies
            shared.drop()
            raise
        if is_committed:
            shared.keep()
        else:
            shared.drop()
        return tally.means(totals), learning_rate, grad_norm

    def local_steps(
        self, manager: CarefulManager, fault: InjectedFault | None
    ) -> tuple[dict[str, float], float, float]:
        """Learn from `sync_every` batches of this group.

        The last optimizer step averages with the other groups. Returns the same as `averaged_step`,
        but the loss and the metrics are means over this group's batches alone.
        """
        step, count = manager.current_step(), self.config.sync_every
        sums: list[list[float]] = []
        for batch in range(step * count, (step + 1) * count):
            learning_rate = self.learning_rate_of(step)
            set_rates(self.optimizer, learning_rate)
            self.optimizer.zero_grad()
            loss, tally = self.forward(batch)
            self.check_loss(loss, batch)
            num_left_out = self.backward(loss)
            numbers = tally.packed(self.device, num_left_out)
            average_in_group(numbers)
            totals = numbers.tolist()
            if totals[-1] and self.gradients is not None:
                with task_errors(self.place_of(batch)):
                    self.gradients.agree()
            sums.append(totals)
            grad_norm = self.finish_gradient(totals[1])
            self.check_gradient(grad_norm, totals[1], step)
            if batch == (step + 1) * count - 1:
                suffer(fault, self.seat.rank, "inside", "commit")
            self.optimizer.step()
        average_buffers_of_groups(manager, self.buffers, self.device)
        means = tally.means([sum(column) for column in zip(*sums, strict=True)])
        return means, learning_rate, grad_norm

    def forward(self, batch: int) -> tuple[torch.Tensor, Tally]:
        """Return the loss of this process's samples of a batch, and the sums of loss and metrics.

        The loss is the sum of the samples' losses divided by the batch size, whatever their
        weights. Raises TaskError if the task's code raises an error.
        """
        # Each group draws its own dropout, and a repeated step draws the same again.
        draw_from(self.config.seed, self.seat.group, self.seat.rank, batch)
        tally = Tally()
        with task_errors(self.place_of(batch)):
            generation = context().generation
            ((inputs, labels),) = self.samples.of(batch, self.device, self.seat.name, generation)
            logits = self.parallel_model(inputs)
            size = self.config.batch_size
            loss = sum_and_weight(part(self.config.task, compute_loss)(logits, labels), size)
            tally.add("loss", loss, size)
            tally.measure(part(self.config.task, metrics), logits, labels, size)
        mean: torch.Tensor = loss[0] / self.config.batch_size
        return mean, tally

    def backward(self, loss: torch.Tensor) -> int:
        """Compute the gradients.

        Return the number of parameters that this process left out, or whose gradient DDP does not
        average.
        """
        if self.gradients is None:
            loss.backward()
            return 0
        self.gradients.expect()
        loss.backward()
        return self.gradients.complete()

    def check_all_averaged(self) -> None:
        """Raise NotTrained if the groups do not average the gradient of a parameter."""
        assert self.gradients is not None
        if names := self.gradients.not_averaged():
            raise NotTrained(
                f"{some(names, 3)} was frozen when the groups met, or is not the model's: its "
                "gradient is not averaged over the groups. It can be trained from the next start"
            )

    def finish_gradient(self, weight: float) -> float:
        """Scale the gradient to that of the weighted mean of the losses, and clip it.

        ``weight`` is the batch's weight. Return the gradient's norm before clipping.
        """
        scale_gradient(self.model, self.config.batch_size / weight if weight else math.nan)
        return clip_gradient(self.model, self.config.clip_norm)

    def check_loss(self, loss: torch.Tensor, batch: int) -> None:
        """Raise TaskError, with the samples, if the loss of this process is not finite."""
        with task_errors(self.place_of(batch)):
            if not math.isfinite(loss.item()):
                raise NonFiniteLoss(f"the loss is {loss.item()}")

    def check_gradient(self, norm: float, weight: float, step: int) -> None:
        """Raise TaskError if the gradient is not finite or the loss has no weight."""
        with task_errors(f"{self.seat.name}, on {socket.gethostname()}"):
            check_weight(weight, step + 1)
            check_gradient(norm, step + 1)

    def place_of(self, batch: int) -> str:
        """Return the group, the host and the samples of a batch as text, for error messages."""
        samples = some([str(index) for index in self.samples.numbers_of(batch)], 8)
        return f"{self.seat.name}, on {socket.gethostname()}, in batch {batch}, samples {samples}"

    def learning_rate_of(self, step: int) -> float:
        with task_errors(self.seat.name):
            rate = part(self.config.task, learning_rate_at)
            return rate(self.config, step, self.config.num_steps)

    @endpoint
    def fingerprint(self) -> str:
        """Return the digest of the state that groups share.

        That is the parameters, and with ddp also the optimizer's state.
        """
        return digest_of(self.sums())

    def sums(self) -> Sums:
        optimizers = [self.optimizer] if self.config.algorithm == "ddp" else []
        return sums_of(state_of(self.model, optimizers))

    @endpoint
    def evaluate(self) -> Share:
        """Return the loss and the metrics on this rank's share of the held-out samples."""
        task, size = self.config.task, self.config.batch_size
        source, name = self.held_out, self.seat.name
        share = range(self.seat.rank, len(source.data), self.seat.num_ranks)
        with task_errors(f"{name}, cannot evaluate"):
            collate = source.collate_now(task)
            return evaluate_share(
                self.model,
                batches(source.data, share, size, self.device, name, collate=collate),
                loss=part(task, compute_loss),
                metrics=part(task, metrics),
                own=own_part(task, "evaluate"),
            )

    @endpoint
    def judge(self, history: list[dict[str, float]], extras: Extras) -> EvaluationVerdict:
        """Return whether the last evaluation was the best, and whether to stop after it."""
        with task_errors(f"{self.seat.name}, cannot judge the evaluation"):
            return judge(history, extras, own_part(self.config.task, "should_stop"))

    def state(self) -> dict[str, Any]:
        """Return the state that another group loads to heal: model and optimizer."""
        # Parameters do not change while another group fetches them; buffers may.
        model = {**self.model.state_dict(), **self.buffers.copies()}
        return {"model": model, "optimizer": self.optimizer.state_dict()}

    def load_state(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])

    @endpoint
    def hand_over(self) -> bytes:
        """Return the state of this process as the bytes of a checkpoint. Call it after `leave`."""
        out = io.BytesIO()
        outer = self.outer_optimizer.state_dict()
        state = {**self.state(), "outer_optimizer": outer, "progress": self.progress}
        torch.save(savable(state), out)
        return out.getvalue()

    @endpoint
    def take_over(self, finished: Any) -> None:
        """Load the state of the same rank of another group, whose trainers are `finished`."""
        data = finished.slice(ranks=self.seat.rank).hand_over.call_one().get()
        state = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        self.load(state)

    @endpoint
    def save(self, history: list[dict[str, float]], is_best: bool = False) -> Path:
        """Write a checkpoint and return its path. Raises Unsaved if that fails.

        The best checkpoint goes into a folder of its own. All hosts should see the folder, so that
        any group can resume.
        """
        state = {**self.__state__(), "history": history, "generation": context().generation}
        folder = self.checkpoint_dir / BEST if is_best else self.checkpoint_dir
        step, num_kept = self.progress["step"], 1 if is_best else self.config.num_checkpoints_kept
        try:
            return save_checkpoint(folder, step, state, num_kept)
        except (OSError, UnsavableState) as error:
            raise Unsaved(step, str(error), getattr(error, "key", None)) from None

    def __state__(self) -> dict[str, Any]:
        """Return everything that a new process of this rank needs to continue from here."""
        if self.manager is not None:
            self.progress = self.manager.state_dict()
        return {
            "step": self.progress["step"],
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "outer_optimizer": self.outer_optimizer.state_dict(),
            "progress": self.progress,
            "algorithm": self.config.algorithm,
            "generation": self.met[0],
            "unfit_since": self.next_start.unfit_since,
        }

    def go_on_from(self, copies: HostCopies) -> bool:
        """Load this rank's copy from the host's memory. Return False if it is gone or damaged."""
        state = read_whole(copies, self.seat.rank)
        if state is None:
            return False
        check_fits(state, self.model, self.optimizer, keys=("progress",))
        self.load(state)
        return True

    def load(self, state: dict[str, Any]) -> None:
        """Load the weights, the optimizers and the progress from a saved state."""
        self.load_state(state)
        self.outer_optimizer.load_state_dict(state["outer_optimizer"])
        self.progress = state["progress"]

    def resume(self, path: Path | None) -> tuple[Path | None, tuple[str, ...]]:
        """Load the checkpoint at `path`, else the one that the config names.

        If there is no checkpoint, load the weights of `init_from`, if the config has it. Returns
        the path of the loaded checkpoint, or None, and a text about each newer checkpoint that
        could not be used.
        """
        skipped: list[str] = []
        fits = functools.partial(
            check_model, model=self.model, keys=("progress",), generation=context().generation
        )
        checkpoint = find_checkpoint_or_newer(
            path, self.config.resume, self.checkpoint_dir, fits, skipped.append
        )
        if checkpoint is None:
            if self.config.init_from:
                init_from = Path(self.config.init_from)
                weights = load_weights(init_from)
                check_weights(init_from, weights, self.model)
                self.model.load_state_dict(weights)
            return None, tuple(skipped)
        check_optimizer(checkpoint, self.optimizer, generation=context().generation)
        self.load(checkpoint.state)
        self.history = checkpoint.state.get("history", [])
        return checkpoint.path, tuple(skipped)


def run(config: FaultTolerantConfig, hosts: HostMesh, record: Record) -> GroupsOutcome:
    """Train to the end on `hosts`, `record.procs_per_host` procs on each, whichever group dies.

    After Ctrl-C the groups finish a step and save; the same command then continues from there. A
    second Ctrl-C ends everything at once.
    """
    check_places(config, hosts.size(), record.procs_per_host)
    resume, init_from = chosen_for(record.folder, config.resume, config.init_from)
    if init_from is not None:
        record.message(f"groups that begin at step 0 have the weights of {shown(Path(init_from))}")
    config = dataclasses.replace(config, resume=resume, init_from=init_from)
    return train_groups(ReplicaTrainer, config, hosts, record)


def check(config: FaultTolerantConfig, num_hosts: int, procs_per_host: int) -> None:
    """Raise ConfigError if the groups do not fit on the hosts, before any process starts."""
    check_places(config, num_hosts, procs_per_host)
    check_choices(config.resume, config.init_from)


def check_places(config: FaultTolerantConfig, num_hosts: int, procs_per_host: int) -> None:
    """Raise ConfigError if the hosts have too few procs for the groups."""
    try:
        place_groups(config.num_groups, config.procs_per_group, num_hosts, procs_per_host)
    except ValueError as error:
        raise ConfigError(f"does not fit: {error}", key="num_groups") from None


def validate(config: FaultTolerantConfig, num_hosts: int, procs_per_host: int) -> None:
    """Check for `monarch recipe validate` that the data can be shared among the ranks.

    Loads the data. Raises TooFewSamples if it is too small for a step, and ConfigError if it cannot
    be divided at all, or if the task has extra state.
    """
    refuse_extra_state(config.task, "fault_tolerant")
    train_data_of(config)


def train_data_of(config: FaultTolerantConfig) -> DataSource:
    """Return the train data. Raises TooFewSamples if it is too small for a batch of each group."""
    train, _ = dealt_sources(part(config.task, load_data)(config), "fault_tolerant")
    num_procs = config.num_groups * config.procs_per_group
    SampleOrder(len(train.data), config.batch_size, 0, num_procs, seed=config.data_seed)
    return train


def plan(config: FaultTolerantConfig, num_hosts: int, procs_per_host: int) -> dict[str, Any]:
    """Return the lines of `monarch run fault_tolerant --plan`.

    It starts no process and makes no weights.
    """
    places = place_groups(config.num_groups, config.procs_per_group, num_hosts, procs_per_host)
    train, num_procs = train_data_of(config), config.num_groups * config.procs_per_group
    memory = memory_of_step(
        functools.partial(part(config.task, build_model), config),
        part(config.task, compute_loss),
        train.first_sample(),
        config.batch_size,
        train.collate_now(config.task),
    )
    num_batches = config.num_steps * (1 if config.algorithm == "ddp" else config.sync_every)
    epochs = num_batches * num_procs * config.batch_size / len(train.data)
    return describe_places(places, num_hosts * procs_per_host) | {
        "parameters": f"{memory.num_parameters:,}",
        "memory of a rank": str(memory),
        "a step": f"{num_batches // config.num_steps} x {config.batch_size} samples on each rank",
        "steps": f"{config.num_steps}, {epochs:.1f} epochs of {len(train.data)} samples",
        "faults": "; ".join(map(str, config.faults())) or "none on purpose",
    }
