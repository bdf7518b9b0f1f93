"""TorchTitan's `Trainer` on one rank, driven step by step.

TorchTitan's own `train()` is one call from the first step to the last. Here each step is a call, so
that code and config may change between two steps. All ranks must call every method together.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._composable.replicate import DDP, replicate
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Replicate
from torch.nn.parallel import DistributedDataParallel

from monarch.config_file import live_keys
from monarch.runs.hold.run_memory import HostCopies
from monarch_recipes.collective import from_all_ranks
from monarch_recipes.fingerprint import Sums, state_of_optimizer, sums_of
from monarch_recipes.groups import RankGroups
from monarch_recipes.schedule import is_due

from .checkpoints import Checkpointer, Resumed, Saved
from .config import TitanConfig, check_config, section, value_at, with_values
from .machine import check_machine, check_shared_gpus, with_paths_here
from .next_start import TitanNextStart
from .process import borrowed_process, meeting
from .shards import go_on_from, read_shards, state_of_rank
from .versions import titan
from .versions.cpu import sum_plainly
from .versions.engine import Engine

_A_DAY_SECONDS = 24 * 60 * 60
_METRIC_NAMES = {
    "loss_metrics/global_avg_loss": "loss",
    "loss_metrics/global_max_loss": "max_loss",
    "grad_norm": "grad_norm",
    "lr": "learning_rate",
    "throughput(tps)": "tokens_per_second",
    "tflops": "tflops_per_rank",
    "mfu(%)": "mfu_percent",
    "memory/max_reserved(GiB)": "memory_gib",
    "time_metrics/data_loading(%)": "data_loading_percent",
    "n_tokens_seen": "tokens_seen",
    "validation_metrics/loss": "validation_loss",
}
_METRICS_LEFT_OUT = ("time_metrics/", "memory/", "validation_metrics/")  # except those above


@dataclass(frozen=True)
class Setup:
    """The result of a rank's setup."""

    rank: int
    first_step: int  # steps done before, by the run that is resumed
    num_steps: int
    num_parameters: int  # of the whole model
    layout: str
    metrics_rank: int  # the rank that knows the loss
    device: str
    seconds: float
    resumed_from: Path | None
    notes: tuple[str, ...]
    why_not_nccl: str = ""  # where ranks have GPUs
    is_from_memory: bool = False  # it goes on from copies in the memory of the hosts


@dataclass(frozen=True)
class TitanStep:
    """The result of one step.

    `values` is empty if TorchTitan did not measure: see `metrics.log_freq`.
    """

    rank: int
    step: int  # counted from 1
    values: Mapping[str, float]
    is_last: bool
    is_save_due: bool = False  # then call `save_if_due`
    generation: int = 0  # of the workspace whose code ran
    # Digests of the state that ranks should share, by group of ranks; {} if it was not due.
    fingerprint: Mapping[str, str] = field(default_factory=dict)


