"""Decorators that register the functions they decorate, and the registries they use."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from types import FunctionType, MethodType, ModuleType
from typing import Any

from monarch_reload.kinds import is_a
from monarch_reload.live.holders import held_by
from monarch_reload.source.codes import inner_codes
from monarch_reload.source.spelling import dotted
from monarch_reload.source.statements import Statement


def taken_away(old: Statement, new: Statement, namespace: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the decorators that the edit has removed from a definition. For a decorator that is a
    method, such as `app.on`, yield the object (`app`).
    """
    for name in _decorators(old) - _decorators(new):
        value: Any = None
        inside = namespace
        for part in name.split("."):
            value = inside.get(part)
            if not issubclass(type(value), ModuleType):
                break
            inside = vars(value)
        if value is not None:
            yield value


def _decorators(statement: Statement) -> set[str]:
    nodes = getattr(statement.node, "decorator_list", ())
    names = (dotted(node.func if isinstance(node, ast.Call) else node) for node in nodes)
    return {name for name in names if name is not None}


def reached(registrar: Any) -> Iterator[Any]:
    """Yield the objects into which a decorator may have put something: objects to which it refers,
    directly or through others.
    """
    if type(registrar) is MethodType:
        registrar = registrar.__self__
    values = held_by(registrar)
    if type(registrar) is FunctionType:
        codes = (registrar.__code__, *inner_codes(registrar.__code__))
        named = (registrar.__globals__.get(name) for code in codes for name in code.co_names)
        values += [value for value in named if not is_a(value, ModuleType)]
    for value in values:
        yield value
        for inner in held_by(value):
            yield inner
            yield from held_by(inner)
