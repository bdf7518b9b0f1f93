"""Imports, in a template, the modules that procs were seen importing.

A proc that is forked from it must behave like a proc that imports them itself. So a module that
starts threads or opens a GPU at its import is refused, and nothing is imported from folders that
hold the user's code.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence

from monarch.runtime.entry.template_cuda import is_spoiled
from monarch.runtime.procs.seen_imports import drop_hidden, in_installed

# Their thread pools (OpenBLAS, OpenMP) give way at a fork, and come again in the child.
_POOLS_SURVIVE_FORKS = ("numpy", "scipy", "sklearn", "torch")

_learned: list[str] = []


def import_learned(modules: Sequence[str]) -> dict[str, str]:
    """Import ``modules``; return an error for each module that failed or must not be imported.

    After an error, this process must not be a template: part of a module may be loaded.
    """
    errors: dict[str, str] = {}
    path = sys.path[:]
    sys.path[:] = [folder for folder in path if f"{folder}{os.sep}".startswith(_PYTHONS)]
    wanted = set(modules)
    try:
        pools = [name for name in _POOLS_SURVIVE_FORKS if name in wanted]
        for name in dict.fromkeys((*pools, *modules)):
            _import(name, errors)
            if errors:
                break
    finally:
        sys.path[:] = path
    return errors


_PYTHONS = (sys.prefix + os.sep, sys.base_prefix + os.sep)


def _import(name: str, errors: dict[str, str]) -> None:
    top = name.partition(".")[0]
    num_threads = _num_threads()
    try:
        spec = importlib.util.find_spec(name)
        if spec is None or not in_installed(spec.origin):
            errors[name] = "it is not installed here"
            return
        importlib.import_module(name)
    except BaseException as error:
        errors[name] = f"{type(error).__name__}: {error}"
        return
    if _num_threads() > num_threads and top not in _POOLS_SURVIVE_FORKS:
        errors[name] = "it starts threads when it is imported"
    elif is_spoiled():
        errors[name] = "it opens a GPU when it is imported"
    _learned.append(name)


def _num_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def begin_as_fresh() -> None:
    """Make a forked proc behave as if it had imported the template's modules itself.

    Its paths must be set. Drops the modules that it would not have found on its paths, and seeds
    the random numbers of numpy and torch.
    """
    if _learned:
        drop_hidden(_learned)
    # Else all that are forked from one template draw the same numbers.
    numpy, torch = sys.modules.get("numpy.random"), sys.modules.get("torch.random")
    if numpy is not None:
        numpy.seed()
    if torch is not None:
        torch.default_generator.seed()