class Training:
    """A training on one rank.

    Reads the environment variables that torchrun sets: RANK, WORLD_SIZE, LOCAL_RANK and the others.
    """

    def __init__(self, config: TitanConfig, copies: HostCopies | None = None) -> None:
        started = time.perf_counter()
        #: With the present values of the live keys, and this machine's paths.
        self.config = config = _with_later_timeouts(with_paths_here(config))
        self.rank = int(os.environ["RANK"])
        world_size = int(os.environ["WORLD_SIZE"])
        #: The number of ranks in each kind of parallelism.
        self.degrees = check_config(config, world_size)
        check_machine(config, self.degrees)
        #: Whether the config has validation.
        self._validates = section(config, "validation").enable
        #: Restores the process at the end of the training.
        self._exits = contextlib.ExitStack()
        self._exits.enter_context(borrowed_process())
        try:
            #: Why the ranks' GPUs do not use NCCL; "" if they do, and without GPUs.
            with meeting(int(os.environ["LOCAL_RANK"])) as self.why_not_nccl:
                check_shared_gpus(self.degrees, self.why_not_nccl)
                self.engine = engine = titan.make(config)
            if self.why_not_nccl:
                sum_plainly(engine)
            #: The metrics of the present step, under our names.
            self._metrics = MetricsBuffer(engine.metrics_logger, world_size)
            engine.metrics_logger = self._metrics
            self._checkpointer = Checkpointer(engine, config, self.degrees)
            state = read_shards(copies, self.rank, str(self.degrees))
            #: Whether it continues from the copies in the hosts' memory.
            self._is_from_memory = state is not None
            if state is not None:
                go_on_from(state, engine)
            #: The checkpoint that was loaded, if any.
            self._resumed = Resumed(None) if state is not None else self._checkpointer.load()
            self.configure(config)
            self.next_start = TitanNextStart(config, engine)
            #: TorchTitan's profilers, each with `step()`, or None for those that are off.
            self._profilers = [
                self._exits.enter_context(profiler) for profiler in engine.profilers()
            ]
            #: The train data, from the position that was resumed.
            self._batches = Batches(engine, self.rank, value_at(config, titan.keys.data))
            #: The parts of the model that DDP averages.
            self._replicas = [
                _Replica(replicate.state(part))
                for part in engine.model_parts
                if isinstance(part, DDP)
            ]
            #: The name of this rank's pipeline stage; "" without a pipeline.
            self._stage = ""
            if self.degrees.pp > 1:
                mesh = engine.parallel_dims.get_mesh("pp")
                self._stage = f"pp {mesh.get_local_rank()}"
            #: The groups that have no other rank, with which nothing is compared.
            self._alone_in = self._groups_of_one()
        except BaseException:
            self.close()
            raise
        #: The steps made before this training.
        self.first_step = engine.step
        #: How long it took to build the trainer and resume.
        self._seconds = time.perf_counter() - started

    def setup(self) -> Setup:
        """Return the size and layout of the run, and the step from which it continues."""
        engine = self.engine
        count = torch.tensor(
            sum(p.numel() for part in engine.model_parts for p in part.parameters())
        )
        if self.degrees.pp > 1:
            count = count.to(engine.device)
            dist.all_reduce(count, group=engine.parallel_dims.get_mesh("pp").get_group())
        return Setup(
            rank=self.rank,
            first_step=self.first_step,
            num_steps=self.config.training.steps,
            num_parameters=int(count),
            layout=str(self.degrees),
            metrics_rank=engine.metrics_rank,
            device=str(engine.device),
            seconds=self._seconds,
            resumed_from=self._resumed.path,
            notes=self._resumed.notes,
            why_not_nccl=self.why_not_nccl,
            is_from_memory=self._is_from_memory,
        )

    def step(self) -> TitanStep:
        """Learn from one global batch, and validate if that is due. Does not save.

        The caller records the step before it saves: if a rank died in between, a run that resumes
        from the checkpoint would not record the step.
        """
        engine, config = self.engine, self.config
        engine.step += 1
        try:
            engine.train_step(self._batches)
        except titan.DataEnded:
            engine.step -= 1
            return TitanStep(self.rank, engine.step, {}, is_last=True)
        is_last = engine.step == config.training.steps
        if self._validates and (is_last or engine.should_validate()):
            self._validate()
        for profiler in self._profilers:
            if profiler:
                profiler.step()
        if engine.step == self.first_step + 1:
            # The first step may have compiled, or waited for a rank that started late.
            engine.set_timeouts(timedelta(seconds=config.comm.train_timeout_seconds))
        values = self._metrics.take()
        is_save_due = self._checkpointer.is_due(engine.step, is_last)
        return TitanStep(self.rank, engine.step, values, is_last, is_save_due)

    def is_comparison_due(self, step: int) -> bool:
        """Return whether the replicas of weights are compared after `step`."""
        return is_due(step, self.config.fault_tolerance.fingerprint_every)

    def sums(self) -> dict[str, Sums]:
        """Return the fingerprint of this rank's shards, by the group of ranks that should be
        equal. Shards that no other rank has are left out.
        """
        return {
            group: sums_of(values)
            for group, values in self._by_group().items()
            if group not in self._alone_in
        }

    def _groups_of_one(self) -> set[str]:
        """Return this rank's groups that have no other rank. All ranks must call this together."""
        # Counters of steps are in the group of all ranks, and come with the first step.
        groups = {*self._by_group(), self._stage}
        num_ranks = Counter(itertools.chain.from_iterable(from_all_ranks(groups)))
        return {group for group in groups if num_ranks[group] == 1}

    def _by_group(self) -> dict[str, dict[str, Any]]:
        """Return this rank's part of each named value, by the group of ranks that should be
        equal.
        """
        by_group: dict[str, dict[str, Any]] = {}
        for name, value in self._by_name().items():
            group, local = _shard_of(value)
            by_group.setdefault(f"{self._stage} {group}".strip(), {})[name] = local
        return by_group

    def _by_name(self) -> dict[str, Any]:
        """Return the parameters and the optimizers' state of each, by name."""
        state: dict[str, Any] = {}
        for part in self.engine.model_parts:
            parameters = dict(part.named_parameters())
            state |= parameters
            names = {parameter: name for name, parameter in parameters.items()}
            for optimizer in self.engine.optimizers:
                state |= state_of_optimizer(optimizer, names, only_named=True)
        return state

    def take(self, rank: int) -> None:
        """Copy the parameters and the optimizer's state of ``rank``'s replica to all ranks."""
        meshes = self.engine.parallel_dims.get_all_one_dimensional_meshes()
        # The position of `rank` in each dimension.
        positions = [{name: mesh.get_local_rank() for name, mesh in meshes.items()}]
        dist.broadcast_object_list(positions, src=rank)
        source = positions[0]
        for value in self._by_name().values():
            if isinstance(value, DTensor):
                mesh = value.device_mesh
                for dim, (name, placement) in enumerate(
                    zip(mesh.mesh_dim_names or (), value.placements, strict=True)
                ):
                    if isinstance(placement, Replicate) and name in source:
                        _broadcast(value.to_local(), mesh.get_group(dim), source[name])
            elif isinstance(value, torch.Tensor):
                for name in ("dp_replicate", "tp"):
                    if name in meshes:
                        _broadcast(value, meshes[name].get_group(), source[name])

    def roots(self) -> dict[str, object]:
        """Return the objects of libraries that contain the state, by name, for copies of the state.

        Also remembers the process groups for `rejoin`, and drops gradients, which a step makes
        anew.
        """
        if dist.is_initialized():
            self._groups = RankGroups()
        for part in self.engine.model_parts:
            part.zero_grad()
        return self.engine.roots()

    def state(self, generation: int) -> dict[str, Any]:
        """Return everything that a new process of this rank needs to continue from here."""
        return state_of_rank(self.engine, str(self.degrees), generation)

    def rejoin(self) -> list[str]:
        """Make new process groups after the old ones were aborted.

        Returns a text for each holder of an old group that could not be changed.
        """
        holders = self._groups.make_anew()
        for replica in self._replicas:
            replica.wrap_anew()
        return holders

    def save_if_due(self) -> Saved:
        """Save a checkpoint of the present step if the config has one after it.

        Otherwise return a save that has finished in the background; empty if there is none.
        """
        step = self.engine.step
        return self._checkpointer.save_if_due(step, step == self.config.training.steps)

    def validate(self) -> float:
        """Return the loss on the validation data; NaN if the config has none."""
        if not self._validates:
            return math.nan
        self._validate()
        return self._metrics.take()["validation_loss"]

    def _validate(self) -> None:
        self.engine.validate()
        # Without a backward pass, FSDP leaves parameters gathered; a checkpoint needs shards.
        for part in self.engine.model_parts:
            for module in part.modules():
                if isinstance(module, FSDPModule):
                    module.reshard()

    def save(self) -> Saved:
        """Save a checkpoint to resume from; do nothing if the config has checkpoints disabled."""
        return self._checkpointer.save()

    def configure(self, config: TitanConfig) -> None:
        """Apply the live keys of a config."""
        for key in live_keys(type(config)):
            name, _, field_name = key.rpartition(".")
            setattr(getattr(self.config, name), field_name, value_at(config, key))
        self.engine.configure(config)

    def close(self) -> None:
        """End the training, and restore the process for another one."""
        try:
            if hasattr(self, "engine"):
                self.engine.close()
        finally:
            self._exits.close()


