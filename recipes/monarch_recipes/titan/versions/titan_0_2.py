"""The adapter for TorchTitan 0.2.2: `JobConfig`, a registry of `TrainSpec`s, one `Trainer`."""

from __future__ import annotations

import copy
import dataclasses
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

from torch import nn
from torch.optim import Optimizer

from monarch.config_file import ConfigError, with_keys

from .config_0_2 import TitanConfig
from .cpu import import_torchtitan, take_storage_away
from .engine import Engine
from .interface import VersionKeys, parsed, python_functions

import_torchtitan()

# ruff: noqa: E402 - these can be imported on a CPU only now
from torchtitan.components.dataloader import DataloaderExhaustedError
from torchtitan.components.metrics import BaseLogger, _get_metrics_rank
from torchtitan.config import ConfigManager
from torchtitan.distributed.utils import set_pg_timeouts
from torchtitan.hf_datasets.text_datasets import DATASETS
from torchtitan.protocols import train_spec
from torchtitan.tools.profiling import maybe_enable_memory_snapshot, maybe_enable_profiling
from torchtitan.tools.utils import device_type
from torchtitan.train import Trainer


class Titan02Engine(Engine):
    """A trainer of TorchTitan 0.2.2, whose parts share the config that it was made with."""

    @property
    def metrics_rank(self) -> int:
        return int(_get_metrics_rank(self.parallel_dims, self.trainer.job_config))

    def profilers(self) -> list[AbstractContextManager[Any]]:
        config = self.trainer.job_config
        return [
            enter(
                config.profiling,
                global_step=self.trainer.step,
                base_folder=config.job.dump_folder,
            )
            for enter in (maybe_enable_profiling, maybe_enable_memory_snapshot)
        ]

    def set_timeouts(self, timeout: timedelta) -> None:
        set_pg_timeouts(timeout, self.parallel_dims)

    def configure(self, config: Any) -> None:
        job_config = self.trainer.job_config
        job_config.training.max_norm = config.training.max_norm
        job_config.metrics.log_freq = config.metrics.log_freq
        job_config.validation.freq = config.validation.freq
        super().configure(config)


class Titan02:
    """The adapter for TorchTitan 0.2; see `interface.TitanVersion`."""

    config_class: type[Any] = TitanConfig
    keys = VersionKeys(
        output="job.dump_folder",
        tokenizer="model.hf_assets_path",
        data="training.dataset",
        data_path="training.dataset_path",
        validation="validation",
        validation_path="validation.dataset_path",
        profiler="profiling",
    )
    Logger: type[Any] = BaseLogger
    DataEnded: type[Exception] = DataloaderExhaustedError
    device_type: str = device_type

    def from_flags(self, flags: Sequence[str]) -> Any:
        """Return the config for these flags, which may include ``--job.config_file``."""
        config = parsed(ConfigManager(TitanConfig).parse_args, flags)
        config.job.config_file = None  # The file has been read.
        return config

    def model_text(self, config: Any) -> str:
        return f"{config.model.name} {config.model.flavor}"

    def look_up_model(self, config: Any) -> Any:
        """Import the config's module, and return the `TrainSpec` that the config names."""
        module = config.experimental.custom_import
        if module:
            try:
                importlib.import_module(module)
            except ModuleNotFoundError as error:
                if error.name not in (module, module.partition(".")[0]):
                    raise
                raise ConfigError(
                    f"= {module!r}: there is no such module. It is looked for in the workspace, in "
                    "the folder that the run is started in, and among what is installed",
                    key="experimental.custom_import",
                ) from None
        name, flavor = config.model.name, config.model.flavor
        try:
            spec = train_spec.get_train_spec(name)
        except ValueError as error:
            raise ConfigError(f"= {name!r}: {error}", key="model.name") from None
        if flavor not in spec.model_args:
            raise ConfigError(
                f"= {flavor!r} is none of {name}'s: {', '.join(spec.model_args)}",
                key="model.flavor",
            )
        return spec

    def check(self, config: Any) -> None:
        if config.job.config_file is not None:
            raise ConfigError(
                f"= {config.job.config_file!r} would not be read: give the file with "
                f"--config {config.job.config_file}",
                key="job.config_file",
            )
        if config.fault_tolerance.enable:
            raise ConfigError(
                "would be ignored: TorchTitan's Trainer has no part in TorchFT. The recipe "
                "fault_tolerant has replica groups; here fault_tolerance.max_restarts is what "
                "counts",
                key="fault_tolerance.enable",
            )

    def make(self, config: Any) -> Titan02Engine:
        self.look_up_model(config)
        return Titan02Engine(Trainer(config))

    def make_without_storage(self, config: Any) -> Titan02Engine:
        spec = self.look_up_model(config)
        register_model(
            config.model.name,
            dataclasses.replace(spec, build_tokenizer_fn=None, build_dataloader_fn=None),
        )
        config = with_keys(
            config,
            {
                "comm.mode": "fake_backend",
                "checkpoint.enable": False,
                "validation.enable": False,
                "metrics.enable_tensorboard": False,
                "metrics.enable_wandb": False,
                # The fused optimizer refuses tensors without storage; its state is the same.
                "optimizer.implementation": "for-loop",
            },
        )
        take_storage_away(spec.model_cls)
        return Titan02Engine(Trainer(config))

    def sizes(self, config: Any) -> Any:
        sizes = copy.deepcopy(self.look_up_model(config).model_args[config.model.flavor])
        sizes.update_from_config(config)
        return sizes

    def build_model(self, config: Any) -> nn.Module:
        model: nn.Module = self.look_up_model(config).model_cls(self.sizes(config))
        return model

    def build_optimizer(self, config: Any, model: nn.Module, parallel_dims: Any) -> Optimizer:
        # Fused optimizers need tensors with storage.
        section = with_keys(config, {"optimizer.implementation": "for-loop"}).optimizer
        build = self.look_up_model(config).build_optimizers_fn
        optimizer: Optimizer
        [optimizer] = build([model], section, parallel_dims).optimizers
        return optimizer

    def optimizer_names(self, config: Any) -> set[str]:
        return {config.optimizer.name}

    def start_functions(self, config: Any) -> Iterator[Callable[..., Any]]:
        spec = self.look_up_model(config)
        functions = [
            spec.parallelize_fn,
            spec.pipelining_fn,
            spec.build_optimizers_fn,
            spec.build_lr_schedulers_fn,
            spec.build_dataloader_fn,
            spec.build_tokenizer_fn,
            spec.build_loss_fn,
            spec.build_validator_fn,
            spec.build_metrics_processor_fn,
            spec.model_cls.init_weights,
        ]
        for name in (config.training.dataset, config.validation.dataset):
            if name in DATASETS:
                functions.append(DATASETS[name].loader)
        return python_functions(functions)

    def prepared_files(self) -> Mapping[str, str]:
        return {
            "titan_tiny.toml": "titan.toml",
            "tiny_llama.py": "tiny_llama.py",
            "titan_monarch.toml": "monarch.toml",
        }

    def relocated(self, config: Any) -> Any:
        if config.model.tokenizer_path is not None:  # TorchTitan's older name for it
            return with_keys(config, {"model.hf_assets_path": config.model.tokenizer_path})
        return config


def register_model(name: str, spec: Any) -> None:
    """Register a model under a name for `model.name`. A reloaded module may register it again."""
    train_spec._extra_train_specs[name] = spec


ADAPTER = Titan02()
