"""What `from m import *` brings, and brings no more."""

from __future__ import annotations

import ast
import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .flips import MISSING
from .graph import ModuleEdit, absolute_name
from .statements import Statement


def no_longer_exported(
    edit: ModuleEdit,
    star: Statement,
    live_names: Mapping[str, Any],
    namespaces: Mapping[str, Mapping[str, Any]],
) -> Iterator[str]:
    """Names that a star import of a module brought once; `namespaces` are the staged ones."""
    assert isinstance(star.node, ast.ImportFrom)
    owner = absolute_name(edit.package, star.node.module, star.node.level)
    staged = namespaces.get(owner)
    if staged is None:
        return
    before = vars(sys.modules[owner])
    others = {bound for statement in edit.new for bound in statement.binds}
    for name in _exports(before) - _exports(staged) - others:
        if live_names.get(name, MISSING) is before.get(name):
            yield name


def _exports(namespace: Mapping[str, Any]) -> set[str]:
    names = namespace.get("__all__")
    return {name for name in namespace if name[0] != "_"} if names is None else set(names)


def listed(statements: Sequence[Statement]) -> set[str]:
    """What `__all__` says, where that is to be seen without running it."""
    for statement in statements:
        if "__all__" in statement.binds and isinstance(statement.node, ast.Assign):
            with contextlib.suppress(ValueError, TypeError):
                return {str(name) for name in ast.literal_eval(statement.node.value)}
    return set()
