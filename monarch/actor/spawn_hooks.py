"""Hooks that run at every spawn: listeners, and fake actors for tests.

A new proc gets the fakes that its spawner has, so actors that it spawns are replaced too.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

listeners: list[Callable[[Any], None]] = []
"""Called with each mesh of procs that this process spawns."""

spawned: weakref.WeakSet[Any] = weakref.WeakSet()
"""The meshes of procs that this process has spawned, as long as somebody holds them."""

stand_ins: dict[type, type] = {}
"""The class that is spawned in place of another."""


def tell(mesh: Any) -> None:
    """Record the new mesh, and call all listeners with it."""
    spawned.add(mesh)
    for listener in list(listeners):
        listener(mesh)


def with_stand_ins(bootstrap: Callable[[], Any] | None) -> Callable[[], Any] | None:
    """Return a bootstrap that installs this process's fake actors and then runs ``bootstrap``.

    Returns ``bootstrap`` itself if no actors are faked.
    """
    if not stand_ins:
        return bootstrap
    return functools.partial(_begin, dict(stand_ins), bootstrap)


def _begin(fakes: dict[type, type], bootstrap: Callable[[], Any] | None) -> Any:
    stand_ins.update(fakes)
    return bootstrap() if bootstrap is not None else None
