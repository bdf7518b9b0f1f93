"""Which names a function body reads from outside. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from monarch_reload.source.spelling import (
    FunctionNode,
    by_getattr,
    dotted,
    from_import,
    imported_by,
    imported_names,
    of_imported,
    root_of,
)

Comprehension = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def stored(node: ast.AST) -> Iterator[str]:
    for child in ast.walk(node):
        if isinstance(child, ast.Name) and not isinstance(child.ctx, ast.Load):
            yield child.id


def bound_by_pattern(node: ast.AST) -> str | None:
    if isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)):
        return node.name
    return node.rest if isinstance(node, ast.MatchMapping) else None


def header_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.expr]:
    """Yield the expressions that run when the `def` runs, without the decorators."""
    yield from node.args.defaults
    yield from (default for default in node.args.kw_defaults if default is not None)
    for argument in _arguments(node.args):
        if argument.annotation is not None:
            yield argument.annotation
    if node.returns is not None:
        yield node.returns


def _arguments(node: ast.arguments) -> list[ast.arg]:
    extra = [argument for argument in (node.vararg, node.kwarg) if argument is not None]
    return [*node.posonlyargs, *node.args, *node.kwonlyargs, *extra]


def parameters_of(node: ast.arguments) -> set[str]:
    return {argument.arg for argument in _arguments(node)}


def free_names(nodes: Iterable[ast.AST], local: set[str]) -> set[str]:
    """Return the dotted names that a function scope reads from outside itself."""
    loads: set[str] = set()
    stores = set(local)
    declared: set[str] = set()
    imported: dict[str, str] = {}
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Name):
            (loads if isinstance(node.ctx, ast.Load) else stores).add(node.id)
        elif isinstance(node, ast.Attribute) and (name := dotted(node)) is not None:
            loads.add(name)
        elif isinstance(node, ast.Attribute) and (name := of_imported(node)) is not None:
            imported[name] = name
            loads.add(name)
        elif isinstance(node, ast.Call) and (read := by_getattr(node)) is not None:
            loads.add(read)
            pending.extend([node.args[0], *node.args[2:]])
        elif isinstance(node, FunctionNode):
            stores.add(node.name)
            pending.extend([*node.decorator_list, *header_of(node)])
            loads |= free_names(node.body, parameters_of(node.args))
        elif isinstance(node, ast.Lambda):
            pending.extend(d for d in [*node.args.defaults, *node.args.kw_defaults] if d)
            loads |= free_names([node.body], parameters_of(node.args))
        elif isinstance(node, Comprehension):
            targets = {name for part in node.generators for name in stored(part.target)}
            loads |= free_names(ast.iter_child_nodes(node), targets)
        elif isinstance(node, ast.ClassDef):
            stores.add(node.name)
            pending.extend([*node.decorator_list, *node.bases, *node.keywords])
            loads |= free_names(node.body, set())
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            stores.update(imported_names(node))
            imported.update(imported_by([node]))
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            declared.update(node.names)
        else:
            bound = bound_by_pattern(node)
            if bound:
                stores.add(bound)
            pending.extend(ast.iter_child_nodes(node))
    # A function that imports reads the imported names when it is called.
    taken = {from_import(name, imported) for name in loads if root_of(name) in imported}
    return taken | {name for name in loads if root_of(name) not in stores - declared}
