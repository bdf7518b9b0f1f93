"""Fields that a dataclass gained: instances from before get them when somebody asks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any


class LateDefault:
    """In the class, for instances that were made when there was no such field.

    The first to read the field of an instance makes its value; on the class there is none.
    """

    def __init__(self, name: str, factory: Callable[[], Any]) -> None:
        self._name, self._factory = name, factory

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            raise AttributeError(f"it has no attribute {self._name!r}; its instances have")
        return instance.__dict__.setdefault(self._name, self._factory())


def late_defaults(live: type, staged: type) -> Iterator[tuple[str, LateDefault]]:
    """What live instances of a dataclass lack, and how it is made."""
    before = live.__dict__.get("__dataclass_fields__", {})
    after = staged.__dict__.get("__dataclass_fields__", {})
    for name, field in after.items() if before else ():
        is_new = name not in before or type(live.__dict__.get(name)) is LateDefault
        if is_new and field.default_factory is not dataclasses.MISSING:
            yield name, LateDefault(name, field.default_factory)
