"""Where else a run's metrics go: TensorBoard, Weights & Biases. Each is a library of its own,
imported where a config asks for it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from monarch.config_file import ConfigError


class Logger(Protocol):
    """Gets the numbers of each step."""

    def metrics(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Event files in ``tensorboard/`` of the run's folder, for ``tensorboard --logdir runs``."""

    def __init__(self, folder: Path) -> None:
        library = _library("tensorboard", "torch.utils.tensorboard")
        self._writer = library.SummaryWriter(str(folder / "tensorboard"))

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class WandB:
    """An offline run in ``wandb/`` of the run's folder; ``wandb sync`` uploads it."""

    def __init__(self, folder: Path) -> None:
        library = _library("wandb", "wandb")
        self._run = library.init(
            project="monarch", name=folder.name, dir=str(folder), mode="offline",
            reinit="create_new",  # The runs of a sweep go on side by side.
            settings=library.Settings(silent=True),  # It would write into the table of the run.
        )  # fmt: skip

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


LOGGERS: dict[str, Callable[[Path], Logger]] = {"tensorboard": TensorBoard, "wandb": WandB}


def check_loggers(names: Sequence[str]) -> None:
    """Raise ConfigError where there is no such logger."""
    for name in names:
        if name not in LOGGERS:
            raise ConfigError(f"knows no {name!r}; there are {', '.join(LOGGERS)}", key="log_to")


def open_loggers(names: Sequence[str], folder: Path) -> list[Logger]:
    """Raises ConfigError where a library is not installed."""
    return [LOGGERS[name](folder) for name in names]


def _library(name: str, module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ConfigError(
            f"asks for {name}, which is not installed: pip install 'monarch-loop[loggers]'",
            key="log_to",
        ) from None
