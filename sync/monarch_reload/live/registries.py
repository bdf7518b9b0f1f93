"""Containers of our modules in which definitions register themselves.

They are the lists, deques, dicts and sets at the top level of our modules, in class bodies, in
instances and closures; small containers inside these, and the tables of `singledispatch`.
"""

from __future__ import annotations

import gc
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import singledispatchmethod
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any

import msgspec

from monarch_reload.kinds import is_heap_type
from monarch_reload.live.differences import Difference, drop
from monarch_reload.live.holders import held_by
from monarch_reload.undo_log import Action

_CONTAINERS = frozenset({dict, list, set, OrderedDict, defaultdict, Counter, deque})
_KINDS = _CONTAINERS | {FunctionType, singledispatchmethod}
_TOO_BIG_TO_HOLD_BACK = 10_000
_TOO_BIG_TO_LOOK_INTO = 256


class Registry(msgspec.Struct, frozen=True, eq=False):
    """A container with definitions in it. ``refresh`` is called after every change of the
    container.

    ``outer`` is the container that contains this one, as in ``handlers["start"].append(f)``; else
    None. ``is_of_others``: an installed package owns it, and may keep other things than definitions
    in it.
    """

    container: Any
    refresh: Callable[[], None] = lambda: None
    outer: Any = None
    is_of_others: bool = False

    @property
    def family(self) -> int:
        return id(self.container if self.outer is None else self.outer)

    def names(self, ids: Collection[int]) -> bool:
        held = self.container.values() if isinstance(self.container, dict) else self.container
        return any(names(entry, ids) for entry in list(held))


def parts_of_entry(value: Any) -> tuple[Any, ...]:
    """Return the objects in an entry of a container. An entry is a tuple such as `(priority,
    function)`, or an object itself.
    """
    return (*value,) if type(value) is tuple else (value,)


def names(entry: Any, ids: Collection[int]) -> bool:
    return any(id(part) in ids for part in parts_of_entry(entry))


def take_out(container: Any, ids: Collection[int]) -> None:
    """Remove the entries of some definitions (by their ids) from a container."""
    if isinstance(container, dict):
        for key in [key for key, value in list(container.items()) if names(value, ids)]:
            del container[key]
        return
    entries = [(index, entry) for index, entry in enumerate(list(container)) if names(entry, ids)]
    for index, entry in reversed(entries):
        if isinstance(container, set):
            container.discard(entry)
        elif index < len(container) and container[index] is entry:
            del container[index]
        else:  # other code changed it meanwhile
            drop(container, entry)


def change(registry: Registry, edit: Callable[[Any], None]) -> Callable[[], None]:
    """Apply to the container the change that `edit` makes to a copy of it; the returned function
    undoes it.

    Neither affects changes that other threads make to the container meanwhile.
    """
    before = registry.container.copy()
    after = before.copy()
    edit(after)
    forth, back = Difference.between(before, after), Difference.between(after, before)
    if forth is None or back is None:
        return lambda: None
    forth.apply(registry.container)
    registry.refresh()

    def undo() -> None:
        back.apply(registry.container, over_others=False)
        registry.refresh()

    return undo


def unregister(candidates: Iterable[Registry], ids: Collection[int]) -> Iterator[Action]:
    """Yield actions that remove definitions (by their ids) from registries."""
    for registry in candidates if ids else ():
        if registry.names(ids):
            yield without(registry, ids)


def without(registry: Registry, ids: Collection[int]) -> Action:
    return Action(lambda: change(registry, lambda container: take_out(container, ids)))


def registries(held: Iterable[Any]) -> Iterable[Registry]:
    """Return the registries to which the objects ``held`` refer.

    An object may also refer to an instance, such as an event bus, that keeps a registry in an
    attribute; this registry is returned, too.
    """
    by_id: dict[int, Registry] = {}
    held = list(held)
    ours = set(map(id, held))
    for holder in held:
        for value in held_by(holder):
            kind = type(value)
            if kind is FunctionType and not value.__dict__:
                continue
            is_instance = is_heap_type(kind) and not issubclass(kind, (type, ModuleType))
            if kind in _KINDS:
                _note(by_id, value, False)
            elif is_instance and id(value) not in ours:
                for inner in held_by(value):
                    if type(inner) in _KINDS:
                        _note(by_id, inner, True)
    return by_id.values()


def _note(by_id: dict[int, Registry], value: Any, is_of_others: bool) -> None:
    registry = _registry(value, is_of_others)
    if registry is None or len(registry.container) > _TOO_BIG_TO_HOLD_BACK:
        return
    by_id.setdefault(id(registry.container), registry)
    if isinstance(value, dict) and len(value) <= _TOO_BIG_TO_LOOK_INTO:
        for part in list(value.values()):
            if type(part) in _CONTAINERS and len(part) <= _TOO_BIG_TO_LOOK_INTO:
                by_id.setdefault(id(part), Registry(part, outer=value, is_of_others=is_of_others))


def _registry(value: Any, is_of_others: bool) -> Registry | None:
    if type(value) in _CONTAINERS:
        return Registry(value, is_of_others=is_of_others)
    dispatcher = value.dispatcher if type(value) is singledispatchmethod else value
    if type(dispatcher) is not FunctionType or "_clear_cache" not in dispatcher.__dict__:
        return None
    table = dispatcher.__dict__.get("registry")
    if type(table) is not MappingProxyType:
        return None
    (container,) = gc.get_referents(table)
    return Registry(container, dispatcher.__dict__["_clear_cache"])
