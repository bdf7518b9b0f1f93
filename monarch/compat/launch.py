"""Descriptions of a launch by a scheduler, at ``monarch.tools.config`` and ``.utils``.

Environments have only a name: none is copied.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from monarch.python_start import ALONE
from monarch_sync import Workspace


class Environment:
    """An installation of the packages that the code needs."""


@dataclass(frozen=True)
class CondaEnvironment(Environment):
    """A conda environment; the active one if no prefix is given."""

    _conda_prefix: str | None = None

    def __init__(self, conda_prefix: str | None = None) -> None:
        object.__setattr__(self, "_conda_prefix", conda_prefix)

    @property
    def conda_prefix(self) -> str:
        """Return the environment's folder.

        Raises ``AssertionError``, as Monarch does, if none was given and none is active.
        """
        prefix = self._conda_prefix or os.environ.get("CONDA_PREFIX")
        if not prefix:
            raise AssertionError("no conda environment is active: activate one, or give its prefix")
        return prefix


ACTIVE_CONDA_ENV = CondaEnvironment()


_WORKER_BOOTSTRAP_SCRIPT = f"""{ALONE}
import os, socket
from monarch.actor import run_worker_loop_forever
from monarch.job import ranked_service_proc_id_from_env, service_proc_addr
port = os.environ.get("MONARCH_PORT", "26600")
address = f"tcp://{{socket.getfqdn()}}:{{port}}@tcp://0.0.0.0:{{port}}"
name = ranked_service_proc_id_from_env()
run_worker_loop_forever(address=service_proc_addr(address, name))
"""
"""What a pod of one's own runs, as ``python -u -c``: a worker, which needs MONARCH_JOB_SECRET."""

NOT_SET = "__NOT_SET__"


@dataclass
class Config:
    """A launch by a scheduler. Only ``workspace`` is used here; jobs are in ``monarch.job``.

    ``workspace`` may be a folder, or ``None``; both are deprecated and warn.
    """

    scheduler: str = NOT_SET
    scheduler_args: dict[str, Any] = field(default_factory=dict)
    workspace: Workspace | str | None = field(default_factory=Workspace.null)
    dryrun: bool = False
    appdef: Any = None

    def __post_init__(self) -> None:
        folder = self.workspace
        if isinstance(folder, Workspace):
            return
        self.workspace = Workspace(dirs={folder: ""}) if folder else Workspace.null()
        instead = f"Workspace(dirs={{{folder!r}: ''}})" if folder else "Workspace.null()"
        warnings.warn(
            f"workspace={folder!r} is deprecated; use workspace={instead}", FutureWarning, 3
        )


def MONARCH_HOME(*subdir_paths: str) -> Path:
    """Make and return a folder below ``~/.monarch``, or below the variable ``MONARCH_HOME``."""
    home = Path(os.environ.get("MONARCH_HOME") or Path.home() / ".monarch")
    folder = home.joinpath(*subdir_paths)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class conda:
    """Facts of the active conda environment."""

    @staticmethod
    def active_env_dir() -> str | None:
        """Return the folder of the active environment; ``None`` outside of one."""
        return os.environ.get("CONDA_PREFIX")

    @staticmethod
    def active_env_name() -> str | None:
        """Return the name of the active environment; ``None`` outside of one."""
        folder = conda.active_env_dir()
        return os.path.basename(folder) if folder else None
