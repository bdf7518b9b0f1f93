"""Live objects as staged code sees them: as if they were of the staged classes already."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from monarch_reload.kinds import BY_VALUE


class StandIns:
    """`pairs` are stand-ins, each with the live object that it stands for."""

    def __init__(self) -> None:
        self.pairs: list[tuple[Any, Any]] = []
        self._live: dict[int, type] = {}  # by the id of the staged class
        self.checks = {
            "isinstance": functools.partial(self._check, isinstance),
            "issubclass": functools.partial(self._check, issubclass),
        }
        """What staged code gets for the built-in ones."""

    def follows(self, live: type, staged: type) -> None:
        """From here on a live class passes for the staged one."""
        self._live[id(staged)] = live

    def of(self, instance: Any, staged: type) -> Any:
        """A stand-in for a kept instance, of the staged class."""
        if hasattr(staged, "__del__"):
            return instance  # the stand-in would close what the instance goes on using
        try:
            twin = _copied(instance, staged)
        except (TypeError, AttributeError):
            return instance  # it has another layout than most
        self.pairs.append((twin, instance))
        return twin

    def _check(self, check: Callable[[Any, Any], bool], thing: Any, kind: Any) -> bool:
        """Objects of a live class are of its staged twin: they will be."""
        if check(thing, kind):
            return True
        kinds = kind if type(kind) is tuple else (kind,)
        live = [self._live[id(k)] for k in kinds if id(k) in self._live]
        if not live:
            return False
        # Not `check`: what a live protocol asks for may not be what the new one does.
        cls = type(thing) if check is isinstance else thing
        return any(type.__subclasscheck__(one, cls) for one in live)


def _copied(value: Any, cls: type) -> Any:
    """An instance of another class with the very attributes of this one."""
    plain: Any = next(base for base in cls.__mro__ if base.__module__ == "builtins")
    if plain in BY_VALUE:
        same = plain.__new__(cls, value)
        if hasattr(value, "__dict__"):
            same.__dict__.update(value.__dict__)
        return same
    twin: Any = object.__new__(cls)
    object.__setattr__(twin, "__dict__", value.__dict__)
    return twin
