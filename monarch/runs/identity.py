"""Whether a run that was left is the one that the same command goes on with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from monarch.config_file import ConfigError, changed_keys, live_keys, load_config
from monarch.runs.folder import RunFolder, runs_in

__all__ = ["config_of", "find_unfinished", "what_changed"]


def find_unfinished(base: Path, name: str, command: Sequence[str]) -> RunFolder | None:
    """The last run of this very command, if it was left before its end: killed, stopped, failed.

    A failed run that has no checkpoint has nothing to go on with, unless nothing was wrong with
    it, and what it ran on was lost.
    """
    for run in reversed(runs_in(base)):
        if not run.name.startswith(f"{name}-") or run.command != list(command):
            continue
        status = run.status
        if status == "running":
            continue
        goes_on = status == "failed" and (run.has_checkpoint or run.is_lost)
        if goes_on or status in ("killed", "stopped"):
            return run
        return None
    return None


def config_of(run: RunFolder, config_class: type[Any]) -> Any | None:
    """The config that a run was left with; ``None`` if the recipe has another by now."""
    try:
        return load_config(config_class, run.config_path).config
    except ConfigError:
        return None


def what_changed(run: RunFolder, config: Any) -> list[str]:
    """The keys that differ from the run's, and may not change in the middle of one."""
    before = config_of(run, type(config))
    if before is None:
        return ["the recipe's keys"]
    free = set(live_keys(type(config)))
    return [key for key in changed_keys(before, config) if key not in free]
