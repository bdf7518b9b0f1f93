"""Classes inside of native validators: pydantic's, which keep a copy of the fields of each model.

A validator is compiled from a schema, which can still be read.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from types import FunctionType
from typing import Any

from monarch_reload.kinds import definition_at, is_a

_SCHEMA = "__pydantic_core_schema__"
_OF_A_CLASS = ("model", "dataclass")
_BESIDE = frozenset({"ref", "metadata", "serialization", "config", "custom_init", "post_init"})


def adapters() -> set[type]:
    """Return the classes whose instances validate data without being a model: pydantic's
    ``TypeAdapter``; empty if it is not imported."""
    pydantic: Any = sys.modules.get("pydantic.type_adapter")
    return set() if pydantic is None else {pydantic.TypeAdapter}


def models() -> Iterator[type]:
    """Yield all pydantic models of the process."""
    pydantic: Any = sys.modules.get("pydantic.main")
    pending: list[type] = [] if pydantic is None else [pydantic.BaseModel]
    seen: set[int] = set()
    while pending:
        cls = pending.pop()
        if id(cls) not in seen:
            seen.add(id(cls))
            yield cls
            pending += type.__subclasses__(cls)


def copied_fields_that_differ(holder: Any, modules: Collection[str]) -> Iterator[type]:
    """Yield classes of ``modules`` with other fields now than at the time when ``holder`` copied
    their fields for its validator.

    ``holder`` is a pydantic model or a type adapter.
    """
    if is_a(holder, type) and not is_bound_to_its_name(holder):
        return
    for cls, inside in _inside(schema_of(holder), set()):
        if cls is holder or cls.__module__ not in modules or not is_bound_to_its_name(cls):
            continue
        own_fields = next(
            (part for inner_class, part in _inside(schema_of(cls), set()) if inner_class is cls),
            None,
        )
        if own_fields is not None and not _alike(inside, own_fields):
            yield cls


def is_bound_to_its_name(cls: type) -> bool:
    """Return whether a class is still bound to its name in its module. True also for a class made
    in a function, because no name of the module is bound to such a class.
    """
    is_local = "<locals>" in cls.__qualname__
    return is_local or definition_at(cls.__module__, cls.__qualname__) is cls


def schema_of(holder: Any) -> Any:
    if is_a(holder, type):
        return vars(holder).get(_SCHEMA)
    return vars(holder).get("core_schema")


def _inside(schema: Any, seen: set[int]) -> Iterator[tuple[type, Any]]:
    """Yield the classes in a schema, each with the schema of its fields."""
    if id(schema) in seen:
        return
    seen.add(id(schema))
    if type(schema) is dict:
        if schema.get("type") in _OF_A_CLASS and is_a(schema.get("cls"), type):
            yield schema["cls"], schema.get("schema")
        for value in schema.values():
            yield from _inside(value, seen)
    elif type(schema) in (list, tuple):
        for value in schema:
            yield from _inside(value, seen)


def _alike(one: Any, other: Any) -> bool:
    """Return whether two schemas are equal. Classes inside them must be the same objects; the
    fields of these classes are not compared.
    """
    if one is other:
        return True
    if type(one) is not type(other):
        return _is_reference(one) or _is_reference(other)
    if type(one) is dict:
        if _is_reference(one) or _is_reference(other):
            return True
        if one.get("type") in _OF_A_CLASS and "cls" in one:
            return one["cls"] is other.get("cls")
        names = (one.keys() | other.keys()) - _BESIDE
        return all(_alike(one.get(name), other.get(name)) for name in names)
    if type(one) in (list, tuple):
        return len(one) == len(other) and all(map(_alike, one, other))
    if type(one) is FunctionType:
        return bool(one.__code__ == other.__code__)
    try:
        return bool(one == other)
    except Exception:
        return True  # of a kind that cannot be compared


def _is_reference(schema: Any) -> bool:
    return type(schema) is dict and schema.get("type") == "definition-ref"
