"""The config for TorchTitan 0.3: the result of a config function, changed by TOML.

    module = "llama3"              # or a module of your own, with the function in it
    config = "llama3_debugmodel"

    [training]
    steps = 100

The keys are those of the object that the function returns, under TorchTitan's names. A config is
sent to the ranks as the function's name and the values of its keys: each rank calls the function in
its own code.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import logging
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from monarch.config_file import ConfigError
from monarch.config_file.keys import build, leaves

from .cpu import import_torchtitan
from .older_torch import IS_OLDER_TORCH
from .overlay import Key, Section, check_again, fields_for, lay_over, section_of
from .sections import (
    GONE,
    OwnFaultTolerance,
    check_at_least_1,
    check_validation_steps,
)

import_torchtitan()

# ruff: noqa: E402 - these can be imported on a CPU only now
from torchtitan.config import ConfigManager
from torchtitan.trainer import Trainer

MODULE, FUNCTION = "llama3", "llama3_debugmodel"
_LIVE = {"training.max_norm", "metrics.log_freq", "checkpoint.interval", "validator.freq"}
# Neither a file nor a flag can hold this value; only the config function sets it.
_OF_THE_FUNCTION = ("model_spec",)
_CHOSEN = "is gone: `module` and `config` name the function of TorchTitan 0.3 that says it"
_SAID = "is gone: in TorchTitan 0.3 the config function says it"
_AS_IN_TRAINING = "is gone: TorchTitan 0.3 validates with the training's"


class FunctionConfig:
    """A config of TorchTitan 0.3, whose keys depend on the config function that it names.

    The keys `module` and `config` name the function. Each function has a subclass with its keys.
    """

    CHOOSING_KEYS: ClassVar[Sequence[str]] = ("module", "config")
    KEYS_RENAMED: ClassVar[Mapping[str, str]] = {
        "job.dump_folder": "dump_folder",
        "model.hf_assets_path": "hf_assets_path",
        "training.dataset": "dataloader.dataset",
        "training.dataset_path": "dataloader.dataset_path",
        "validation.enable": "validator.enable",
        "validation.freq": "validator.freq",
        "validation.steps": "validator.steps",
        "validation.dataset": "validator.dataloader.dataset",
        "validation.dataset_path": "validator.dataloader.dataset_path",
        "profiling.enable_profiling": "profiler.enable_profiling",
        "profiling.save_traces_folder": "profiler.save_traces_folder",
        "profiling.profile_freq": "profiler.profile_freq",
        "profiling.enable_memory_snapshot": "profiler.enable_memory_snapshot",
        "profiling.save_memory_snapshot_folder": "profiler.save_memory_snapshot_folder",
    }
    KEYS_GONE: ClassVar[Mapping[str, str]] = {
        "model.name": _CHOSEN,
        "model.flavor": _CHOSEN,
        "experimental.custom_import": _CHOSEN,
        "job.custom_config_module": _CHOSEN,
        "activation_checkpoint.mode": _SAID,
        "optimizer.name": _SAID,
        "validation.local_batch_size": _AS_IN_TRAINING,
        "validation.seq_len": _AS_IN_TRAINING,
        **GONE,
    }
    MODEL: ClassVar[str]

    def __post_init__(self) -> None:
        config: Any = self
        keys = {"metrics": "log_freq", "checkpoint": "interval", "validator": "freq"}
        for section, key in keys.items():
            _at_key(config, section, lambda part, key=key: check_at_least_1(part, key))
        _at_key(config, "validator", check_validation_steps)
        self.trainer_config()

    @classmethod
    def chosen(cls, module: str = MODULE, config: str = FUNCTION) -> type[Any]:
        return config_class(module, config)

    def trainer_config(self) -> Any:
        """Return TorchTitan's own config with all values of this one.

        Raises ConfigError if TorchTitan's checks refuse a value.
        """
        config: Any = self
        trainer_config = call_function(config.module, config.config)
        lay_over(trainer_config, self)
        for key in ("lr", "weight_decay"):
            value = getattr(config.optimizer, key)
            for group in trainer_config.optimizer.param_groups if value is not None else ():
                group.optimizer_kwargs = {**group.optimizer_kwargs, key: value}
        check_again(trainer_config, [key for key, _ in leaves(self)], _OF_THE_FUNCTION)
        return trainer_config

    def __reduce__(self) -> tuple[Any, ...]:
        config: Any = self
        return config_of, (config.module, config.config, dict(leaves(self)))


def config_of(module: str, function: str, values: Mapping[str, Any]) -> Any:
    """Return the config for a config function, with these values by dotted key."""
    return build(config_class(module, function), "", values, {}, None)


def call_function(module: str, function: str) -> Any:
    """Call a config function, of TorchTitan or the user, and return its config after `fit`.

    Raises ConfigError if there is no such function, or it returns no config of TorchTitan.
    """
    flags = ["--module", module, "--config", function]
    try:
        trainer_config, _ = ConfigManager()._load_config(flags)
    except ImportError as error:
        _raise_from_within(module)
        raise ConfigError(
            f"= {module!r}: {error} It is looked for in the workspace, in the folder that the run "
            "is started in, and among what is installed",
            key="module",
        ) from None
    except ValueError as error:
        raise ConfigError(f"= {function!r}: {error}", key="config") from error
    if not isinstance(trainer_config, Trainer.Config) or trainer_config.model_spec is None:
        raise ConfigError(
            f"= {function!r}: what it returns is no config of a `Trainer` with a model",
            key="config",
        )
    if hasattr(trainer_config, "fault_tolerance"):
        raise ConfigError(
            f"= {function!r}: TorchTitan's experimental part in TorchFT is not driven here. The "
            "recipe fault_tolerant has replica groups",
            key="config",
        )
    fit(trainer_config)
    return trainer_config


def fit(trainer_config: Any) -> None:
    """Change a config of TorchTitan so that code can be edited during a run.

    Also make it fit an older torch, if that is installed.
    """
    # A captured graph would keep the old code. A run has its own record, so no structured log.
    trainer_config.training.disable_cuda_graphs = True
    trainer_config.debug.enable_structured_logging = False
    # An older torch cannot wrap its typed parameters.
    if IS_OLDER_TORCH and trainer_config.parallelism.spmd_backend == "spmd_types":
        trainer_config.parallelism.spmd_backend = "partial_dtensor"


def _raise_from_within(module: str) -> None:
    """If the module exists, raise the error of its import, which TorchTitan hides."""
    try:
        is_there = importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        is_there = False
    if is_there:
        importlib.import_module(module)


_classes: dict[Any, type[Any]] = {}


def config_class(module: str, function: str) -> type[Any]:
    """Return the class of configs for a config function. Its defaults are the function's values.

    The same class is returned again, unless the function returns other values by now.
    """
    trainer_config = call_function(module, function)
    section = section_of(trainer_config, _LIVE, _OF_THE_FUNCTION)
    groups = [group.optimizer_kwargs for group in trainer_config.optimizer.param_groups]
    rates = [
        Key(name, float | None, _common(groups, name), is_live=True)
        for name in ("lr", "weight_decay")
    ]
    section = section._replace(
        keys=tuple(
            _with_more(key, rates) if key.name == "optimizer" else key for key in section.keys
        )
    )
    spec = trainer_config.model_spec
    class_key = module, function, spec.name, spec.flavor, repr(section)
    if class_key not in _classes:
        new_class = dataclasses.make_dataclass(
            "TitanConfig",
            [
                ("module", str, module),
                ("config", str, function),
                *fields_for(section),
                (
                    "fault_tolerance",
                    OwnFaultTolerance,
                    dataclasses.field(default_factory=OwnFaultTolerance),
                ),
            ],
            bases=(FunctionConfig,),
            namespace={"MODEL": f"{spec.name} {spec.flavor}", "__module__": __name__},
        )
        new_class.__doc__ = "The keys of what a config function of TorchTitan returns."
        _classes[class_key] = new_class
    return _classes[class_key]


def _with_more(key: Key, more: Sequence[Key]) -> Key:
    section: Section = key.kind
    return key._replace(kind=section._replace(keys=(*section.keys, *more)))


def _common(groups: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """Return the value of ``name`` in all parameter groups; None if they differ or one has none."""
    values = {group.get(name) for group in groups}
    [value] = values if len(values) == 1 else [None]
    return None if value is None else float(value)


def _at_key(config: Any, section: str, check: Any) -> None:
    try:
        check(getattr(config, section))
    except ConfigError as error:
        raise ConfigError(str(error), key=f"{section}.{error.key}") from None


def _is_worth_it(record: logging.LogRecord) -> bool:
    """Return False for TorchTitan's warning about its own default, which comes with each config."""
    return "initial_load_model_only=True has no effect" not in record.getMessage()


logging.getLogger().addFilter(_is_worth_it)
TitanConfig = config_class(MODULE, FUNCTION)
