"""Dotted names: how a module spells the names that it reads, and what its imports refer to.
Pure."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping

WHOLE = "__dict__"
ABSOLUTE = ">"  # in front of a dotted name that starts at a module, not at a name of this one
FunctionNode = (ast.FunctionDef, ast.AsyncFunctionDef)


def dotted(node: ast.expr) -> str | None:
    """Return `a.b.c` for an attribute chain that starts at a name; None for any other node."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    parts.append(node.id)
    return ".".join(reversed(parts))


def walk_scope(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and the nodes inside it. Nodes inside a function or a class are left out."""
    yield node
    if not isinstance(node, (*FunctionNode, ast.ClassDef, ast.Lambda)):
        for child in ast.iter_child_nodes(node):
            yield from walk_scope(child)


def catches(node: ast.Try, exceptions: Collection[str]) -> bool:
    """Return whether a `try` has an `except` for one of these exceptions, or for all."""
    for handler in node.handlers:
        kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
        if any(kind is None or dotted(kind) in exceptions for kind in kinds):
            return True
    return False


def root_of(name: str) -> str:
    return name.partition(".")[0]


def by_getattr(node: ast.Call) -> str | None:
    """Return `m.C` for `getattr(m, "C")`; None for any other node."""
    if dotted(node.func) == "getattr" and len(node.args) > 1:
        owner, name = dotted(node.args[0]), node.args[1]
        if owner and isinstance(name, ast.Constant) and isinstance(name.value, str):
            return f"{owner}.{name.value}"
    return None


_IMPORTERS = ("importlib.import_module", "import_module", "__import__")


def of_imported(node: ast.Attribute) -> str | None:
    """Return ``>m.C`` for ``import_module("m").C``, or for ``__import__`` and the like; None for
    any other node."""
    parts = [node.attr]
    inner = node.value
    while isinstance(inner, ast.Attribute):
        parts.append(inner.attr)
        inner = inner.value
    if not isinstance(inner, ast.Call) or dotted(inner.func) not in _IMPORTERS or not inner.args:
        return None
    name = inner.args[0]
    if not isinstance(name, ast.Constant) or not isinstance(name.value, str):
        return None
    whole = root_of(name.value) if dotted(inner.func) == "__import__" else name.value
    return ABSOLUTE + ".".join([whole, *reversed(parts)])


def imported_names(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    for alias in node.names:
        yield alias.asname or (root_of(alias.name) if isinstance(node, ast.Import) else alias.name)


def imported_by(nodes: Iterable[ast.AST]) -> dict[str, str]:
    """Return (name, reference) for the names that imports bind, as a dict. A reference is a text
    such as `>pack.module.name` or `>.sibling.name`.
    """
    imported: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                whole = alias.name if alias.asname else root_of(alias.name)
                imported[alias.asname or whole] = ABSOLUTE + whole
        elif isinstance(node, ast.ImportFrom):
            owner = "." * node.level + (node.module or "")
            dot = "" if owner.endswith(".") else "."
            names = [alias for alias in node.names if alias.name != "*"]
            imported.update((a.asname or a.name, f"{ABSOLUTE}{owner}{dot}{a.name}") for a in names)
    return imported


def from_import(name: str, imported: Mapping[str, str]) -> str:
    """Return a dotted name whose first part is replaced by what an import has bound the first part
    to. Return it unchanged if no import has bound it.
    """
    root = root_of(name)
    return imported[root] + name.removeprefix(root) if root in imported else name
