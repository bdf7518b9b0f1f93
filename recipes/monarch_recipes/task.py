"""Finds the functions of a recipe that the user's own module, the task, replaces."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar

from monarch.config_file import ConfigError
from monarch_reload import ReloadReport

F = TypeVar("F", bound=Callable[..., Any])

_used: set[tuple[str, str]] = set()  # by module and name, in this process


def part(task: str | None, default: F) -> F:
    """Return the function of the task that has the name of `default`, or `default` if it has none.

    `task` is the name of a module, or None. Call this at each use, since the module's code may have
    changed. Raises ConfigError if there is no such module.
    """
    function: F = own_part(task, default.__name__) or default  # type: ignore[assignment]
    return function


def own_part(task: str | None, name: str) -> Callable[..., Any] | None:
    """Return the task's function `name`, or None if the task does not have it.

    Raises ConfigError if there is no module `task`.
    """
    if task is None:
        return None
    function: Callable[..., Any] | None = getattr(_module(task), name, None)
    if function is not None:
        _used.add((task, name))
    return function


def tell_of_lost_parts(task: str | None, change: ReloadReport) -> None:
    """Warn the author of an edit that removed a function of the task that the run has used.

    Without the warning nobody would notice: the recipe calls its own function instead.
    """
    lost = {
        (module, name)
        for module, name in _used
        if module == task and not hasattr(_module(module), name)
    }
    _used.difference_update(lost)
    for module, name in sorted(lost):
        change.warn(f"{module} has no {name} any more: the recipe goes on with its own, if any")


def _module(task: str) -> ModuleType:
    try:
        return importlib.import_module(task)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{task}.".startswith(f"{error.name}."):
            raise
        raise ConfigError(f"names a module that cannot be found: {task}", key="task") from None
