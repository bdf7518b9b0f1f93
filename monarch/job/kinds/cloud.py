"""The common part of cloud jobs: their machines' command, and calls of the clouds' libraries."""

from __future__ import annotations

import importlib
import shlex
from collections.abc import Callable
from typing import Any

from monarch.errors import JobError
from monarch.python_start import module_arguments


def command_of_host(python_exe: str, address: str = "") -> str:
    """Return the shell command that runs a host agent.

    ``address`` is a shell expression for the machine's own address, if its name does not resolve to
    it.
    """
    variable = f"MONARCH_POD_IP={address} " if address else ""
    task = module_arguments("monarch.runtime.entry.pod_task", "--machine")
    return f"{variable}{shlex.quote(python_exe)} -u {shlex.join(task)}"


def import_library(module: str, kind: str, name: str) -> Any:
    """Import and return a cloud's library. Raises ``JobError`` if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise JobError(
            f"a job of kind {kind} needs {name}: pip install 'monarch-loop[{kind}]'"
        ) from None


def call_library(order: Callable[[], Any], problem: str) -> Any:
    """Call ``order``, which uses a cloud's library, and return its result.

    Any error becomes a ``JobError`` whose text begins with ``problem``.
    """
    try:
        return order()
    except Exception as error:
        raise JobError(f"{problem}: {error or type(error).__name__}") from error
