"""The adapter for TorchTitan 0.3: config functions, `ModelSpec`, `Trainer.Config`."""

from __future__ import annotations

import copy
import logging
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from torch import nn
from torch.optim import Optimizer

from monarch.config_file import ConfigError
from monarch.config_file.keys import build, leaves

from .config_0_3 import TitanConfig, call_function, config_class, fit
from .cpu import import_torchtitan, take_storage_away
from .engine import Engine
from .interface import VersionKeys, parsed, python_functions
from .older_torch import IS_OLDER_TORCH, WholeBatches, name_set_timeout

import_torchtitan()

# ruff: noqa: E402 - these can be imported on a CPU only now
from torchtitan.components.dataloader import DataloaderExhaustedError
from torchtitan.components.metrics import BaseLogger, _get_metrics_rank
from torchtitan.config import ConfigManager, Configurable
from torchtitan.distributed.utils import set_pg_timeouts
from torchtitan.hf_datasets.text_datasets import DATASETS
from torchtitan.models.common.attention import FlexAttention, ScaledDotProductAttention
from torchtitan.observability import structured_logger
from torchtitan.tools.utils import device_type

name_set_timeout()
# Hides the message that structured logging is off.
logging.getLogger(structured_logger.structured_logging.__name__).setLevel(logging.WARNING)
_NOT_FINITE = "Loss is not finite"


class Titan03Engine(Engine):
    """A trainer of TorchTitan 0.3, whose parts have copies of their sections of the config."""

    @property
    def metrics_rank(self) -> int:
        schedule = self.trainer.config.parallelism.pipeline_parallel_schedule
        return int(_get_metrics_rank(parallel_dims=self.parallel_dims, pp_schedule=schedule))

    def train_step(self, batches: Iterator[Any]) -> None:
        try:
            super().train_step(batches)
        except RuntimeError as error:
            if not str(error).startswith(_NOT_FINITE):
                raise
            # All ranks get this error. The client reports the loss, as with 0.2.
            number = float(str(error).partition("global_avg_loss=")[2].partition(")")[0])
            self.metrics_logger.log({"loss_metrics/global_avg_loss": number}, self.step)

    def profilers(self) -> list[AbstractContextManager[Any]]:
        config = self.trainer.config
        return [
            config.profiler.build(global_step=self.trainer.step, base_folder=config.dump_folder)
        ]

    def set_timeouts(self, timeout: timedelta) -> None:
        set_pg_timeouts(timeout, self.parallel_dims)

    def configure(self, config: Any) -> None:
        trainer = self.trainer
        trainer.config.training.max_norm = config.training.max_norm
        trainer.metrics_processor.config.log_freq = config.metrics.log_freq
        if hasattr(trainer, "validator"):
            trainer.validator.config.freq = config.validator.freq
        super().configure(config)


