"""TorchTitan's `Trainer` on one rank, driven step by step.

TorchTitan's own `train()` is one call from the first step to the last. Here its loop is turned
inside out: between two steps there is a moment in which code and config may change.
Every method is collective: all ranks must call it together.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import math
import os
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from monarch.config_file import ConfigError
from monarch_recipes.titan_api import (
    BaseLogger,
    DataloaderExhaustedError,
    Trainer,
    device_type,
    get_metrics_rank,
    maybe_enable_memory_snapshot,
    maybe_enable_profiling,
    set_pg_timeouts,
)
from monarch_recipes.titan_checkpoint import (
    Found,
    check_model,
    find_checkpoint,
    num_data_ranks,
)
from monarch_recipes.titan_config import (
    Degrees,
    TitanConfig,
    check_config,
    look_up_model,
    with_values,
)

__all__ = ["Setup", "StepResult", "Training"]

_NAMES = {
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
_TITANS = ("time_metrics/", "memory/", "validation_metrics/")  # of these, only the ones above


@dataclass(frozen=True)
class Setup:
    """What a rank found when it got ready."""

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


@dataclass(frozen=True)
class StepResult:
    """One step. `values` is empty where TorchTitan did not measure: see `metrics.log_freq`."""

    rank: int
    step: int  # counted from 1
    values: Mapping[str, float]
    saved: Path | None
    is_last: bool
    generation: int = 0  # of the workspace whose code ran


class Training:
    """Expects the environment that torchrun gives: RANK, WORLD_SIZE, LOCAL_RANK and the others."""

    def __init__(self, config: TitanConfig) -> None:
        started = time.perf_counter()
        self.config = config = _with_paths_here(config)
        self.world_size = int(os.environ["WORLD_SIZE"])
        self.rank = int(os.environ["RANK"])
        self.degrees = check_config(config, self.world_size)
        _check_here(config, self.degrees)
        self._exits = contextlib.ExitStack()
        self._notes: list[str] = []
        self._values: dict[str, float] = {}
        folder = Path(config.job.dump_folder, config.checkpoint.folder)
        self._checkpoints = folder
        if dist.is_initialized():  # left by an actor that was not closed
            dist.destroy_process_group()
        _forget_flight_recorder()
        if device_type == "cpu":
            torch.set_num_threads(_fair_num_threads())
        self._exits.callback(_restore_process)
        self._exits.enter_context(_quiet_torchtitan())
        look_up_model(config)
        try:
            self.trainer = Trainer(config)
            processor = self.trainer.metrics_processor
            processor.logger = _Tee(processor.logger, self._take)
            self.resumed_from = self._load()
            self.configure(config)
            self._profilers = [
                self._exits.enter_context(
                    enter(
                        config.profiling,
                        global_step=self.trainer.step,
                        base_folder=config.job.dump_folder,
                    )
                )
                for enter in (maybe_enable_profiling, maybe_enable_memory_snapshot)
            ]
            self._batches = self._named(self.trainer.batch_generator(self.trainer.dataloader))
        except BaseException:
            self.close()
            raise
        self.first_step = self.trainer.step
        self._seconds = time.perf_counter() - started

    def setup(self) -> Setup:
        """What there is, and where it goes on."""
        parts = self.trainer.model_parts
        count = torch.tensor(sum(p.numel() for part in parts for p in part.parameters()))
        if self.degrees.pp > 1:
            count = count.to(self.trainer.device)
            dist.all_reduce(count, group=self.trainer.parallel_dims.get_mesh("pp").get_group())
        return Setup(
            rank=self.rank,
            first_step=self.first_step,
            num_steps=self.config.training.steps,
            num_parameters=int(count),
            layout=str(self.degrees),
            metrics_rank=get_metrics_rank(self.trainer.parallel_dims, self.config),
            device=str(self.trainer.device),
            seconds=self._seconds,
            resumed_from=self.resumed_from,
            notes=tuple(self._notes),
        )

    def step(self) -> StepResult:
        """Learn from one global batch; save and validate where it is time to."""
        trainer, config = self.trainer, self.config
        trainer.step += 1
        self._values = {}
        trainer.gc_handler.run(trainer.step)
        try:
            trainer.train_step(self._batches)
        except DataloaderExhaustedError:
            trainer.step -= 1
            return StepResult(self.rank, trainer.step, {}, None, is_last=True)
        is_last = trainer.step == config.training.steps
        checkpointer = trainer.checkpointer
        is_saved = checkpointer._should_save(trainer.step, is_last)
        if is_saved:
            self._make_room()
        checkpointer.save(trainer.step, last_step=is_last)
        if config.validation.enable and (
            is_last or trainer.validator.should_validate(trainer.step)
        ):
            self._validate()
        for profiler in self._profilers:
            if profiler:
                profiler.step()
        if trainer.step == self.first_step + 1:
            # The first step may have compiled, or waited for a rank that started late.
            timeout = timedelta(seconds=config.comm.train_timeout_seconds)
            set_pg_timeouts(timeout, trainer.parallel_dims)
        saved = self._path() if is_saved else None
        return StepResult(self.rank, trainer.step, self._values, saved, is_last)

    def validate(self) -> float:
        """The loss on the validation data; NaN where the config has none."""
        if not self.config.validation.enable:
            return math.nan
        self._values = {}
        self._validate()
        return self._values["validation_loss"]

    def _validate(self) -> None:
        self.trainer.validator.validate(self.trainer.model_parts, self.trainer.step)
        # Without a backward pass, FSDP leaves parameters gathered, and a checkpoint wants shards.
        for part in self.trainer.model_parts:
            for module in part.modules():
                if isinstance(module, FSDPModule):
                    module.reshard()

    def save(self) -> Path | None:
        """Write a checkpoint to go on from; None where the config has them disabled."""
        checkpointer = self.trainer.checkpointer
        if not checkpointer.enable or checkpointer.load_only:
            return None
        if not self._path().joinpath(".metadata").is_file():
            # TorchTitan saves between two intervals only at the end, and then the weights alone.
            as_configured = checkpointer.last_save_model_only, checkpointer.last_save_in_hf
            checkpointer.last_save_model_only = checkpointer.last_save_in_hf = False
            self._make_room()
            try:
                checkpointer.save(self.trainer.step, last_step=True)
            finally:
                checkpointer.last_save_model_only, checkpointer.last_save_in_hf = as_configured
        return self._path()

    def configure(self, config: TitanConfig) -> None:
        """Take over the keys that may change between two steps; see `titan_config`."""
        trainer = self.trainer
        # TorchTitan's parts hold the config that the trainer was made with, and look into it.
        for section, key in (
            ("optimizer", "lr"),
            ("optimizer", "weight_decay"),
            ("training", "max_norm"),
            ("metrics", "log_freq"),
            ("checkpoint", "interval"),
            ("validation", "freq"),
        ):
            setattr(getattr(self.config, section), key, getattr(getattr(config, section), key))
        if trainer.checkpointer.enable:
            trainer.checkpointer.interval = config.checkpoint.interval
        for optimizer, scheduler in zip(
            trainer.optimizers.optimizers, trainer.lr_schedulers.schedulers, strict=True
        ):
            scheduler.base_lrs = [config.optimizer.lr] * len(optimizer.param_groups)
            rates = [
                config.optimizer.lr * factor(scheduler.last_epoch)
                for factor in scheduler.lr_lambdas
            ]
            scheduler._last_lr = rates
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"], group["initial_lr"] = rate, config.optimizer.lr
                group["weight_decay"] = config.optimizer.weight_decay

    def close(self) -> None:
        """Leave the process as it was, ready for another training."""
        try:
            if hasattr(self, "trainer"):
                self.trainer.close()
        finally:
            self._exits.close()

    def _load(self) -> Path | None:
        """Go on from the newest whole checkpoint, or from where the config says."""
        config, checkpointer = self.config.checkpoint, self.trainer.checkpointer
        if not checkpointer.enable:
            return None
        found = find_checkpoint(self._checkpoints, config.load_step)
        if found is None:
            # Nothing of this run's; but there may be weights to begin with.
            return Path(config.initial_load_path) if checkpointer.load() else None
        self._notes += [f"passed over a checkpoint: {why}" for why in found.passed_over]
        state = checkpointer.states["model"].state_dict()
        check_model(found.path, found.metadata, state, is_whole=self.degrees.pp == 1)
        self._leave_out_data_of_other_degrees(found)
        checkpointer.load(step=found.step)
        return found.path

    def _leave_out_data_of_other_degrees(self, found: Found) -> None:
        saved, here = num_data_ranks(found.metadata), self.degrees.data
        checkpointer = self.trainer.checkpointer
        if saved in (0, here) or "dataloader" in checkpointer.exclude_from_loading:
            return
        checkpointer.exclude_from_loading = [*checkpointer.exclude_from_loading, "dataloader"]
        self._notes.append(
            f"the data begins again from its start: {found.path} was saved by {saved} "
            f"data-parallel ranks, here there are {here}, and TorchTitan cannot reshard data"
        )

    def _make_room(self) -> None:
        """A checkpoint that will be overwritten is none from now on: a kill may leave half of it.

        No rank writes before rank 0, which plans, has come after this.
        """
        if self.rank == 0:
            self._path().joinpath(".metadata").unlink(missing_ok=True)

    def _named(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The batches; what goes wrong with one says where."""
        while True:
            try:
                batch = next(batches)
            except (StopIteration, DataloaderExhaustedError):
                raise DataloaderExhaustedError from None
            except Exception as error:
                dataset = self.trainer.dataloader.dataset
                sample = getattr(dataset, "_sample_idx", "?")
                raise RuntimeError(
                    f"rank {self.rank}, step {self.trainer.step}: sample {sample} of its share "
                    f"of {self.config.training.dataset} raised {type(error).__name__}: {error}"
                ) from error
            yield batch

    def _path(self) -> Path:
        return self._checkpoints / f"step-{self.trainer.step}"

    def _take(self, metrics: Mapping[str, Any]) -> None:
        for theirs, value in metrics.items():
            ours = _NAMES.get(theirs)
            if ours is None:
                if theirs.startswith(_TITANS):
                    continue
                ours = theirs
            number = float(value)
            if ours == "tokens_per_second":
                number *= self.world_size  # theirs is a rank's
            if ours != "mfu_percent" or device_type != "cpu":
                self._values[ours] = number


