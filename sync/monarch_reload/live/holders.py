"""Live objects that staged code may change: objects in our modules, and objects inside those."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Iterator
from types import FunctionType, GetSetDescriptorType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

from monarch_reload.kinds import own_names
from monarch_reload.undo_log import contents_of

_DEEPEST = 4
_MOST = 20_000
_TOO_BIG_TO_LOOK_INTO = 256
_PLAIN = frozenset({str, int, float, bool, type(None), GetSetDescriptorType, MemberDescriptorType})
_SUPER = ("__class__",)
_CONTAINERS = frozenset({dict, list, tuple, set, OrderedDict, deque})


def holders(modules: Iterable[tuple[str, ModuleType]]) -> Iterator[Any]:
    """Yield the given modules, and objects that are reached from them: classes of these modules,
    instances of these classes, and functions with attributes or closure variables.
    """
    modules = list(modules)
    ours = {name for name, _ in modules}
    pending: deque[tuple[Any, int]] = deque((module, 0) for _, module in modules)
    seen: set[int] = set()
    while pending and len(seen) < _MOST:
        holder, depth = pending.popleft()
        if id(holder) in seen:
            continue
        seen.add(id(holder))
        yield holder
        for value in held_by(holder) if depth < _DEEPEST else ():
            kind = type(value)
            if kind in _PLAIN:
                continue
            for part in _entries(value) if kind in _CONTAINERS else (value,):
                part = part.__self__ if type(part) is MethodType else part
                if _is_holder(part, ours) and id(part) not in seen:
                    pending.append((part, depth + 1))


def held_by(holder: Any) -> list[Any]:
    """Return the values of an object's attributes, and of a function's closure."""
    kind = type(holder)
    if issubclass(kind, type):
        return list(holder.__dict__.values())
    held = own_names(holder).copy()
    held.pop("__builtins__", None)
    values = list(held.values())
    if kind is FunctionType:
        values += [contents_of(cell) for cell in holder.__closure__ or ()]
    return values


def _entries(value: Any) -> list[Any]:
    if len(value) > _TOO_BIG_TO_LOOK_INTO:
        return []
    return list(value.values()) if isinstance(value, dict) else list(value)


def _is_holder(value: Any, ours: Collection[str]) -> bool:
    kind = type(value)
    if kind is FunctionType:
        keeps = value.__dict__ or (value.__closure__ and value.__code__.co_freevars != _SUPER)
        return bool(keeps) and value.__module__ in ours
    if issubclass(kind, type):
        return value.__module__ in ours
    return kind.__module__ in ours and not issubclass(kind, ModuleType)
