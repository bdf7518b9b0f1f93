"""Notebooks: what procs print appears in the cell that runs, and before its end."""

from __future__ import annotations

import contextvars
import sys
from collections.abc import Callable
from typing import Any

from monarch.runtime.output.log_printer import LogPrinter

__all__ = ["follow_cells"]


def follow_cells(printer: LogPrinter, flush: Callable[[], object]) -> Callable[[], None]:
    """Print into the running cell, and call ``flush`` at the end of each; returns what ends it.

    Where there is no notebook, nothing is done. Nothing is imported either: a program that has not
    imported IPython does not run in it.
    """
    shell = _shell()
    if shell is None:
        return lambda: None

    def enter(*args: object) -> None:
        # The kernel knows a cell by the context that it runs in; a thread has none of its own.
        printer.context = contextvars.copy_context()

    def leave(*args: object) -> None:
        flush()

    def end() -> None:
        shell.events.unregister("pre_run_cell", enter)
        shell.events.unregister("post_run_cell", leave)

    enter()
    shell.events.register("pre_run_cell", enter)
    shell.events.register("post_run_cell", leave)
    return end


def _shell() -> Any:
    module = sys.modules.get("IPython")
    get_ipython = getattr(module, "get_ipython", None)
    return get_ipython() if callable(get_ipython) else None