class _Tee(BaseLogger):  # type: ignore[misc]
    """Every number that TorchTitan computes, on its way to TensorBoard or nowhere."""

    def __init__(self, inner: Any, take: Any) -> None:
        self.inner = inner
        self.take = take

    def log(self, metrics: dict[str, Any], step: int) -> None:
        self.take(metrics)
        self.inner.log(metrics, step)

    def close(self) -> None:
        self.inner.close()


def _with_paths_here(config: TitanConfig) -> TitanConfig:
    """With relative paths that lie in this host's copy of the workspace, where they do."""

    def here(path: str | None) -> str | None:
        copy = Path(os.environ.get("WORKSPACE_DIR", ""), path or "")
        return path if path is None or Path(path).exists() or not copy.exists() else str(copy)

    return with_values(
        config,
        model={"hf_assets_path": here(config.model.hf_assets_path)},
        training={"dataset_path": here(config.training.dataset_path)},
        validation={"dataset_path": here(config.validation.dataset_path)},
    )


def _check_here(config: TitanConfig, degrees: Degrees) -> None:
    """What this machine would only find out later, and say less clearly."""
    if device_type == "cpu":
        if degrees.cp > 1:
            raise ConfigError(
                "needs GPUs: attention on a CPU cannot be split by sequence. Set it to 1",
                key="parallelism.context_parallel_degree",
            )
        if config.profiling.enable_profiling or config.profiling.enable_memory_snapshot:
            raise ConfigError(
                "needs a GPU, as TorchTitan's profiler does: leave [profiling] disabled",
                key="profiling.enable_profiling",
            )
    tokenizer = Path(config.model.hf_assets_path)
    names = ("tokenizer.json", "vocab.json", "vocab.txt")
    if not any((tokenizer / name).is_file() for name in names):
        raise ConfigError(
            f"= {str(tokenizer)!r}: there is no tokenizer there (none of "
            f"{', '.join(names)}). `monarch recipe prepare titan-tiny` makes one to try with",
            key="model.hf_assets_path",
        )
    for section in ("training", "validation") if config.validation.enable else ("training",):
        path = getattr(config, section).dataset_path
        if path is not None and not Path(path).exists():
            raise ConfigError(
                f"= {path!r} does not exist on this machine",
                key=f"{section}.dataset_path",
            )


