"""What a prepare found and what a commit did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

Action = Literal["patch", "rerun", "respawn", "unloaded"]


@dataclass(frozen=True)
class Verdict:
    """What becomes of one module.

    patch: functions and classes change in place. rerun: top-level statements run too.
    respawn: something in it needs a new process. unloaded: nothing to do in this one.
    """

    module: str
    path: str
    action: Action
    reason: str
    classes: tuple[str, ...] = ()


@dataclass
class ReloadReport:
    """Names are qualified: `package.module.Class.method`; `reran` are `module:line statement`."""

    modules: list[str] = field(default_factory=list)
    functions: list[str] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    reran: list[str] = field(default_factory=list)
    seconds: float = 0.0
    _undo: Callable[[], None] | None = field(default=None, repr=False, compare=False)

    def undo(self) -> None:
        """Put the old code back, because another rank of the transaction failed.

        Only the latest reload can be undone, once, and in the process that made it.
        """
        if self._undo is None:
            raise RuntimeError("nothing to undo: undone before, or made in another process")
        undo, self._undo = self._undo, None
        undo()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_undo": None}
