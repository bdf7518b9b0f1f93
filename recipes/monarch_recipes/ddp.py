"""Data-parallel training: every rank has the whole model, and its share of each batch.

    monarch run ddp
    monarch run ddp --config ddp.toml learning_rate=1e-3 num_epochs=4

The defaults fit two processes on two CPU cores: a small network learns handwritten digits to more
than 97 % held-out accuracy in about ten seconds. With CUDA, each process takes the GPU of its local
rank. Read this file from top to bottom; copy it (`monarch recipe cp ddp my_recipe.py`), and change
it: your data, model and loss go into the functions below.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from monarch.actor import Actor, HostMesh, context, endpoint
from monarch.config_file import ConfigError, check_range, live
from monarch.runs import Record
from monarch.runs.attempts import TrainingAttempt, with_attempts
from monarch.runs.hold.holding import Holding
from monarch.runs.hold.run_memory import HostCopies
from monarch.runs.recover.checkpoint_choice import check_choices, chosen_for
from monarch.runs.recover.ranks import check_num_ranks, when_up
from monarch.runs.recover.saving import shown
from monarch.spmd import setup_torch_elastic_env
from monarch_recipes.alike import ONLY_WEIGHTS, Alike
from monarch_recipes.best import BEST, EvaluationVerdict, judge
from monarch_recipes.buffers import Buffers
from monarch_recipes.checkpoint import (
    check_optimizer,
    checkpoint_path,
    random_state,
    save_checkpoint,
    set_random_state,
)
from monarch_recipes.collective import (
    average_buffers,
    find_checkpoint_for_all,
    from_all_ranks,
    load_weights_for_all,
    sum_over_ranks,
    take_from,
)
from monarch_recipes.device import SystemInfo, system_info, use_device
from monarch_recipes.digits import NUM_CLASSES, load_digit_samples
from monarch_recipes.evaluation import evaluate_share, held_out_names, means_of, told
from monarch_recipes.export import export as export
from monarch_recipes.extra_state import ExtraState
from monarch_recipes.extras import Extras
from monarch_recipes.fingerprint import Sums, digest_of, state_of, sums_of
from monarch_recipes.gradients import AveragedGradients
from monarch_recipes.host_copies import first_that_fits, read_copy
from monarch_recipes.loaders import DataSource, UnfitData, sources_of
from monarch_recipes.memory import memory_of_step
from monarch_recipes.next_start import Builders, NextStart
from monarch_recipes.optimizer import set_rates
from monarch_recipes.precision import Precision
from monarch_recipes.profiling import Profiler
from monarch_recipes.rendezvous import meet_anew, open_meeting
from monarch_recipes.results import DDPOutcome, StepResult, TrainingPlan, measured
from monarch_recipes.samples import Data, DealtSamples, batches
from monarch_recipes.schedule import BatchSplit, is_due, learning_rate_factor, split_batch
from monarch_recipes.streams import (
    StreamedSamples,
    check_same_stream,
    open_samples,
    share_of_stream,
)
from monarch_recipes.tally import Tally, Weighted, accuracy, sum_and_weight
from monarch_recipes.task import own_part, part, tell_of_lost_parts
from monarch_reload import ReloadReport, at_start
from monarch_sync.words import counted

# Each host imports these once, and forks its procs afterwards, so that they begin in milliseconds.
# Without the second, each proc would import it for seconds when it makes its optimizer.
PRELOAD = ("torch", "torch._dynamo")
# For `--fast-dev-run`: a few steps that also evaluate and save.
FAST_DEV_RUN = ("num_steps=3", "evaluate_every=2", "checkpoint_every=2", "extras.log_to=[]")
_ANSWER_SECONDS = 60.0


@dataclass(frozen=True)
class DDPConfig:
    """All settings of a run, except its hosts.

    Keys with `live` may change while it runs: edit the TOML file.
    """

    # Your own part: a module with some of the functions below, to be used instead of them, and
    # `evaluate`, `should_stop` or `collate` (docs/recipes.md, "Your own model and data").
    task: str | None = None

    # The model.
    num_channels: int = 32  # of the first convolution; the second has twice as many
    dropout: float = 0.2

    # The data.
    held_out_fraction: float = 0.2  # of the data set, for evaluation only
    data_seed: int = 1  # decides the split and the order of the samples
    num_epochs: int = 24
    num_steps: int | None = None  # of the whole run; "none": as many as the epochs have
    global_batch_size: int = 128  # samples a step, over all ranks
    max_micro_batch_size: int = 32  # samples a pass of one rank; more are accumulated
    num_workers: int = 0  # processes of each rank that read samples ahead; 0 reads in the step

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
    master_port: int = 0  # where the ranks meet; 0: a private file, or any port that is free

    # Hangs and deaths.
    collective_timeout_seconds: float = 300.0  # a step without progress for so long counts as hung
    # A step on new code that takes longer is reported; "none": MONARCH_EDIT_PATIENCE_SECONDS, 30.
    edit_patience_seconds: float | None = live(None)
    max_restarts: int = 5  # after deaths and hangs, in a row without a new checkpoint

    # Evaluation and checkpoints, in steps; 0 leaves it to the end of the run.
    evaluate_every: int = live(44)
    checkpoint_every: int = live(44)
    log_every: int = live(1)
    fingerprint_every: int = live(100)  # compares the ranks' weights and optimizer states
    num_checkpoints_kept: int = 3
    resume: str = "auto"  # the latest of this run; "never"; a checkpoint's path; another run
    init_from: str | None = None  # weights to begin with, at step 0: a path, a run, or "best"

    # The best checkpoint, early stopping, TensorBoard, the profiler.
    extras: Extras = field(default_factory=Extras)

    def __post_init__(self) -> None:
        at_least_one = (
            "num_channels", "num_epochs", "global_batch_size", "max_micro_batch_size",
            "num_ranks", "num_threads", "log_every", "num_checkpoints_kept", "num_steps",
        )  # fmt: skip
        not_negative = (
            "learning_rate", "weight_decay", "num_warmup_steps", "max_restarts",
            "evaluate_every", "checkpoint_every", "fingerprint_every", "num_workers",
        )  # fmt: skip
        check_range(self, *at_least_one, least=1)
        check_range(self, *not_negative, least=0)
        positive = "clip_norm", "collective_timeout_seconds", "edit_patience_seconds"
        check_range(self, *positive, more_than=0)
        check_range(self, "held_out_fraction", more_than=0, less_than=1)
        check_range(self, "dropout", least=0, less_than=1)
        check_range(self, "master_port", least=0, most=65535)


# The task: model, data, loss. Edit it while a run goes on, with `monarch sync --watch` beside it:
# all ranks take the new loss or schedule between two steps, and keep weights and optimizer.


def load_data(config: DDPConfig) -> Data:
    """Return the train and the held-out data.

    Each is a data set with `len(data)` and `data[index] -> (input, label)`, a torch DataLoader, or
    a stream. Every rank loads all of it, and reads its share of the samples.
    """
    return load_digit_samples(config.data_seed, config.held_out_fraction)


def build_model(config: DDPConfig) -> nn.Module:
    """Return the model: images (N, 1, 8, 8) to logits (N, 10)."""
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


def build_optimizer(config: DDPConfig, model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of the model; any torch optimizer will do.

    Before each step the recipe sets the learning rate and the weight decay. A parameter group may
    scale them by its own `lr_scale` and `weight_decay_scale`.
    """
    return torch.optim.AdamW(model.parameters(), lr=config.learning_rate)