class Batches:
    """Iterates over the batches of the trainer's data; an error names the rank, step and sample.

    When the data loader is set back to an earlier position, the iteration continues from that
    position.
    """

    def __init__(self, engine: Engine, rank: int, data: Any) -> None:
        self._engine = engine
        self._rank = rank
        self._data = data
        self._batches: Iterator[Any] | None = None

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Any:
        engine = self._engine
        if self._batches is None:
            self._batches = engine.batches()
        try:
            return next(self._batches)
        except (StopIteration, titan.DataEnded):
            raise titan.DataEnded from None
        except Exception as error:
            sample = getattr(getattr(engine.dataloader, "dataset", None), "_sample_idx", "?")
            raise RuntimeError(
                f"rank {self._rank}, step {engine.step}: sample {sample} of its share "
                f"of {self._data or 'the data'} raised {type(error).__name__}: {error}"
            ) from error

    def state_dict(self) -> dict[str, Any]:
        return {}  # The loader has it.

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._batches = None


class _Replica:
    """A part of the model whose gradients DDP averages.

    Torch wraps it in its first forward pass.
    """

    def __init__(self, state: Any) -> None:
        self._state = state
        self._args, self._kwargs = state._init_args, dict(state._init_kwargs)

    def wrap_anew(self) -> None:
        """Let torch wrap this part again in the next forward pass, for the new process groups.

        All ranks must have the same weights.
        """
        state, wrapper = self._state, getattr(self._state, "_ddp", None)
        if wrapper is not None:
            # Something may still refer to the old wrapper: its hooks would use the old group.
            wrapper.reducer._remove_autograd_hooks()
            del state._ddp
        DistributedDataParallel._active_ddp_module = None
        state.has_initialized = False
        state._param_list, state._param_names = torch.nn.ParameterList(), []
        state._init_args, state._init_kwargs = self._args, {**self._kwargs, "init_sync": False}


