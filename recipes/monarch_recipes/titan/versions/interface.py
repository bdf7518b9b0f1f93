"""What the recipe asks of a version of TorchTitan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, NamedTuple, Protocol

from torch import nn
from torch.optim import Optimizer


class VersionKeys(NamedTuple):
    """The dotted keys whose names differ between versions. A config may lack those of data: a
    loader of one's own has other keys."""

    output: str
    tokenizer: str
    data: str  # the name of the data set
    data_path: str
    validation: str  # the section
    validation_path: str
    profiler: str  # the section


class Engine(Protocol):
    """A training on one rank, as far as the recipe drives it: it makes the steps, one by one.

    This is meant to fit what is announced for TorchTitan 0.4, whose `TrainingEngine` has the
    trainer's parts, and leaves the loop to others: `train_step`, `batches`, `validate` and
    `profilers` are one call each here, and what is read in between is an attribute. No 0.4 could be
    installed when this was written, so nothing of it was run; its budgets of tokens in place of
    batch sizes (`num_tokens_per_...`), its data loaders and its `checkpointer` section need an
    adapter of their own.
    """

    step: int  # steps made
    tokens_seen: int
    trainer: Any  # what TorchTitan has made, for `roots`

    @property
    def device(self) -> Any: ...
    @property
    def model_parts(self) -> list[nn.Module]: ...
    @property
    def optimizers(self) -> list[Optimizer]: ...
    @property
    def schedules(self) -> Any:
        """With `state_dict` and `load_state_dict`."""

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
        """From where the loader is. Ends with `DataEnded`, or as an iterator does."""

    def train_step(self, batches: Iterator[Any]) -> None:
        """One step of optimization, of which `step` is the number. What it measured goes to the
        logger of metrics. Lets `DataEnded` through."""

    def should_validate(self) -> bool:
        """Whether the data should be validated after this step."""

    def validate(self) -> None: ...

    def profilers(self) -> list[AbstractContextManager[Any]]:
        """Contexts around the steps; each gives what has a `step()`, or None."""

    def set_timeouts(self, timeout: timedelta) -> None:
        """Of all groups, from now on."""

    def configure(self, config: Any) -> None:
        """Take over the live keys, but the recipe's own."""

    def roots(self) -> dict[str, object]:
        """The objects that have the state of the training, by name."""

    def close(self) -> None: ...


class TitanVersion(Protocol):
    """An adapter. A ``config`` is always an instance of `config_class`."""

    config_class: type[Any]
    keys: VersionKeys
    Logger: type[Any]  # TorchTitan's base class of what takes metrics
    DataEnded: type[Exception]
    device_type: str

    def from_flags(self, flags: Sequence[str]) -> Any:
        """The config that TorchTitan makes of its own flags. Raises ConfigError."""

    def model_text(self, config: Any) -> str:
        """Name and flavor of the model, for a person."""

    def look_up_model(self, config: Any) -> Any:
        """What TorchTitan calls the model's spec; imports its module. Raises ConfigError."""

    def check(self, config: Any) -> None:
        """Raise ConfigError for what this version alone refuses."""

    def make(self, config: Any) -> Engine:
        """A training by that config, in the group that the environment tells of."""

    def make_without_storage(self, config: Any) -> Engine:
        """The same on torch's fake backend, with neither data nor tokenizer, in a process that
        ends with it."""

    def sizes(self, config: Any) -> Any:
        """The sizes of the model, which can be compared."""

    def build_model(self, config: Any) -> nn.Module:
        """The model as a start makes it, whole, and on the device of the context."""

    def build_optimizer(self, config: Any, model: nn.Module, parallel_dims: Any) -> Optimizer: ...

    def optimizer_names(self, config: Any) -> set[str]: ...

    def start_functions(self, config: Any) -> Iterator[Callable[..., Any]]:
        """Yields what is called while a trainer is made, and never again."""

    def prepared_files(self) -> Mapping[str, str]:
        """The files of `prepare` that a person may edit: from where, and under which name."""

    def relocated(self, config: Any) -> Any:
        """The config with older names for its paths taken over."""
