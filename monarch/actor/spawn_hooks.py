"""Hooks that run at every spawn: listeners, and stand-ins for actors in tests.

Procs are born with the stand-ins that their spawner knew, so what actors spawn is replaced too.
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
    """Note the new mesh, and call all listeners with it."""
    spawned.add(mesh)
    for listener in list(listeners):
        listener(mesh)


def with_stand_ins(bootstrap: Callable[[], Any] | None) -> Callable[[], Any] | None:
    """A bootstrap that makes the stand-ins of this process known before ``bootstrap`` runs."""
    if not stand_ins:
        return bootstrap
    return functools.partial(_begin, dict(stand_ins), bootstrap)


def _begin(known: dict[type, type], bootstrap: Callable[[], Any] | None) -> Any:
    stand_ins.update(known)
    return bootstrap() if bootstrap is not None else None
