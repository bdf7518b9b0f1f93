"""Imports of deleted modules: loaded code goes on, but a new process will fail at them."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator

from monarch_reload.plan.graph import absolute_name, package_of
from monarch_reload.source.source import ModuleSource
from monarch_reload.source.spelling import catches, dotted

_EXPECTED = ("ImportError", "ModuleNotFoundError", "Exception", "BaseException")


def imports_of_gone(
    sources: Iterable[tuple[str, ModuleSource]], gone: Collection[str]
) -> Iterator[str]:
    """Yield a warning for each source line that imports one of the modules ``gone``.

    ``sources`` are the sources that will run, by module. An import is ignored if its failure is
    expected, or if it is for type checkers only.
    """
    last = [name.rpartition(".")[2].encode() for name in gone]
    for name, source in sources:
        if name in gone or not any(word in source.text for word in last):
            continue
        try:
            tree = ast.parse(source.text)
        except (SyntaxError, ValueError):
            continue
        for node in _imports(tree.body):
            for lost in sorted(_lost(node, package_of(name, source.path), gone)):
                yield (
                    f"{source.path}:{node.lineno} imports {lost}, which is gone; what starts later"
                    " will fail"
                )


def _lost(node: ast.Import | ast.ImportFrom, package: str, gone: Collection[str]) -> set[str]:
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    else:
        owner = absolute_name(package, node.module, node.level)
        names = [owner, *(f"{owner}.{alias.name}" for alias in node.names)]
    return {lost for lost in gone for name in names if name == lost or name.startswith(f"{lost}.")}


def _imports(body: Iterable[ast.AST]) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports that raise an error if they fail. Imports inside functions are among
    them."""
    for node in body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        elif isinstance(node, ast.Try) and catches(node, _EXPECTED):
            yield from _imports([*node.handlers, *node.finalbody])
        elif isinstance(node, ast.If) and (dotted(node.test) or "").endswith("TYPE_CHECKING"):
            yield from _imports(node.orelse)
        elif isinstance(node, (ast.With, ast.AsyncWith)) and any(map(_suppresses, node.items)):
            continue
        elif not isinstance(node, ast.expr):
            yield from _imports(ast.iter_child_nodes(node))


def _suppresses(item: ast.withitem) -> bool:
    call = item.context_expr
    return (
        isinstance(call, ast.Call)
        and (dotted(call.func) or "").rpartition(".")[2] == "suppress"
        and any(dotted(kind) in _EXPECTED for kind in call.args)
    )
