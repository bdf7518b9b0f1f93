"""Live objects that staged code may change: what our modules hold, and what that holds in turn."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Iterator
from types import FunctionType, MethodType, ModuleType
from typing import Any

from .flips import contents_of
from .kinds import is_a, own_names

_DEEPEST = 4
_MOST = 20_000
_TOO_BIG_TO_LOOK_INTO = 256
_CONTAINERS = (dict, list, tuple, set, OrderedDict, deque)


def holders(modules: Iterable[tuple[str, ModuleType]]) -> Iterator[Any]:
    """Our modules, with classes and instances of ours, and functions that keep something."""
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
            for part in (value, *_entries(value)):
                part = part.__self__ if type(part) is MethodType else part
                if id(part) not in seen and _is_holder(part, ours):
                    pending.append((part, depth + 1))


def held_by(holder: Any) -> list[Any]:
    """Values of attributes, and what a function closes over."""
    if is_a(holder, type):
        return list(holder.__dict__.values())
    values = [value for key, value in own_names(holder).copy().items() if key != "__builtins__"]
    if type(holder) is FunctionType:
        values += [contents_of(cell) for cell in holder.__closure__ or ()]
    return values


def _entries(value: Any) -> list[Any]:
    if type(value) not in _CONTAINERS or len(value) > _TOO_BIG_TO_LOOK_INTO:
        return []
    return list(value.values()) if isinstance(value, dict) else list(value)


def _is_holder(value: Any, ours: Collection[str]) -> bool:
    kind = type(value)
    if kind is FunctionType:
        return value.__module__ in ours and bool(value.__closure__ or value.__dict__)
    if issubclass(kind, type):
        return value.__module__ in ours
    return kind.__module__ in ours and not issubclass(kind, ModuleType)
