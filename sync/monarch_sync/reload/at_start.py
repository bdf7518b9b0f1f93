"""Functions that only count when a run begins: new code in them changes nothing before that."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__reload_at_start__"


def at_start(function: F) -> F:
    """Mark a function that is called once, when a run begins, as what builds the model.

    A push of an edit says that it counts from the next start. Gives the function back.
    """
    with contextlib.suppress(AttributeError, TypeError):
        setattr(function, _MARK, True)
    return function


def counts_from_next_start(function: FunctionType) -> bool:
    """Whether it is marked so, or makes modules of torch, which are there by now."""
    if getattr(function, _MARK, False) is True:
        return True
    torch: Any = sys.modules.get("torch.nn")
    path, _, name = function.__qualname__.rpartition(".")
    if torch is None or name != "__init__" or "<locals>" in path:
        return False
    owner: Any = sys.modules.get(function.__module__)
    for part in path.split("."):
        owner = vars(owner).get(part) if hasattr(owner, "__dict__") else None
    return isinstance(owner, type) and issubclass(owner, torch.Module)
