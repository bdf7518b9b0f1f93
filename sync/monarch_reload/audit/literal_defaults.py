"""The defaults that a source writes out as values, for functions that other functions make.

No name leads to such a function, so a later edit of its default does not reach it. Its code is the
same either way, so only the default shows that it is old.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any

from monarch_reload.audit.expected import is_plain

Place = tuple[str, int]  # name and first line
Defaults = Mapping[str, Any]  # by parameter


def literal_defaults(text: bytes) -> Mapping[Place, Defaults]:
    """Return the literal defaults of all functions in a file, by name and line.

    Functions that share a name and a line are left out. Empty if the text does not parse.
    """
    defaults: dict[Place, Defaults] = {}
    twice: set[Place] = set()
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return defaults
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
            line = min(part.lineno for part in (node, *decorators))
            place = ("<lambda>" if isinstance(node, ast.Lambda) else node.name), line
            if place in defaults:
                twice.add(place)
            defaults[place] = dict(_literals(node.args))
    return {place: values for place, values in defaults.items() if place not in twice}


def _literals(arguments: ast.arguments) -> Iterator[tuple[str, Any]]:
    positional = [*arguments.posonlyargs, *arguments.args]
    both = [*zip(reversed(positional), reversed(arguments.defaults), strict=False)]
    both += [
        (name, value)
        for name, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        if value is not None
    ]
    for name, value in both:
        try:
            literal = ast.literal_eval(value)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            continue
        if is_plain(literal):
            yield name.arg, literal


def defaults_now(function: FunctionType) -> Defaults:
    """Return the plain defaults that a live function has."""
    code: CodeType = function.__code__
    positional = code.co_varnames[: code.co_argcount]
    values = function.__defaults__ or ()
    defaults = dict(zip(positional[len(positional) - len(values) :], values, strict=False))
    defaults |= function.__kwdefaults__ or {}
    return {name: value for name, value in defaults.items() if is_plain(value)}