def _shard_of(value: Any) -> tuple[str, Any]:
    """Return the group of ranks that should have the same value, and this rank's part of it.

    For a sharded tensor, the group is named by its shard; else it is "".
    """
    if not isinstance(value, DTensor):
        return "", value
    mesh = value.device_mesh
    coordinate = mesh.get_coordinate() or ()
    names = mesh.mesh_dim_names or tuple(map(str, range(mesh.ndim)))
    group = [
        f"{name} {position}"
        for name, position, placement in zip(names, coordinate, value.placements, strict=False)
        if not isinstance(placement, Replicate)
    ]
    return ", ".join(group), value.to_local()


def _broadcast(tensor: torch.Tensor, group: dist.ProcessGroup, source: int) -> None:
    """Copy the tensor of the group's rank ``source`` to all ranks of the group."""
    values = tensor.detach().contiguous()
    dist.broadcast(values, src=dist.get_global_rank(group, source), group=group)
    with torch.no_grad():
        tensor.copy_(values)


_Logger: Any = titan.Logger


class MetricsBuffer(_Logger):  # type: ignore[misc]
    """Collects TorchTitan's metrics under the names that all recipes use, until they are taken.

    They are also passed on to TorchTitan's own logger, such as TensorBoard's.
    """

    def __init__(self, inner: Any, world_size: int) -> None:
        self._inner = inner
        self._world_size = world_size
        self._values: dict[str, float] = {}

    def take(self) -> dict[str, float]:
        """Return the metrics logged since the last call."""
        taken, self._values = self._values, {}
        return taken

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        for theirs, value in metrics.items():
            ours = _METRIC_NAMES.get(theirs, theirs)
            if ours == theirs and theirs.startswith(_METRICS_LEFT_OUT):
                continue
            # TorchTitan 0.3 names the rate by its optimizer. If parameter groups have several
            # rates, their names have a number, and stay as they are.
            if re.fullmatch(r"lr/[^/]+", theirs):
                ours = "learning_rate"
            number = float(value)
            if ours == "tokens_per_second":
                number *= self._world_size  # TorchTitan's number is of one rank
            if ours != "mfu_percent" or titan.device_type != "cpu":
                self._values[ours] = number
        self._inner.log(metrics, step)

    def close(self) -> None:
        self._inner.close()


def _with_later_timeouts(config: TitanConfig) -> TitanConfig:
    """Return the config with longer timeouts, so that the client finds hangs before torch does.

    The client can only ask ranks for their stacks while torch has not ended them. After the first
    step only the client's clock counts: it stops while a person has a rank in a debugger, and
    torch's does not stop for a running collective.
    """
    comm = config.comm
    return with_values(
        config,
        comm={
            "init_timeout_seconds": 2 * comm.init_timeout_seconds + 10,
            "train_timeout_seconds": _A_DAY_SECONDS,
        },
    )
