"""Functions that run only when a run begins: new code in them has no effect before that."""

from __future__ import annotations

import contextlib
import linecache
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any, TypeVar

from monarch_reload.kinds import definition_at, is_a, own_names
from monarch_reload.plan.start_helpers import StartHelpers
from monarch_reload.source.source import ModuleSource

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__reload_at_start__"


def at_start(function: F) -> F:
    """Mark a function that is called once, when a run begins, such as a function that builds the
    model.

    After an edit of it, a push says that the edit counts from the next start. Returns the function.
    """
    with contextlib.suppress(AttributeError, TypeError):
        setattr(function, _MARK, True)
    return function


def counts_from_next_start(function: FunctionType) -> bool:
    """Return whether an edit of a function shows only at the next start of the run.

    True for functions that are marked with ``at_start``, and for ``__init__`` of torch modules, as
    the run has made its modules already.
    """
    if getattr(function, _MARK, False) is True:
        return True
    path, _, name = function.__qualname__.rpartition(".")
    if name != "__init__" or "<locals>" in path:
        return False
    owner = definition_at(function.__module__, path)
    return isinstance(owner, type) and makes_torch_modules(owner)


def makes_torch_modules(cls: type) -> bool:
    """Return whether a class is a subclass of `torch.nn.Module`."""
    torch: Any = sys.modules.get("torch.nn")
    return torch is not None and issubclass(cls, torch.Module)


def helpers_of_the_start(
    sources: Mapping[str, ModuleSource],
    functions: Collection[tuple[str, str]],
    values: Collection[tuple[str, str]],
) -> Iterator[str]:
    """Yield the qualified names of helpers of the start: those of ``functions`` and ``values`` that
    only code at the start of a run uses.

    ``functions`` and ``values`` are (module, name); ``sources`` are the new sources of the
    workspace's modules. Yields nothing if none of these modules has a function marked with
    ``at_start``.
    """

    if not any(map(_has_marked, sources)):
        return

    def counts(module: str, name: str) -> bool:
        value = definition_at(module, name)
        return type(value) is FunctionType and counts_from_next_start(value)

    helpers = StartHelpers(sources, counts)
    for module, name in functions:
        if helpers.is_helper(module, name) and not _is_part(name, sources):
            yield f"{module}.{name}"
    for module, name in values:
        if helpers.is_setting(module, name) and not _is_part(name, sources):
            yield f"{module}.{name}"


def _has_marked(module: str) -> bool:
    """Return whether a loaded module defines a function or method that counts only from the next
    start."""
    for thing in list(own_names(sys.modules.get(module)).values()):
        parts = list(vars(thing).values()) if is_a(thing, type) else [thing]
        for part in parts:
            if type(part) is FunctionType and counts_from_next_start(part):
                return True
    return False


def _is_part(name: str, ours: Collection[str]) -> bool:
    """Return whether a module outside the workspace may use a workspace function of this name. Only
    modules that themselves use ``at_start`` count, as recipes do.

    Such a module may use the function if it has the name, or mentions it in quotes, as recipes do
    to look a function up. ``ours`` are the names of the workspace's modules.
    """
    for module_name, module in list(sys.modules.items()):
        is_marking = type(module) is ModuleType and vars(module).get("at_start") is at_start
        if not is_marking or module_name in ours or module.__name__ == __name__:
            continue
        text = "".join(linecache.getlines(str(vars(module).get("__file__"))))
        if name in vars(module) or re.search(rf"""["']{re.escape(name)}["']""", text):
            return True
    return False
