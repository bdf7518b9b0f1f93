"""The adapter of a version of TorchTitan, as the recipe uses it."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from types import FunctionType
from typing import Any, NamedTuple, Protocol

from torch import nn
from torch.optim import Optimizer

from monarch.config_file import ConfigError

from .engine import Engine


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
        """Return the config for TorchTitan's command-line flags.

        Raises ConfigError for flags at which TorchTitan's command line would end the program.
        """

    def model_text(self, config: Any) -> str:
        """Return the name and flavor of the model, for messages."""

    def look_up_model(self, config: Any) -> Any:
        """Import the model's module, and return TorchTitan's spec of the model.

        Raises ConfigError if either cannot be found.
        """

    def check(self, config: Any) -> None:
        """Raise ConfigError for settings that only this version refuses."""

    def make(self, config: Any) -> Engine:
        """Make a training with this config, in the process group that the environment describes."""

    def make_without_storage(self, config: Any) -> Engine:
        """Make the same as `make`, but on torch's fake backend, without storage, for a plan.

        It has neither data nor a tokenizer. Call it in a process that ends afterwards.
        """

    def sizes(self, config: Any) -> Any:
        """Return the sizes of the model, as an object that can be compared for equality."""

    def build_model(self, config: Any) -> nn.Module:
        """Build the whole model as a start does, on the device of the current torch context."""

    def build_optimizer(self, config: Any, model: nn.Module, parallel_dims: Any) -> Optimizer: ...

    def optimizer_names(self, config: Any) -> set[str]: ...

    def start_functions(self, config: Any) -> Iterator[Callable[..., Any]]:
        """Yield the functions that are called only while a trainer is made."""

    def prepared_files(self) -> Mapping[str, str]:
        """Return the files of `prepare` that a person may edit: source name to target name."""

    def relocated(self, config: Any) -> Any:
        """Return the config with TorchTitan's older keys for paths replaced by the present keys."""


def parsed(parse: Callable[[list[str]], Any], flags: Sequence[str]) -> Any:
    """Return the result of TorchTitan's parser of command-line flags.

    Raises ConfigError for flags at which TorchTitan's command line would end the program.
    """
    text = io.StringIO()
    try:
        with redirect_stderr(text), redirect_stdout(text):
            return parse(list(flags))
    except SystemExit:
        raise ConfigError(_plain(text.getvalue())) from None
    except (AssertionError, ImportError, OSError, ValueError) as error:
        raise ConfigError(f"TorchTitan refuses its config: {error}") from error


def _plain(text: str) -> str:
    """Return a text that tyro printed, without its frame and colours."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    lines = (line.strip("│╭╮╰╯─ ") for line in text.splitlines())
    return "\n".join(line for line in lines if line)


def python_functions(functions: Iterable[Any]) -> Iterator[Callable[..., Any]]:
    """Yield the functions that are written in Python; for a partial, the function inside it."""
    for function in functions:
        whole = getattr(function, "func", function)  # of a partial
        if isinstance(whole, FunctionType):
            yield whole
