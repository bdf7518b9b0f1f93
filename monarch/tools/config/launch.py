"""What older programs say about a launch."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

from monarch_sync import Workspace

__all__ = ["NOT_SET", "Config"]

NOT_SET = "__NOT_SET__"


@dataclass
class Config:
    """A launch by a scheduler. Here only ``workspace`` has a use; jobs are in ``monarch.job``.

    ``workspace`` may be a folder, or ``None`` for none; both are deprecated and warn.
    """

    scheduler: str = NOT_SET
    scheduler_args: dict[str, Any] = field(default_factory=dict)
    workspace: Workspace | str | None = field(default_factory=Workspace.null)
    dryrun: bool = False
    appdef: Any = None

    def __post_init__(self) -> None:
        given = self.workspace
        if isinstance(given, Workspace):
            return
        self.workspace = Workspace(dirs={given: ""}) if given else Workspace.null()
        instead = f"Workspace(dirs={{{given!r}: ''}})" if given else "Workspace.null()"
        warnings.warn(
            f"workspace={given!r} is deprecated; use workspace={instead}", FutureWarning, 3
        )