def compute_loss(logits: torch.Tensor, labels: torch.Tensor) -> Weighted:
    """Return the mean loss over the samples of a micro-batch.

    If samples do not count equally, such as texts of different lengths, return (sum, weight): the
    sum of the losses of all tokens, and their number.
    """
    return functional.cross_entropy(logits, labels)


def metrics(logits: torch.Tensor, labels: torch.Tensor) -> dict[str, Weighted]:
    """Return further values by name, as means or (sum, weight) like the loss.

    All ranks need the same names. They are computed in training and on the held-out samples. Here
    it is the share of right answers.
    """
    return accuracy(logits, labels)


def learning_rate_at(config: DDPConfig, step: int, num_steps: int) -> float:
    """Return the learning rate of `step`, counted from 0."""
    return config.learning_rate * learning_rate_factor(step, config.num_warmup_steps, num_steps)


class DDPTrainer(Actor):
    """A rank of the training; call it from a notebook cell or from `run`.

    Call its endpoints on all ranks together, except `open_store`, `configure`, `system_info`,
    `fingerprint` and `judge`. It reads the environment variables that torchrun sets: RANK,
    WORLD_SIZE, LOCAL_RANK, ...
    """

    def __init__(self, config: DDPConfig, checkpoint_dir: Path | str = "checkpoints") -> None:
        self.config = config
        self.checkpoint_dir = Path(checkpoint_dir)
        self.samples: DealtSamples | StreamedSamples | None = None  # until `setup`

    @endpoint
    def open_store(self) -> tuple[str, int]:
        """Open the store where the ranks meet; return (host, port), or (file, 0).

        Call it on rank 0 only, before `setup`.
        """
        self.store, host, port = open_meeting(self.config.master_port)
        return host, port

    @endpoint
    @at_start
    def setup(
        self, store: tuple[str, int] | None = None, copies: HostCopies | None = None
    ) -> TrainingPlan:
        """Join the process group, build the model, and resume. Call it first.

        Without `store`, the ranks meet at the address in their environment, as under torchrun. With
        `copies` they continue from these copies in the hosts' memory instead of a checkpoint.
        """
        config = self.config
        self.device = use_device(config.device, int(os.environ["LOCAL_RANK"]), config.num_threads)
        self.meet(store)
        data = at_start(part(config.task, load_data))(config)
        train, self.held_out = sources_of(data)
        self.batch = split_batch(
            config.global_batch_size, self.world_size, config.max_micro_batch_size
        )
        self.samples = open_samples(
            config,
            train,
            size=self.batch.micro_batch_size,
            per_rank=self.batch.per_rank,
            rank=self.rank,
            world_size=self.world_size,
        )
        self.num_steps = num_steps_of(config, self.samples.num_steps_per_epoch)
        self.profiler = Profiler(config.extras, self.checkpoint_dir, f"rank{self.rank}")
        self.history: list[dict[str, float]] = []  # of all evaluations

        torch.manual_seed(config.seed)
        builders = self.builders()
        self.model = builders.model(config).to(self.device)
        self.optimizer = builders.optimizer(config, self.model)
        self.next_start = NextStart(builders.names)
        self.precision = Precision(config.precision, self.device)
        self.num_steps_done = 0
        self.extra_saved: dict[str, Any] | None = None  # the checkpoint's, until it is loaded
        self.taken_from: int | None = None  # the rank whose copy all ranks got
        self.generation = context().generation
        self.are_only_weights_compared = False  # since the last edit of the code
        # Ranks draw their dropout from different streams.
        torch.manual_seed(config.seed + 1 + self.rank)
        is_from_memory = copies is not None and self.go_on_from(copies)
        resumed_from, skipped = (None, ()) if is_from_memory else self.resume()
        skipped += self.begin_extra_state(copies if is_from_memory else None)
        if isinstance(self.samples, StreamedSamples):
            self.check_stream(self.samples)
        # Wrapped last: this copies rank 0's weights, resumed or new, to all ranks.
        self.wrap()
        self.buffers = Buffers(self.model)
        return TrainingPlan(
            first_step=self.num_steps_done,
            num_steps=self.num_steps,
            num_steps_per_epoch=self.samples.num_steps_per_epoch,
            data_taken=train.told(config.global_batch_size),
            num_parameters=sum(parameter.numel() for parameter in self.model.parameters()),
            batch=self.batch,
            resumed_from=resumed_from,
            skipped=skipped,
            why_not_nccl=self.why_not_nccl,
            is_from_memory=is_from_memory,
        )

    def begin_extra_state(self, copies: HostCopies | None) -> tuple[str, ...]:
        """Build the task's extra state, and load its saved state, if there is one.

        Returns a text for each object whose state the checkpoint lacks. ``copies`` are the copies
        in the hosts' memory that the ranks continue from; None if they do not.
        """
        self.extra = ExtraState(self.config.task, self.config, self.model)
        saved, self.extra_saved = self.extra_saved, None
        if saved is not None:
            self.extra.load_state_dict(saved)
        if copies is not None and self.taken_from is not None:
            self.extra.take_from(self.taken_from)
        lacking = self.extra.lacking(saved) if saved is not None else []
        return tuple(f"the checkpoint has no {name!r}: it begins as new" for name in lacking)

    def __reload__(self, change: ReloadReport) -> None:
        """Warn the author of an edit that affects the next start, or removes a function of the
        task.
        """
        tell_of_lost_parts(self.config.task, change)
        if hasattr(self, "parallel_model"):
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
    def rejoin(self, store: tuple[str, int]) -> None:
        """Join a new process group after the old one was aborted. The model and its state stay."""
        self.meet(store)
        self.wrap(is_same_everywhere=True)

    def meet(self, store: tuple[str, int] | None) -> None:
        """Leave the process group, if any, and join a new one with all ranks."""
        seconds = self.config.collective_timeout_seconds
        self.why_not_nccl = meet_anew(store, self.device, seconds)
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()

    def wrap(self, is_same_everywhere: bool = False) -> None:
        """Wrap the model so that gradients are averaged over all ranks.

        The ranks first get the weights of rank 0; ``is_same_everywhere`` says that they have them.
        """
        old_wrapper = getattr(self, "parallel_model", None)
        if old_wrapper is not None:
            # Something may still refer to the old wrapper: its hooks would use the old group.
            old_wrapper.reducer._remove_autograd_hooks()
        device_ids = [self.device.index] if self.device.type == "cuda" else None
        self.parallel_model = DistributedDataParallel(
            self.model, device_ids=device_ids, init_sync=not is_same_everywhere
        )
        # DDP has copied rank 0's buffers to all ranks; from now on `average_buffers` averages them.
        self.parallel_model.broadcast_buffers = False
        self.gradients = AveragedGradients(self.parallel_model, self.model, self.optimizer)

    @endpoint
    def step(self) -> StepResult:
        """Learn from one global batch, and return the numbers of the step."""
        started = time.perf_counter()
        config, step, generation = self.config, self.num_steps_done + 1, context().generation
        self.profiler.before(step)
        learning_rate = part(config.task, learning_rate_at)(config, step - 1, self.num_steps)
        set_rates(self.optimizer, learning_rate, config.weight_decay)

        self.model.train()
        tally = Tally()
        assert self.samples is not None, "setup comes first"
        size = self.batch.micro_batch_size
        micro_batches = self.samples.of(step - 1, self.device, self.name, generation)
        for number, (inputs, labels) in enumerate(micro_batches, 1):
            # Gradients are averaged once a step, with the last micro-batch.
            is_last = number == self.batch.num_micro_batches
            if is_last:
                self.gradients.expect()
            with contextlib.nullcontext() if is_last else self.parallel_model.no_sync():
                with self.precision.autocast():
                    logits = self.parallel_model(inputs)
                logits = self.precision.full(logits)
                loss = sum_and_weight(part(config.task, compute_loss)(logits, labels), size)
                busy_seconds = time.perf_counter() - started
                # As if each sample weighed 1; `factor` below corrects it by the real weights.
                self.precision.backward(loss[0] / self.batch.per_rank)
            tally.add("loss", loss, size)
            tally.measure(part(config.task, metrics), logits, labels, size)
        # Before any other collective: the other ranks wait for the gradients of all parameters.
        num_left_out = self.gradients.complete()
        indices = self.samples.numbers_of(step - 1)
        totals = sum_over_ranks(tally.packed(self.device, num_left_out), step, indices)
        unused = self.gradients.agree() if totals[-1] else ()
        average_buffers(self.buffers)

        grad_norm = self.precision.step(
            self.optimizer,
            self.model,
            factor=config.global_batch_size / totals[1],
            clip_norm=config.clip_norm,
            step=step,
        )
        # Here, not before the backward pass: a step that fails then has no gradients to restore.
        self.optimizer.zero_grad()
        self.extra.after_step(self.model)
        self.num_steps_done = step
        self.profiler.after(step)
        means = tally.means(totals)
        fingerprint = self.to_compare(step, generation)
        return StepResult(
            step=step,
            loss=means.pop("loss"),
            metrics=means,
            samples_per_second=config.global_batch_size / (time.perf_counter() - started),
            learning_rate=learning_rate,
            grad_norm=grad_norm,
            rank=self.rank,
            busy_seconds=busy_seconds,
            generation=generation,
            unused=unused,
            fingerprint=fingerprint,
        )

    def to_compare(self, step: int, generation: int) -> dict[str, str]:
        """Return the digest to compare between ranks after this step, by kind; {} if none is due
        or there is no other rank.

        After the first step on new code it is a digest of the weights only: with Adam they are a
        third of the state, and differences show in them. After the next step, and every
        ``fingerprint_every`` steps, it is a digest of the whole state.
        """
        is_new = generation != self.generation
        is_all_due = (
            is_due(step, self.config.fingerprint_every)
            or self.are_only_weights_compared
            or (is_new and step >= self.num_steps)
        )
        self.generation, self.are_only_weights_compared = generation, is_new and not is_all_due
        if self.world_size == 1:
            return {}
        if is_all_due:
            return {"": digest_of(self.sums())}
        return {ONLY_WEIGHTS: digest_of(sums_of(state_of(self.model)))} if is_new else {}

    def sums(self) -> Sums:
        """Return the fingerprint of weights, buffers and optimizer state, which all ranks should
        share.
        """
        return sums_of(state_of(self.model, [self.optimizer]))

    @endpoint
    def fingerprint(self) -> tuple[int, dict[str, Sums]]:
        """Return this rank's number and its fingerprint by group; "" is the group of all ranks,
        which is left out if there is no other rank.

        The ranks need not call it together.
        """
        return self.rank, {"": self.sums()} if self.world_size > 1 else {}

    @endpoint
    def take(self, rank: int) -> None:
        """Copy the weights, buffers, optimizer and extra state of ``rank`` to all ranks."""
        take_from(rank, self.model, self.optimizer)
        self.extra.take_from(rank)

    @endpoint
    def train(self, num_steps: int) -> list[StepResult]:
        """Make several steps in one call. Code cannot change between them."""
        return [self.step() for _ in range(num_steps)]

    @endpoint
    def evaluate(self) -> dict[str, float]:
        """Return the loss and the metrics on the held-out samples.

        Each rank evaluates a share of them.
        """
        task, size = self.config.task, 4 * self.config.max_micro_batch_size
        share = evaluate_share(
            self.extra.evaluated(self.model),
            self.held_out_batches(size),
            loss=part(task, compute_loss),
            metrics=part(task, metrics),
            own=own_part(task, "evaluate"),
            autocast=self.precision.autocast,
        )
        values = means_of(from_all_ranks(share))
        self.history.append({**values, "step": float(self.num_steps_done)})
        return values

    @endpoint
    def judge(self) -> EvaluationVerdict:
        """Return whether the last evaluation was the best, and whether to stop after it."""
        return judge(self.history, self.config.extras, own_part(self.config.task, "should_stop"))

    @endpoint
    def save(self, is_best: bool = False) -> Path:
        """Write a checkpoint and return its path, on the machine of rank 0, which writes it.

        The best checkpoint goes into a folder of its own.
        """
        random_states = from_all_ranks(random_state(self.device))
        folder = self.checkpoint_dir / BEST if is_best else self.checkpoint_dir
        step, num_kept = self.num_steps_done, 1 if is_best else self.config.num_checkpoints_kept
        if self.rank == 0:
            state = {**self.__state__(), "random_states": random_states}
            state["generation"] = context().generation
            del state["random_state"]
            save_checkpoint(folder, step, state, num_kept)
        return checkpoint_path(folder, step)

    def __state__(self) -> dict[str, Any]:
        """Return everything that a new process of this rank needs to continue from here."""
        return {
            "step": self.num_steps_done,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.precision.state_dict(),
            "random_state": random_state(self.device),
            "history": self.history,
            "extra": self.extra.state_dict(),
            "data": self.samples.state_at(self.num_steps_done) if self.samples else {},
            "generation": self.generation,
            "unfit_since": self.next_start.unfit_since,
        }

    @endpoint
    def configure(self, config: DDPConfig) -> None:
        """Use another config from the next step on. It may differ in live keys only."""
        self.config = config

    @endpoint
    def system_info(self) -> SystemInfo:
        """Return the machine, process and device of this rank."""
        return system_info(self.device)

    def resume(self) -> tuple[Path | None, tuple[str, ...]]:
        """Load the checkpoint that the config names, if there is one.

        It may be of a run with another number of ranks. If there is no checkpoint, load the weights
        of `init_from`, if the config has it. Returns the path of the loaded checkpoint, or None,
        and a text about each newer checkpoint that could not be used.
        """
        checkpoint, skipped = find_checkpoint_for_all(
            self.config.resume, self.checkpoint_dir, self.model, ["random_states"]
        )
        if checkpoint is None:
            if self.config.init_from:
                load_weights_for_all(Path(self.config.init_from), self.model)
            return None, skipped
        state = checkpoint.state
        check_optimizer(checkpoint, self.optimizer, generation=context().generation)
        self.load(state)
        states = state["random_states"]
        self.set_random_state(states[self.rank] if len(states) == self.world_size else None)
        return checkpoint.path, skipped

    def go_on_from(self, copies: HostCopies) -> bool:
        """Continue from the copies in the hosts' memory.

        Return False if no rank's copy is complete. A rank whose own copy is lost gets the state of
        another rank.
        """
        state, old_random_state = read_copy(copies, self.rank)
        source = first_that_fits(state, self.model, self.optimizer)
        if source is None:
            return False
        if state is not None:
            self.load(state)
        self.num_steps_done, self.history = copies.step, source.history
        self.go_on_in_data(source.data)
        self.precision.load_state_dict(source.scaler)
        self.taken_from = source.rank if source.is_to_be_taken_from else None
        if self.taken_from is not None:
            take_from(self.taken_from, self.model, self.optimizer)
        self.set_random_state(old_random_state)
        return True

    def load(self, state: dict[str, Any]) -> None:
        """Load a saved state, as `__state__` returns it."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.precision.load_state_dict(state["scaler"])
        self.num_steps_done, self.history = state["step"], state.get("history", [])
        self.extra_saved = state.get("extra", {})
        self.go_on_in_data(state.get("data", {}))

    def go_on_in_data(self, state: dict[str, Any]) -> None:
        """Position the data so that the next step gets its samples.

        Data that is indexed by number needs no change.
        """
        if isinstance(self.samples, StreamedSamples):
            self.samples.go_on_at(self.num_steps_done, state)

    def set_random_state(self, state: dict[str, torch.Tensor] | None) -> None:
        """Set the random generators to ``state``.

        If it is None, seed them from the rank and the step.
        """
        if state is not None:
            set_random_state(state)
        else:
            seed = self.config.seed + 1 + self.rank + self.world_size * self.num_steps_done
            torch.manual_seed(seed)

    def held_out_batches(self, size: int) -> Iterator[Any]:
        """Yield this rank's share of the held-out samples as (inputs, labels) on the device.

        A batch has up to `size` samples.
        """
        source, task = self.held_out, self.config.task
        if source.is_stream:
            return share_of_stream(
                source,
                size=size,
                rank=self.rank,
                world_size=self.world_size,
                seed=self.config.data_seed,
                device=self.device,
                reader=self.name,
                collate=functools.partial(source.collate_now, task),
            )
        share = range(self.rank, len(source.data), self.world_size)
        collate = source.collate_now(task)
        return batches(source.data, share, size, self.device, self.name, collate=collate)

    def check_stream(self, samples: StreamedSamples) -> None:
        """Read the first step's samples. Raise UnfitData if the ranks read different streams."""
        if self.num_steps_done < self.num_steps:
            samples.read(self.num_steps_done, self.name, context().generation)
            check_same_stream(from_all_ranks(samples.digest()))

    @property
    def name(self) -> str:
        """The name of this rank and its step, for error messages."""
        return f"rank {self.rank}, in step {self.num_steps_done + 1},"

    def __cleanup__(self, error: Exception | None) -> None:
        if self.samples is not None:
            self.samples.close()
        if dist.is_initialized():
            dist.destroy_process_group()


