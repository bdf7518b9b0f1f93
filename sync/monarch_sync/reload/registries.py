"""Containers of our modules in which definitions register themselves.

Module-level lists, dicts and sets, those in class bodies, and the tables of `singledispatch`.
"""

from __future__ import annotations

import gc
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import singledispatchmethod
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any

from .flips import MISSING, Action, contents_of

_CONTAINERS = (dict, list, set, OrderedDict, defaultdict)
_TOO_BIG_TO_HOLD_BACK = 10_000


@dataclass(frozen=True, eq=False)
class Registry:
    """`refresh` is called after every change of the container."""

    container: Any
    refresh: Callable[[], None] = lambda: None


class Snapshot:
    """What a container holds before staged code runs."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._before: Any = registry.container.copy()

    def take_out(self) -> HeldBack | None:
        """Put the container back as it was; the result can repeat what happened to it."""
        container, before = self._registry.container, self._before
        self._registry.refresh()
        if isinstance(container, dict):
            gone = [key for key in before if key not in container]
            put = {
                key: value
                for key, value in container.items()
                if before.get(key, MISSING) is not value
            }
            for key in put:
                if key in before:
                    container[key] = before[key]
                else:
                    del container[key]
            container.update({key: before[key] for key in gone})
            return HeldBack(self._registry, put, gone) if put or gone else None
        if isinstance(container, set):
            added, removed = container - before, before - container
            container -= added
            container |= removed
            return HeldBack(self._registry, added, removed) if added or removed else None
        if len(container) == len(before) and all(map(_is, container, before)):
            return None
        after = container[:]
        container[:] = before
        if len(after) > len(before) and all(map(_is, after, before)):
            return HeldBack(self._registry, after[len(before) :], [])
        return HeldBack(self._registry, after, before)


class HeldBack:
    """Something that staged code did to a live container."""

    def __init__(self, registry: Registry, put: Any, removed: Any) -> None:
        self._registry, self.put, self._removed = registry, put, removed

    def flip(self, live_of: Callable[[Any], Any], before_of: Callable[[Any], Any]) -> Action:
        """Repeats it on the container, with live objects instead of their staged twins.

        What takes the name of an object that is registered takes its place, too.
        """

        def do() -> Any:
            container = self._registry.container
            before = container.copy()
            if isinstance(container, dict):
                for key in self._removed:
                    container.pop(key, None)
                for key, value in self.put.items():
                    if live_of(value) is not value and key not in container:
                        # Registered under another name now.
                        for old in [k for k, v in container.items() if v is live_of(value)]:
                            if old not in self.put:
                                del container[old]
                    container[live_of(key)] = live_of(value)
            elif isinstance(container, set):
                container -= self._removed
                for value in map(live_of, self.put):
                    container -= {c for c in container if c is before_of(value)}
                    container.add(value)
            elif self._removed:
                container[:] = [live_of(value) for value in self.put]
            else:
                # Registering again what is registered already adds nothing.
                for value in map(live_of, self.put):
                    places = [i for i, c in enumerate(container) if c is before_of(value)]
                    for place in places[:1]:
                        container[place] = value
                    if not any(value is c or _is_made_again(value, c) for c in container):
                        container.append(value)
            return _changed(self._registry, before)

        return Action(do)


def _refill(container: Any, before: Any) -> None:
    if isinstance(container, list):
        container[:] = before
    elif list(container) != list(before) or isinstance(container, dict):
        container.clear()
        container.update(before)


def _is_made_again(value: Any, known: Any) -> bool:
    """Whether a closure is what its maker made before, of the same things."""
    if type(value) is not FunctionType or type(known) is not FunctionType:
        return False
    if (value.__module__, value.__qualname__) != (known.__module__, known.__qualname__):
        return False
    if value.__closure__ is None or known.__closure__ is None or not value.__closure__:
        return False
    cells = zip(value.__closure__, known.__closure__, strict=False)
    return len(value.__closure__) == len(known.__closure__) and all(
        contents_of(one) is contents_of(other) for one, other in cells
    )


def _is(one: Any, other: Any) -> bool:
    return one is other


def _changed(registry: Registry, before: Any) -> Callable[[], None]:
    registry.refresh()

    def undo() -> None:
        _refill(registry.container, before)
        registry.refresh()

    return undo


def unregister(
    modules: Iterable[tuple[str, ModuleType]], gone: Collection[Any]
) -> Iterator[Action]:
    """Takes definitions that are gone from the source out of the registries."""
    ids = {id(thing) for thing in gone}
    for registry in registries(modules) if ids else ():
        container = registry.container
        held = container.values() if isinstance(container, dict) else container
        if any(id(thing) in ids for thing in held):
            yield _without(registry, ids)


def _without(registry: Registry, ids: Collection[int]) -> Action:
    def do() -> Callable[[], None]:
        container = registry.container
        before = container.copy()
        if isinstance(container, dict):
            for key in [key for key, value in container.items() if id(value) in ids]:
                del container[key]
        elif isinstance(container, set):
            container -= {thing for thing in container if id(thing) in ids}
        else:
            container[:] = [thing for thing in container if id(thing) not in ids]
        return _changed(registry, before)

    return Action(do)


def registries(modules: Iterable[tuple[str, ModuleType]]) -> Iterable[Registry]:
    found: dict[int, Registry] = {}
    for name, module in modules:
        for key, value in list(vars(module).items()):
            if key == "__builtins__":
                continue
            inside = [value]
            if issubclass(type(value), type) and value.__module__ == name:
                inside += list(value.__dict__.values())
            for part in inside:
                registry = _registry(part)
                if registry and len(registry.container) <= _TOO_BIG_TO_HOLD_BACK:
                    found[id(registry.container)] = registry
    return found.values()


def _registry(value: Any) -> Registry | None:
    if type(value) in _CONTAINERS:
        return Registry(value)
    dispatcher = value.dispatcher if type(value) is singledispatchmethod else value
    if type(dispatcher) is not FunctionType or "_clear_cache" not in dispatcher.__dict__:
        return None
    table = dispatcher.__dict__.get("registry")
    if type(table) is not MappingProxyType:
        return None
    (container,) = gc.get_referents(table)
    return Registry(container, dispatcher.__dict__["_clear_cache"])