class Titan03:
    """The adapter for TorchTitan 0.3; see `interface.TitanVersion`."""

    config_class: type[Any] = TitanConfig
    keys = VersionKeys(
        output="dump_folder",
        tokenizer="hf_assets_path",
        data="dataloader.dataset",
        data_path="dataloader.dataset_path",
        validation="validator",
        validation_path="validator.dataloader.dataset_path",
        profiler="profiler",
    )
    Logger: type[Any] = BaseLogger
    DataEnded: type[Exception] = DataloaderExhaustedError
    device_type: str = device_type

    def from_flags(self, flags: Sequence[str]) -> Any:
        """Return the config for these flags, which must include ``--module`` and ``--config``."""
        parsed_config = parsed(ConfigManager().parse_args, flags)
        fit(parsed_config)
        our_class = config_class(_flag(flags, "--module"), _flag(flags, "--config"))
        values = {key: _value_at(parsed_config, key, value) for key, value in leaves(our_class())}
        return build(our_class, "", values, {}, None)

    def model_text(self, config: Any) -> str:
        return str(config.MODEL)

    def look_up_model(self, config: Any) -> Any:
        """Return the `ModelSpec` of the config function, with the code as it is now."""
        return call_function(config.module, config.config).model_spec

    def check(self, config: Any) -> None:
        """Do nothing: a config is checked when it is made."""

    def make(self, config: Any) -> Titan03Engine:
        trainer_config = config.trainer_config()
        _fit_to_device(trainer_config)
        structured_logger.init_structured_logger(
            source="training",
            output_dir=trainer_config.dump_folder,
            enable=trainer_config.debug.enable_structured_logging,
        )
        trainer = trainer_config.build()
        if IS_OLDER_TORCH and trainer.parallel_dims.pp_enabled:
            trainer.pp_schedule = schedule = WholeBatches(trainer.pp_schedule)
            if hasattr(trainer, "validator"):
                trainer.validator.pp_schedule = schedule
        return Titan03Engine(trainer)

    def make_without_storage(self, config: Any) -> Titan03Engine:
        trainer_config = config.trainer_config()
        _fit_to_device(trainer_config)
        trainer_config.comm.mode = "fake_backend"
        trainer_config.checkpoint.enable = trainer_config.validator.enable = False
        metrics = trainer_config.metrics
        metrics.enable_tensorboard = metrics.enable_wandb = False
        # The fused optimizer refuses tensors without storage; its state is the same.
        trainer_config.optimizer.implementation = "for-loop"
        trainer_config.tokenizer, trainer_config.dataloader = NothingConfig(), NothingConfig()
        take_storage_away(trainer_config.model_spec.model._owner)
        return Titan03Engine(trainer_config.build())

    def sizes(self, config: Any) -> Any:
        # The text contains functions with their addresses, which must not be compared.
        return re.sub(r" at 0x[0-9a-f]+", "", repr(self.look_up_model(config).model))

    def build_model(self, config: Any) -> nn.Module:
        trainer_config = config.trainer_config()
        _fit_to_device(trainer_config)
        sizes = trainer_config.model_spec.model
        sizes.update_from_config(config=trainer_config)
        model: nn.Module = sizes.build()
        return model

    def build_optimizer(self, config: Any, model: nn.Module, parallel_dims: Any) -> Optimizer:
        section = copy.deepcopy(config.trainer_config().optimizer)
        section.implementation = "for-loop"  # Fused optimizers need tensors with storage.
        optimizer: Optimizer = section.build(model_parts=[model]).optimizers[0]
        return optimizer

    def optimizer_names(self, config: Any) -> set[str]:
        groups = config.trainer_config().optimizer.param_groups
        return {group.optimizer_name for group in groups}

    def start_functions(self, config: Any) -> Iterator[Callable[..., Any]]:
        whole = config.trainer_config()
        spec = whole.model_spec
        functions = [
            _function_of(config.module, config.config),
            spec.parallelize_fn,
            spec.pipelining_fn,
            spec.post_optimizer_build_fn,
            *(
                getattr(type(part), "build", None)
                for part in (whole.lr_scheduler, whole.optimizer, whole.loss, whole.dataloader)
            ),
            getattr(spec.model._owner, "init_weights", None),
            getattr(spec.model._owner, "init_states", None),
        ]
        for loader in (whole.dataloader, whole.validator.dataloader):
            name = getattr(loader, "dataset", None)
            if name in DATASETS:
                functions.append(DATASETS[name].loader)
        return python_functions(functions)

    def prepared_files(self) -> Mapping[str, str]:
        return {
            "titan_tiny_0_3.toml": "titan.toml",
            "tiny_llama_0_3.py": "tiny_llama.py",
            "titan_monarch.toml": "monarch.toml",
        }

    def relocated(self, config: Any) -> Any:
        return config


@dataclass(kw_only=True, slots=True)
class NothingConfig(Configurable.Config):  # type: ignore[misc]
    """Replaces the config of a tokenizer or a data loader in a plan, which needs neither.

    Their files may be only on the hosts.
    """

    def build(self, **kwargs: Any) -> None:
        return None


def _fit_to_device(trainer_config: Any) -> None:
    """On a CPU, replace FlexAttention, which has no backward pass there, by causal attention.

    That also attends across documents.
    """
    if device_type != "cpu":
        return
    for _, _, parent, name in list(trainer_config.model_spec.model.traverse(FlexAttention.Config)):
        plain = ScaledDotProductAttention.Config()
        if isinstance(parent, list):
            parent[name] = plain
        else:
            setattr(parent, name, plain)


def _function_of(module: str, function: str) -> Any:
    """Return the config function itself, from its imported module; None if it is not imported."""
    for name in (f"{module}.config_registry", module):
        if name in sys.modules:
            return getattr(sys.modules[name], function, None)
    return None


def _flag(flags: Sequence[str], name: str) -> str:
    for flag, following in zip(flags, [*flags[1:], ""], strict=True):
        if flag == name:
            return following
        if flag.startswith(f"{name}="):
            return flag.partition("=")[2]
    raise ConfigError(f"{name} is needed: --module llama3 --config llama3_debugmodel")


def _value_at(trainer_config: Any, key: str, default: Any) -> Any:
    """Return the value at a dotted key of TorchTitan's config.

    Returns ``default`` if the key is missing there, as the recipe's own keys are.
    """
    value = trainer_config
    for name in key.split("."):
        value = getattr(value, name, NothingConfig)
    return default if value is NothingConfig else value


ADAPTER = Titan03()
