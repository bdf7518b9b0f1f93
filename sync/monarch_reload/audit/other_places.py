"""Old code to which no name of a followed module leads: in worker processes, and in files that were
run by their path."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from types import CodeType, FunctionType
from typing import Any

from monarch_reload.audit.findings import AuditFinding, counted
from monarch_reload.audit.history import worker_processes
from monarch_reload.audit.living import functions_of
from monarch_reload.kinds import own_names
from monarch_reload.report import listed
from monarch_reload.source.codes import inner_codes


def of_workers(started_before: Collection[Any]) -> Iterator[AuditFinding]:
    """Yield the worker processes that were started before code was replaced: they run the code that
    was loaded then."""
    alive = [process for process in worker_processes() if process in started_before]
    of_loaders = [process for process in alive if _loads_data(process)]
    others = [process for process in alive if process not in of_loaders]
    if of_loaders:
        subject = f"{counted(len(of_loaders), 'worker')} of a DataLoader"
        yield _with_old_code(of_loaders, subject, "until the loader makes new ones")
    if others:
        subject = f"{counted(len(others), 'process')} that this one has started"
        names = listed(process.name for process in others)
        yield _with_old_code(others, subject, f"until the end ({names})")


def _with_old_code(processes: Collection[Any], subject: str, until: str) -> AuditFinding:
    have = "has" if len(processes) == 1 else "have"
    text = f"{subject} {have} the code of before {until}"
    return AuditFinding("running", "multiprocessing", len(processes), text)


def _loads_data(process: Any) -> bool:
    """Return whether a process is a worker of torch's DataLoader, by its name in ``/proc``."""
    try:
        with open(f"/proc/{process.pid}/comm", encoding="ascii") as file:
            return file.read().strip() == "pt_data_worker"
    except (OSError, ValueError):
        return False


def of_files(
    files: Collection[str], followed: Collection[str], pause: Callable[[], None]
) -> Iterator[AuditFinding]:
    """Yield the functions of changed files that are in no followed module: the files were run by
    `runpy`, `exec`, or a loader that puts no module into `sys.modules`."""
    wanted = {file for file in files if file.endswith(".py")} - set(followed)
    if not wanted:
        return
    names = {os.path.basename(file) for file in wanted}
    old: defaultdict[str, int] = defaultdict(int)
    current_codes: dict[str, Collection[CodeType]] = {}
    functions = functions_of(
        lambda path: path in wanted or (path[:1] == "/" and os.path.basename(path) in names)
    )
    pause()
    for function in functions:
        path = os.path.realpath(function.__code__.co_filename)
        if path not in wanted or _is_of_module(function, path):
            continue  # that module is reported elsewhere
        if function.__code__ not in current_codes.setdefault(path, _codes_of(path)):
            old[path] += 1
    functions.clear()
    for path, count in old.items():
        run = "runs" if count == 1 else "run"
        text = (
            f"{counted(count, 'function')} of {path}, which was run by its path, {run} its old code"
        )
        yield AuditFinding("module", path, count, text)


def _is_of_module(function: FunctionType, path: str) -> bool:
    module = sys.modules.get(str(function.__module__))
    file = None if module is None else own_names(module).get("__file__")
    return isinstance(file, str) and os.path.realpath(file) == path


def _codes_of(path: str) -> Collection[CodeType]:
    try:
        with open(path, "rb") as file:
            return set(inner_codes(compile(file.read(), path, "exec", dont_inherit=True)))
    except (OSError, SyntaxError, ValueError):
        return ()
