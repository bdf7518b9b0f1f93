"""A recipe's parts that a module of the user's own may replace."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, TypeVar

from monarch.config_file import ConfigError

__all__ = ["part"]

F = TypeVar("F", bound=Callable[..., Any])


def part(task: str | None, default: F) -> F:
    """What the module `task` has under the name of `default`, where it has it; else `default`.

    Call it at each use: code may have changed since. Raises ConfigError where there is no such
    module.
    """
    if task is None:
        return default
    try:
        module = importlib.import_module(task)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{task}.".startswith(f"{error.name}."):
            raise
        raise ConfigError(f"names a module that cannot be found: {task}", key="task") from None
    found: F = getattr(module, default.__name__, default)
    return found
