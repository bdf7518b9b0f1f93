"""A recipe's parts that a module of the user's own may replace."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar

from monarch.config_file import ConfigError

F = TypeVar("F", bound=Callable[..., Any])


def part(task: str | None, default: F) -> F:
    """What the module `task` has under the name of `default`, where it has it; else `default`.

    Call it at each use: code may have changed since. Raises ConfigError where there is no such
    module.
    """
    return default if task is None else getattr(_module(task), default.__name__, default)


def own_part(task: str | None, name: str) -> Callable[..., Any] | None:
    """The same for what only a task has, if it has it."""
    return None if task is None else getattr(_module(task), name, None)


def _module(task: str) -> ModuleType:
    try:
        return importlib.import_module(task)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{task}.".startswith(f"{error.name}."):
            raise
        raise ConfigError(f"names a module that cannot be found: {task}", key="task") from None