def run(config: DDPConfig, hosts: HostMesh, record: Record) -> DDPOutcome:
    """Train to the end on `hosts`, step by step, so that code can change between two steps.

    When a rank dies or hangs, all ranks start again in new procs: from copies in the hosts' memory,
    if these are newer than the last checkpoint. When the record is stopping, a checkpoint is saved
    first; the same command then continues from there.
    """
    check_share(config, len(hosts), record.procs_per_host)
    chosen_for(record.folder, config.resume, config.init_from)  # Raises if there is none.
    ranks_per_host = (config.num_ranks or len(hosts) * record.procs_per_host) // len(hosts)
    return with_attempts(
        lambda attempt: train(record.live(config), record, attempt),
        hosts,
        ranks_per_host,
        record,
        name="ddp",
        preload=PRELOAD,
        max_restarts=config.max_restarts,
    )


def train(config: DDPConfig, record: Record, attempt: TrainingAttempt) -> DDPOutcome:
    """Drive the ranks from the client until the last step, or until the record is stopping."""
    procs, saving = attempt.procs, attempt.saving
    # After its first checkpoint, a run always continues from its own checkpoints.
    resume, init_from = chosen_for(record.folder, config.resume, config.init_from)
    if attempt.saved_step is not None:
        resume = "auto"
    first_config = dataclasses.replace(config, resume=resume, init_from=init_from)
    trainers = procs.spawn("trainer", DDPTrainer, first_config, record.checkpoint_dir.absolute())
    open_store = trainers.flatten("rank").slice(rank=0).open_store
    # Waits for the procs; a run that is stopped before its first step ends here.
    store = when_up(open_store, record)
    setup_torch_elastic_env(procs)
    holding = Holding(
        procs,
        trainers,
        record,
        seconds=config.collective_timeout_seconds,
        rejoin=lambda: trainers.rejoin.call(open_store.call_one().get()).get(),
        alike=lambda: alike.difference(),
        memory=attempt.memory,
        save=lambda: save_new_steps(),
    )
    ask = holding.ask
    alike = Alike(
        record,
        holding,
        lambda: dict(trainers.fingerprint.call().get(timeout=_ANSWER_SECONDS).values()),
        lambda rank: ask(trainers.take, rank, doing="taking the state of one rank"),
    )
    plan: TrainingPlan = ask(
        trainers.setup,
        store,
        attempt.newest_copies(),
        doing="setting up",
        unless=lambda: record.is_stopping,
        in_place=False,
    )[0]
    record.message(
        f"{plan.num_parameters:,} parameters on {counted(len(trainers), 'rank')}, "
        f"{plan.batch.num_micro_batches} x {plan.batch.micro_batch_size} samples each a step, "
        f"{plan.num_steps} steps"
        + (f", {plan.num_steps_per_epoch} an epoch" if plan.num_steps_per_epoch else "")
    )
    if plan.data_taken:
        record.message(plan.data_taken)
    if plan.why_not_nccl:
        record.message(plan.why_not_nccl)
    saving.resumed(
        plan.resumed_from, plan.first_step, plan.skipped, is_from_memory=plan.is_from_memory
    )
    if init_from is not None and not plan.first_step:
        record.event("initialized", f"begins with the weights of {shown(Path(init_from))}")
    step, held_out = plan.first_step, None
    alike.compare(plan.first_step)

    def save(must: bool = False) -> None:
        alike.compare(step)
        saving.save(step, lambda: ask(trainers.save, doing="saving a checkpoint")[0], must=must)

    def save_new_steps() -> None:
        if step not in (plan.first_step, saving.saved_step):
            save()

    def tell(results: Sequence[StepResult]) -> None:
        record.metrics(step, plan.num_steps, measured(results))

    def evaluate() -> tuple[dict[str, float], EvaluationVerdict]:
        values: dict[str, float] = ask(trainers.evaluate, doing="the evaluation")[0]
        record.metrics(step, plan.num_steps, held_out_names(values))
        verdict: EvaluationVerdict = ask(trainers.judge, doing="judging the evaluation")[0]
        if verdict.is_best and config.extras.keep_best:
            doing = "saving the best checkpoint"
            saving.save_best(step, lambda: ask(trainers.save, True, doing=doing)[0])
        return values, verdict

    def is_due_after(step: int) -> bool:
        """Return whether an evaluation, a checkpoint or a copy of the state is due after a step."""
        intervals = config.evaluate_every, config.checkpoint_every, config.extras.shadow_every
        return step >= plan.num_steps or any(is_due(step, every) for every in intervals)

    with holding.until_stopped():
        while step < plan.num_steps and (holding.is_ahead or not record.is_stopping):
            live_config = record.live(config)
            if live_config != config and not holding.is_ahead:
                config = live_config
                ask(trainers.configure, config, doing="changing the config")
            # If nothing must be done between this step and the next, ranks do not wait for us.
            is_asked = record.is_stopping or record.is_save_wanted
            is_asked = is_asked or alike.is_suspected or saving.is_overdue
            is_free = record.may_go_ahead and live_config == config and not is_asked
            results: list[StepResult] = ask(
                trainers.step,
                doing=f"step {step + 1}",
                ahead=is_free and not is_due_after(step + 1),
            )
            step = results[0].step
            attempt.step_made(step)
            alike.tell_unused(step, results[0].unused)
            alike.look(step, [result.fingerprint for result in results])
            is_end = step >= plan.num_steps
            if is_end or is_due(step, config.log_every):
                holding.run("metrics", functools.partial(tell, results))
            if not is_end and is_due(step, config.evaluate_every):
                values, verdict = evaluate()
                if verdict.reason_to_stop:
                    record.event("stopped_early", verdict.reason_to_stop, step=step)
                    held_out = values
                    break
            is_wanted = not holding.is_ahead and (record.take_save_wanted() or saving.is_overdue)
            if not is_end and (is_due(step, config.checkpoint_every) or is_wanted):
                save()
            if is_due(step, config.extras.shadow_every):
                holding.shadow()

    if step >= plan.num_steps:
        held_out, _ = evaluate()
    if held_out is not None or step > plan.first_step:
        save(must=True)
    if held_out is not None:
        record.message(f"{told(held_out_names(held_out))} after step {step}")
    return DDPOutcome(step, held_out, saving.latest, attempt.num_restarts)


