"""Containers of our modules in which definitions register themselves.

Module-level lists, dicts and sets, those in class bodies and in module-level instances of our
classes, small ones inside all of these, and the tables of `singledispatch`.
"""

from __future__ import annotations

import contextlib
import gc
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import singledispatchmethod
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any

from .flips import Action

_CONTAINERS = (dict, list, set, OrderedDict, defaultdict)
_TOO_BIG_TO_HOLD_BACK = 10_000
_TOO_BIG_TO_LOOK_INTO = 256


@dataclass(frozen=True, eq=False)
class Registry:
    """`refresh` is called after every change of the container.

    `outer` is the container that this one lies in, as in `handlers["start"].append(f)`.
    `is_state`: it may as well be what running code counts and collects in.
    """

    container: Any
    refresh: Callable[[], None] = lambda: None
    outer: Any = None
    is_state: bool = False

    @property
    def family(self) -> int:
        return id(self.container if self.outer is None else self.outer)

    def names(self, ids: Collection[int]) -> bool:
        held = self.container.values() if isinstance(self.container, dict) else self.container
        return any(names(entry, ids) for entry in held)


def refill(container: Any, before: Any) -> None:
    if isinstance(container, list):
        container[:] = before
    elif list(container) != list(before) or isinstance(container, dict):
        container.clear()
        container.update(before)


def parts_of_entry(value: Any) -> tuple[Any, ...]:
    """What an entry speaks of: `(priority, function)` of the function, too."""
    return (*value,) if type(value) is tuple else (value,)


def names(entry: Any, ids: Collection[int]) -> bool:
    return any(id(part) in ids for part in parts_of_entry(entry))


def take_out(container: Any, ids: Collection[int]) -> None:
    """Entries of definitions, by their ids."""
    if isinstance(container, dict):
        for key in [key for key, value in container.items() if names(value, ids)]:
            del container[key]
    elif isinstance(container, set):
        container -= {entry for entry in container if names(entry, ids)}
    else:
        container[:] = [entry for entry in container if not names(entry, ids)]


def changed(registry: Registry, before: Any) -> Callable[[], None]:
    registry.refresh()

    def undo() -> None:
        refill(registry.container, before)
        registry.refresh()

    return undo


def unregister(known: Iterable[Registry], ids: Collection[int]) -> Iterator[Action]:
    """Takes definitions (by their ids) out of registries."""
    for registry in known if ids else ():
        if registry.names(ids):
            yield without(registry, ids)


def without(registry: Registry, ids: Collection[int]) -> Action:
    def do() -> Callable[[], None]:
        container = registry.container
        before = container.copy()
        take_out(container, ids)
        return changed(registry, before)

    return Action(do)


def registries(modules: Iterable[tuple[str, ModuleType]]) -> Iterable[Registry]:
    found: dict[int, Registry] = {}
    for value, is_state in _places(list(modules)):
        registry = _registry(value, is_state)
        if registry is None or len(registry.container) > _TOO_BIG_TO_HOLD_BACK:
            continue
        found.setdefault(id(registry.container), registry)
        if isinstance(value, dict) and len(value) <= _TOO_BIG_TO_LOOK_INTO:
            for part in list(value.values()):
                if type(part) in _CONTAINERS and len(part) <= _TOO_BIG_TO_LOOK_INTO:
                    found.setdefault(id(part), Registry(part, outer=value, is_state=True))
    return found.values()


def _places(modules: list[tuple[str, ModuleType]]) -> Iterator[tuple[Any, bool]]:
    """Where a registry may be, and whether that is the state of an object."""
    ours = {name for name, _ in modules}
    for name, module in modules:
        for key, value in dict(vars(module)).items():
            if key == "__builtins__":
                continue
            yield value, False
            if issubclass(type(value), type) and value.__module__ == name:
                yield from ((part, False) for part in list(value.__dict__.values()))
            elif type(value).__module__ in ours:
                with contextlib.suppress(AttributeError):
                    own = list(object.__getattribute__(value, "__dict__").values())
                    yield from ((part, True) for part in own)


def _registry(value: Any, is_state: bool) -> Registry | None:
    if type(value) in _CONTAINERS:
        return Registry(value, is_state=is_state)
    dispatcher = value.dispatcher if type(value) is singledispatchmethod else value
    if type(dispatcher) is not FunctionType or "_clear_cache" not in dispatcher.__dict__:
        return None
    table = dispatcher.__dict__.get("registry")
    if type(table) is not MappingProxyType:
        return None
    (container,) = gc.get_referents(table)
    return Registry(container, dispatcher.__dict__["_clear_cache"])
