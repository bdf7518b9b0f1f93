"""The names that `from m import *` brings, each treated as if it were imported by itself.

A star import becomes one statement for each name, so that names come, go and win over others as
those of any import do. The names that a module will export are read from its new source. If that is
impossible, as when `__all__` is computed, the last statement of a star brings the remaining names.
"""

from __future__ import annotations

import ast
import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from msgspec.structs import replace

from monarch_reload.plan.graph import absolute_name
from monarch_reload.source.source import ModuleSource, RunningSources
from monarch_reload.source.spelling import dotted
from monarch_reload.source.statements import Statement

Statements = tuple[Statement, ...]

_EXTENDS = ("__all__.append", "__all__.extend", "__all__.remove")


class Exports:
    """The names that modules export, before and after an edit of some of them."""

    def __init__(self, running: RunningSources, changed: Mapping[str, ModuleSource]) -> None:
        self._running = running
        self._changed = changed
        self._before: dict[str, frozenset[str]] = {}
        self._after: dict[str, frozenset[str]] = {}

    def before(self, module: str) -> frozenset[str] | None:
        """Return the names that a module exported before the edit; None if the module is not
        loaded."""
        loaded = sys.modules.get(module)
        if module not in self._before and loaded is not None:
            self._before[module] = exports(_names_of(loaded))
        return self._before.get(module)

    def after(self, module: str) -> frozenset[str] | None:
        before = self.before(module)
        if before is None or module not in self._running:
            return before
        source = self._changed.get(module) or self._running[module]
        if module not in self._after:
            self._after[module] = before  # for cycles
            with contextlib.suppress(SyntaxError, ValueError):  # broken before we first looked
                self._after[module] = self._exported_by(module, source, before)
        return self._after[module]

    def differ(self, module: str) -> bool:
        return self.before(module) != self.after(module)

    def _exported_by(
        self, module: str, source: ModuleSource, before: frozenset[str]
    ) -> frozenset[str]:
        old, new = self._running[module], source
        if old is new and b"import *" not in old.text:
            return before
        package = _names_of(sys.modules[module]).get("__package__") or ""
        if old is new and not any(
            self.differ(owner)
            for statement in old.statements
            for owner in _owners(statement, package)
        ):
            return before
        listed = _listed(new.statements)
        if listed is not None:
            return listed
        if any("__all__" in statement.binds for statement in new.statements):
            return before
        live = _names_of(sys.modules[module])
        was = {name for s in self.split_before(old.statements, package) for name in s.binds}
        will = {name for s in self.split_after(new.statements, package) for name in s.binds}
        return frozenset(name for name in will | (live.keys() - was) if name[0] not in "_*")

    def split_before(self, statements: Statements, package: str) -> Statements:
        return self._split(statements, package, self.before)

    def split_after(self, statements: Statements, package: str) -> Statements:
        return self._split(statements, package, self.after)

    def _split(
        self,
        statements: Statements,
        package: str,
        exported: Callable[[str], frozenset[str] | None],
    ) -> Statements:
        """Return the statements with each star import split into an import for each name.

        A star import is not split if it is inside an ``if``, or if its module is not reloaded. Such
        a statement records the names that it brings.
        """
        parts: list[Statement] = []
        for statement in statements:
            is_star = "*" in statement.names.binds
            owners = list(_owners(statement, package)) if is_star else []
            pairs = [(owner, name) for owner in owners for name in exported(owner) or ()]
            if not pairs:
                parts.append(statement)
            elif not isinstance(statement.node, ast.ImportFrom) or owners[0] not in self._running:
                parts.append(replace(statement, brought=frozenset(pairs)))
            else:
                parts += (_part(statement, pair) for pair in sorted(pairs))
                parts.append(statement)
        return tuple(parts)


def exports(namespace: Mapping[str, Any]) -> frozenset[str]:
    """Return the names that an `import *` of a module with this namespace brings."""
    names = namespace.get("__all__")
    if names is None:
        return frozenset(name for name in dict(namespace) if name[:1] != "_")
    return frozenset(names)


def _part(star: Statement, pair: tuple[str, str]) -> Statement:
    assert isinstance(star.node, ast.ImportFrom)
    node = ast.ImportFrom(star.node.module, [ast.alias(pair[1])], star.node.level)
    return replace(
        star,
        node=ast.copy_location(node, star.node),
        text=f"{star.text}  # {pair[1]}",
        brought=frozenset({pair}),
    )


def bring(
    statements: Sequence[Statement], index: int, source: ModuleType, namespace: dict[str, Any]
) -> None:
    """Bind in ``namespace`` what the star import ``statements[index]`` brings from ``source``.

    If the statement lists the names that it brings (``brought``), only these are bound. A listed
    name that ``source`` no longer exports is removed, unless an earlier statement binds it. Without
    a list, all exported names are bound, except names that a later statement binds.
    """
    exported = exports(_names_of(source))
    statement = statements[index]
    if statement.brought is None:
        below = {name for other in statements[index + 1 :] for name in other.binds}
        namespace.update({name: getattr(source, name) for name in exported - below})
        return
    for name in statement.binds:
        if name in exported:
            namespace[name] = getattr(source, name)
        elif not any(name in other.binds for other in statements[:index]):
            namespace.pop(name, None)


def _names_of(module: Any) -> Mapping[str, Any]:
    names: Mapping[str, Any] = module.__dict__
    return names


def _owners(statement: Statement, package: str) -> Iterator[str]:
    for node in statement.imports:
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            yield absolute_name(package, node.module, node.level)


def _listed(statements: Sequence[Statement]) -> frozenset[str] | None:
    """Return the names in `__all__`; None if the text alone does not show them."""
    names: list[str] | None = None
    for statement in statements:
        node = statement.node
        value: ast.expr | None = None
        way = ""
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and "__all__" in statement.binds:
            names, value = [], node.value
        elif isinstance(node, ast.AugAssign) and "__all__" in statement.binds:
            value = node.value
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            way = dotted(node.value.func) or ""
            if way in _EXTENDS and len(node.value.args) == 1:
                value = node.value.args[0]
        if value is None:
            if any(name == "__all__" for name, _ in statement.names.eager):
                return None
            continue
        try:
            listed = ast.literal_eval(value)
        except (ValueError, TypeError):
            return None
        listed = [listed] if way in ("__all__.append", "__all__.remove") else list(listed)
        names = [] if names is None else names
        if way == "__all__.remove":
            names = [name for name in names if name not in listed]
        else:
            names += listed
    return None if names is None else frozenset(names)
