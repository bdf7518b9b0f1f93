"""Definitions that code reaches through containers: `TABLE["a"]()`, `[f() for f in STEPS]`."""

from __future__ import annotations

import functools
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from types import FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any

import msgspec

from monarch_reload.kinds import is_heap_type, own_names
from monarch_reload.live.patch import parts_of
from monarch_reload.undo_log import MISSING

_MAPPINGS = frozenset({dict, OrderedDict, defaultdict, MappingProxyType})
_CONTAINERS = _MAPPINGS | {list, tuple, set, frozenset, deque}
_TOO_BIG_TO_LOOK_INTO = 256
_PLAIN = frozenset({str, int, float, bool, bytes, type(None), ModuleType})
_DEEPEST = 3
_LAMBDA = "<lambda>"


class HeldDefinition(msgspec.Struct, frozen=True):
    """A top-level function or class that a container refers to.

    ``is_instance``: the container has an instance of the class. If it has a bound method of an
    instance, ``member`` is the method's name, else "".
    """

    module: str
    name: str
    is_instance: bool = False
    member: str = ""


class Tables(dict[str, frozenset[HeldDefinition]]):
    """The definitions in a module's containers, by the dotted name of the container; each container
    is looked into when it is first asked for."""

    def __init__(self, namespace: Mapping[str, Any]) -> None:
        super().__init__()
        self._namespace = namespace

    def __missing__(self, name: str) -> frozenset[HeldDefinition]:
        definitions = self[name] = frozenset(held_in(_value_of(name, self._namespace)))
        return definitions


def holders(modules: Iterable[tuple[str, ModuleType]]) -> Mapping[tuple[str, str], set[str]]:
    """Return, for each (module, name) of a definition, the modules whose containers contain it."""
    # Modules share most of their values, such as the builtins.
    values: dict[int, tuple[Any, set[str]]] = {}
    for name, module in modules:
        for value in list(vars(module).values()):
            if type(value) in _PLAIN or (type(value) is FunctionType and not value.__dict__):
                continue
            values.setdefault(id(value), (value, set()))[1].add(name)
    holding: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for value, names in values.values():
        for held in held_in(value):
            holding[held.module, held.name] |= names
    return holding


def held_in(value: Any) -> Iterator[HeldDefinition]:
    """Yield the definitions to which a value refers. The value is a container, a registry, a
    `partial`, or a class or an instance with containers in its attributes. For any other value
    nothing is yielded.
    """
    kind = type(value)
    if kind is FunctionType:
        registry = value.__dict__.get("registry")
        if type(registry) is MappingProxyType:
            yield from _entries(registry, 0)
    elif kind in _CONTAINERS or kind is functools.partial:
        yield from _entries(value, 0)
    elif issubclass(kind, type):
        for part in list(value.__dict__.values()) if is_heap_type(value) else ():
            if type(part) in _CONTAINERS:
                yield from _entries(part, 1)
    elif is_heap_type(kind) and not issubclass(kind, ModuleType):
        for part in list(own_names(value).values()):
            if type(part) in _CONTAINERS:
                yield from _entries(part, 1)


def _entries(value: Any, depth: int) -> Iterator[HeldDefinition]:
    kind = type(value)
    if kind in _CONTAINERS:
        if len(value) <= _TOO_BIG_TO_LOOK_INTO and depth < _DEEPEST:
            for entry in list(value.values() if kind in _MAPPINGS else value):
                if type(entry) not in _PLAIN:
                    yield from _entries(entry, depth + 1)
    elif kind is functools.partial:
        yield from _entries(value.func, depth + 1)
    elif kind is FunctionType:
        is_plain = not (value.__closure__ or value.__dict__)
        for part in (value,) if is_plain else parts_of(value, ""):
            if type(part) is FunctionType:
                yield from _functions(part)
    elif kind is MethodType:
        owner = value.__self__
        cls = owner if issubclass(type(owner), type) else type(owner)
        yield HeldDefinition(cls.__module__, cls.__qualname__, True, value.__func__.__name__)
    elif issubclass(kind, type):
        yield HeldDefinition(value.__module__, value.__qualname__)
    elif is_heap_type(kind):
        yield HeldDefinition(kind.__module__, kind.__qualname__, True)


def _functions(function: FunctionType) -> Iterator[HeldDefinition]:
    """Yield the top-level definition that contains a function: the outermost function or class
    around it, or the function itself.

    A lambda is yielded under each name that its module binds to it, or not at all.
    """
    module, name = function.__module__ or "", function.__qualname__
    if name != _LAMBDA:
        yield HeldDefinition(module, name.partition(".")[0])
        return
    for bound, value in list(function.__globals__.items()):
        if value is function:
            yield HeldDefinition(module, bound)


def _value_of(name: str, namespace: Mapping[str, Any]) -> Any:
    """Return the value of a dotted name. Only plain attributes are read, because a read of another
    attribute may make a lazy object load itself.
    """
    head, *rest = name.split(".")
    value = namespace.get(head, MISSING)
    for part in rest:
        namespaces: list[Mapping[str, Any]] = [own_names(value)]
        if not issubclass(type(value), ModuleType):
            cls = value if issubclass(type(value), type) else type(value)
            namespaces = [*namespaces, *(vars(base) for base in cls.__mro__)]
        value = next((attributes[part] for attributes in namespaces if part in attributes), MISSING)
    return value