def check(config: DDPConfig, num_hosts: int, procs_per_host: int) -> None:
    """Raise ConfigError if the config does not fit the number of procs, before any is started."""
    check_share(config, num_hosts, procs_per_host)
    check_choices(config.resume, config.init_from)


def check_share(config: DDPConfig, num_hosts: int, procs_per_host: int) -> None:
    """Raise ConfigError if the procs cannot share a batch evenly."""
    num_ranks = check_num_ranks(config.num_ranks, num_hosts, procs_per_host)
    try:
        split_batch(config.global_batch_size, num_ranks, config.max_micro_batch_size)
    except ValueError as error:
        raise ConfigError(f"does not fit: {error}", key="global_batch_size") from None


def validate(config: DDPConfig, num_hosts: int, procs_per_host: int) -> None:
    """Check for `monarch recipe validate` that the data can be shared among the ranks.

    Loads the data. Raises TooFewSamples if it is too small for a step, and ConfigError if it cannot
    be divided at all.
    """
    shape_of(config, num_hosts, procs_per_host)


def plan(config: DDPConfig, num_hosts: int, procs_per_host: int) -> dict[str, Any]:
    """Return the lines of `monarch run ddp --plan`, without starting a process or making the
    weights.
    """
    train, batch, num_steps = shape_of(config, num_hosts, procs_per_host)
    memory = memory_of_step(
        functools.partial(part(config.task, build_model), config),
        part(config.task, compute_loss),
        train.first_sample(),
        batch.micro_batch_size,
        train.collate_now(config.task),
    )
    num = train.num_samples
    data = "a stream" if num is None else f"{config.num_epochs} epochs of {num} samples"
    return {
        "parameters": f"{memory.num_parameters:,}",
        "memory of a rank": str(memory),
        "a step": f"{batch.num_micro_batches} x {batch.micro_batch_size} samples on each rank",
        "steps": f"{num_steps} in {data}" if config.num_steps is None else f"{num_steps}",
    }


def shape_of(
    config: DDPConfig, num_hosts: int, procs_per_host: int
) -> tuple[DataSource, BatchSplit, int]:
    """Return the train data, a rank's share of a step, and the number of steps of the run."""
    num_ranks = config.num_ranks or num_hosts * procs_per_host
    batch = split_batch(config.global_batch_size, num_ranks, config.max_micro_batch_size)
    train, _ = sources_of(part(config.task, load_data)(config))
    samples = open_samples(
        config,
        train,
        size=batch.micro_batch_size,
        per_rank=batch.per_rank,
        rank=0,
        world_size=num_ranks,
    )
    return train, batch, num_steps_of(config, samples.num_steps_per_epoch)


def num_steps_of(config: DDPConfig, num_steps_per_epoch: int | None) -> int:
    """Return the number of steps of the whole run. Raises UnfitData if it cannot be known."""
    if config.num_steps is not None:
        return config.num_steps
    if not num_steps_per_epoch:
        raise UnfitData(
            "the train data is a stream whose length is not known, or less than a batch: say "
            "num_steps, the steps of the whole run"
        )
    return num_steps_per_epoch * config.num_epochs
