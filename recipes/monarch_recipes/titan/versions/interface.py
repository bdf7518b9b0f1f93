"""The interface that the recipe uses of each version of TorchTitan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, NamedTuple, Protocol

from torch import nn
from torch.optim import Optimizer


class VersionKeys(NamedTuple):
    """The dotted keys whose names differ between versions.

    A config may lack the keys of data: a data loader of one's own has other keys.
    """

    output: str
    tokenizer: str
    data: str  # the name of the data set
    data_path: str
    validation: str  # the section
    validation_path: str
    profiler: str  # the section


class Engine(Protocol):
    """A training on one rank, which the recipe drives step by step.

    This should fit TorchTitan 0.4, as far as that is announced. Its `TrainingEngine` has the
    trainer's parts, and leaves the loop to others: `train_step`, `batches`, `validate` and
    `profilers` are one call each here, and everything else is an attribute. Version 0.4 could not
    be installed when this was written, so nothing was run with it; its budgets of tokens instead of
    batch sizes (`num_tokens_per_...`), its data loaders and its `checkpointer` section need an
    adapter of their own.
    """

    step: int  # the number of steps made
    tokens_seen: int
    trainer: Any  # TorchTitan's trainer, for `roots`

    @property
    def device(self) -> Any: ...
    @property
    def model_parts(self) -> list[nn.Module]: ...
    @property
    def optimizers(self) -> list[Optimizer]: ...
    @property
    def schedules(self) -> Any:
        """The learning rate schedules, with `state_dict` and `load_state_dict`."""

    @property
    def checkpointer(self) -> Any: ...
    @property
    def dataloader(self) -> Any: ...
    @property
    def parallel_dims(self) -> Any: ...
    @property
    def num_micro_batches(self) -> int: ...
    @property
    def metrics_rank(self) -> int:
        """The rank that knows the loss."""

    @property
    def metrics_logger(self) -> Any: ...
    @metrics_logger.setter
    def metrics_logger(self, logger: Any) -> None: ...

    def batches(self) -> Iterator[Any]:
        """Return an iterator over batches, from the loader's position.

        At the end of the data it raises `DataEnded`, or just ends.
        """

    def train_step(self, batches: Iterator[Any]) -> None:
        """Make one optimizer step, number `step`.

        Metrics go to the logger. May raise `DataEnded`.
        """

    def should_validate(self) -> bool:
        """Return whether the model should be validated after this step."""

    def validate(self) -> None: ...

    def profilers(self) -> list[AbstractContextManager[Any]]:
        """Return contexts to keep around all steps.

        Each yields an object with `step()`, or None.
        """

    def set_timeouts(self, timeout: timedelta) -> None:
        """Set the timeout of all process groups from now on."""

    def configure(self, config: Any) -> None:
        """Apply TorchTitan's live keys of a config."""

    def roots(self) -> dict[str, object]:
        """Return the objects that contain the state of the training, by name."""

    def close(self) -> None: ...


class TitanVersion(Protocol):
    """An adapter for one version of TorchTitan.

    Every ``config`` is an instance of `config_class`.
    """

    config_class: type[Any]
    keys: VersionKeys
    Logger: type[Any]  # TorchTitan's base class of metrics loggers
    DataEnded: type[Exception]
    device_type: str

    def from_flags(self, flags: Sequence[str]) -> Any:
        """Return the config for TorchTitan's command-line flags. Raises ConfigError."""

    def model_text(self, config: Any) -> str:
        """Return the name and flavor of the model, for messages."""

    def look_up_model(self, config: Any) -> Any:
        """Import the model's module, and return TorchTitan's spec of the model.

        Raises ConfigError.
        """

    def check(self, config: Any) -> None:
        """Raise ConfigError for settings that only this version refuses."""

    def make(self, config: Any) -> Engine:
        """Make a training with this config, in the process group that the environment describes."""

    def make_without_storage(self, config: Any) -> Engine:
        """Make the same on torch's fake backend, without data and tokenizer, for a plan.

        Call it in a process that ends afterwards.
        """

    def sizes(self, config: Any) -> Any:
        """Return the sizes of the model, as an object to compare."""

    def build_model(self, config: Any) -> nn.Module:
        """Build the whole model as a start does, on the device of the current torch context."""

    def build_optimizer(self, config: Any, model: nn.Module, parallel_dims: Any) -> Optimizer: ...

    def optimizer_names(self, config: Any) -> set[str]: ...

    def start_functions(self, config: Any) -> Iterator[Callable[..., Any]]:
        """Yield the functions that are called only while a trainer is made."""

    def prepared_files(self) -> Mapping[str, str]:
        """Return the files of `prepare` that a person may edit: source name to target name."""

    def relocated(self, config: Any) -> Any:
        """Return the config with values of older keys for paths moved to the present keys."""