def _fair_num_threads() -> int:
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(1, len(os.sched_getaffinity(0)) // here)


def _forget_flight_recorder() -> None:
    """TorchTitan warns of the variables that its last run in this process has set."""
    for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DUMP_ON_TIMEOUT"):
        os.environ.pop(name, None)
    os.environ.pop("TORCH_NCCL_ASYNC_ERROR_HANDLING", None)


# What torch and TorchTitan say of every training here, and nobody need act on.
_IDLE = (
    "model.safetensors.index.json not found",  # which only exports in that format miss
    "Pipeline Parallel loss is not visible",  # it arrives as a metric
    "is being re-looped",  # the data, as ever
)
_KNOWN = (
    "DTensor .* may not have complete support on cpu",
    "'set_vital' is deprecated",
    "In CPU autocast, but the target dtype is not supported",
    "Set timeout is now only supported",
    "Detected an existing checkpoint in",
)


@contextlib.contextmanager
def _quiet_torchtitan() -> Iterator[None]:
    """TorchTitan logs to the root logger what comes to the client as data; other warnings stay."""

    def is_worth_it(record: logging.LogRecord) -> bool:
        if "torchtitan" not in record.pathname:
            return True
        is_idle = any(text in record.getMessage() for text in _IDLE)
        return record.levelno >= logging.WARNING and not is_idle

    root = logging.getLogger()
    root.addFilter(is_worth_it)  # of what is logged to the root itself, not to other loggers
    try:
        with warnings.catch_warnings():
            for message in _KNOWN:
                warnings.filterwarnings("ignore", message, UserWarning)
            yield
    finally:
        root.removeFilter(is_worth_it)


def _restore_process() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
    torch.use_deterministic_algorithms(False)
    gc.enable()  # TorchTitan collects by the step, and disables it for good.
