"""Which names a top-level statement binds, and how it reads other names. Pure.

Reads are dotted (`config.limits.size`), because `import m` followed by `m.C` depends on `C` of `m`
and on nothing else of it. An eager read happens while the statement runs; a deferred one sits in a
function body and happens when the function is called.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from functools import cached_property

import msgspec

from monarch_reload.source.spelling import (
    WHOLE,
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


class Use(Enum):
    """How a statement uses the value of a name when it runs."""

    HELD = "held"  # kept or compared: follows by identity
    WITHIN = "within"  # read in a lambda, which may be called at once
    PASSED = "passed"  # argument of a call whose result is bound
    CALLED = "called"
    BASE = "base"  # base class
    INSIDE = "inside"  # an attribute is read
    USED = "used"  # a method is called, it decorates, it is iterated: what it does matters
    REGISTERS = "registers"  # an attribute of it decorates: `@app.route`


class Names(msgspec.Struct, frozen=True, dict=True):
    """The names that a statement binds and reads.

    ``eager`` are read when it runs, each with how the value is used; ``deferred`` are read when
    functions in it are called.
    """

    binds: frozenset[str]
    eager: frozenset[tuple[str, Use]]
    deferred: frozenset[str]
    items: frozenset[tuple[str, str, Use]] = frozenset()
    """Uses of containers' entries: (container, attribute that is read of an entry, how)."""

    @property
    def all(self) -> frozenset[str]:
        return self.deferred | {name for name, _ in self.eager}

    @cached_property
    def roots(self) -> frozenset[str]:
        """The names that the statement reads or binds, each without attributes: ``a`` for
        ``a.b``."""
        return frozenset(map(root_of, self.all)) | self.binds

    @cached_property
    def containers(self) -> frozenset[str]:
        return frozenset(container for container, _, _ in self.items)


def names_of(node: ast.stmt, deferred: Mapping[ast.AST, frozenset[str]] | None = None) -> Names:
    """Return the names that a statement binds and reads.

    ``deferred`` has, for functions that were analysed before, the names that their bodies read from
    outside the function.
    """
    reader = _Reader(Use.HELD if isinstance(node, ast.Expr) else Use.PASSED, deferred or {})
    reader.statement(node)
    reader.note_entries(reader.eager)
    return Names(
        frozenset(reader.binds),
        frozenset(reader.eager),
        frozenset(reader.deferred),
        frozenset(reader.items),
    )


class _Reader:
    """Collects the names of a statement, a class body or a comprehension from its syntax tree."""

    def __init__(self, argument: Use, deferred: Mapping[ast.AST, frozenset[str]]) -> None:
        self._argument = argument
        self._deferred_of = deferred
        self.binds: set[str] = set()
        self.eager: set[tuple[str, Use]] = set()
        self.deferred: set[str] = set()
        self.items: set[tuple[str, str, Use]] = set()
        self._entries: dict[str, set[str]] = {}  # by loop variable, the containers it runs through

    def note_entries(self, eager: Iterable[tuple[str, Use]]) -> None:
        """Record the reads of loop variables. They count as reads of the entries of the container
        over which the loop runs.
        """
        for name, use in eager:
            for container in self._entries.get(root_of(name), ()):
                self.items.add((container, name.partition(".")[2].partition(".")[0], use))

    def _runs_through(self, target: ast.expr, node: ast.expr) -> None:
        containers: set[str] = set()
        for name in _containers(node):
            containers |= self._entries.get(name, {name})
        for variable in stored(target):
            self._entries[variable] = containers

    def statement(self, node: ast.AST) -> None:
        if isinstance(node, FunctionNode):
            self._function(node)
        elif isinstance(node, ast.ClassDef):
            self._class(node)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            self.binds.update(imported_names(node))
        elif isinstance(node, ast.AugAssign):
            if isinstance(node.target, ast.Name):
                self.eager.add((node.target.id, Use.HELD))
            self._expression(node.target, Use.HELD)
            self._expression(node.value, Use.HELD)
        elif isinstance(node, (ast.For, ast.AsyncFor)):
            self._looped(node.iter)
            self._runs_through(node.target, node.iter)
            self._expression(node.target, Use.HELD)
            for statement in [*node.body, *node.orelse]:
                self.statement(statement)
        elif isinstance(node, ast.expr):
            self._expression(node, Use.HELD)
        else:
            name = bound_by_pattern(node)
            if name:
                self.binds.add(name)
            for child in ast.iter_child_nodes(node):
                self.statement(child)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.binds.add(node.name)
        self._decorators(node.decorator_list)
        for expression in header_of(node):
            self._expression(expression, Use.HELD)
        deferred = self._deferred_of.get(node)
        self.deferred |= (
            free_names(node.body, parameters_of(node.args)) if deferred is None else deferred
        )

    def _class(self, node: ast.ClassDef) -> None:
        self.binds.add(node.name)
        self._decorators(node.decorator_list)
        for base in node.bases:
            self._expression(base, Use.BASE)
        for keyword in node.keywords:
            self._expression(keyword.value, Use.BASE)
        body = _Reader(Use.PASSED, self._deferred_of)
        for child in node.body:
            body.statement(child)
        local = body.binds | {WHOLE}  # `vars()` in a class body is about the class
        imported = imported_by(node.body)
        self.eager |= {(name, Use.HELD) for name in imported.values()}
        for name, use in body.eager:
            name = from_import(name, imported)
            if root_of(name) not in local:
                self.eager.add((name, use))
        self.deferred |= body.deferred
        body.note_entries(body.eager)
        self.items |= {item for item in body.items if root_of(item[0]) not in local}

    def _decorators(self, nodes: list[ast.expr]) -> None:
        for node in nodes:
            decorator = node.func if isinstance(node, ast.Call) else node
            use = Use.REGISTERS if isinstance(decorator, ast.Attribute) else Use.USED
            self._expression(decorator, use)
            if isinstance(node, ast.Call):
                for argument in [*node.args, *(keyword.value for keyword in node.keywords)]:
                    self._expression(argument, Use.HELD)

    def _expression(self, node: ast.AST, use: Use) -> None:
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load):
                self.eager.add((node.id, use))
            else:
                self.binds.add(node.id)
        elif isinstance(node, ast.Attribute):
            name = dotted(node) or of_imported(node)
            if name is not None:
                self.eager.add((name, use))
            else:
                self._expression(node.value, Use.USED)
                self._read_entries(node, use)
        elif isinstance(node, ast.Call):
            self._expression(node.func, Use.USED if use is Use.USED else Use.CALLED)
            self._call_entries(node, use)
            if (name := by_getattr(node)) is not None:  # `getattr(m, "C")` reads `m.C`
                self.eager.add((name, Use.HELD))
            if _reads_all(node):
                self.eager.add((WHOLE, Use.HELD))
            called = list(_called_by(node))
            for argument in [*node.args, *(keyword.value for keyword in node.keywords)]:
                self._expression(argument, Use.CALLED if argument in called else self._argument)
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            self._expression(node.value, Use.USED)
            self._expression(node.slice, Use.HELD)
        elif isinstance(node, ast.Lambda):
            # It may be called by the very statement that makes it: its reads count now.
            self.eager |= {(name, Use.WITHIN) for name in free_names([node], set())}
        elif isinstance(node, Comprehension):
            self._comprehension(node)
        elif isinstance(node, ast.NamedExpr):
            self.binds.add(node.target.id)
            self._expression(node.value, Use.HELD)
        else:
            for child in ast.iter_child_nodes(node):
                self._expression(child, Use.HELD)

    def _comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
    ) -> None:
        inner = _Reader(self._argument, self._deferred_of)
        inner._entries.update(self._entries)
        for generator in node.generators:
            inner._runs_through(generator.target, generator.iter)
            inner._expression(generator.target, Use.HELD)
            inner._looped(generator.iter)
            for condition in generator.ifs:
                inner._expression(condition, Use.HELD)
        local = set(inner.binds)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                inner._expression(child, Use.HELD)
        self.binds |= inner.binds - local  # by `:=`
        self.eager |= {(name, use) for name, use in inner.eager if root_of(name) not in local}
        inner.note_entries(inner.eager)
        self.items |= {item for item in inner.items if root_of(item[0]) not in local}

    def _call_entries(self, node: ast.Call, use: Use) -> None:
        """Record that a call may call the entries of a container: ``TABLE["a"]()``,
        ``dispatch(x)``, ``table.get()``, ``run(STEPS)``."""
        name = dotted(node.func)
        if name is None:
            inner = Use.USED if use is Use.USED else Use.CALLED
            if not isinstance(node.func, ast.Attribute):
                self.items |= {(container, "", inner) for container in _containers(node.func)}
        else:
            self.items.add((name, "", Use.CALLED))
            self.items.add((name.rpartition(".")[0] or name, "", Use.WITHIN))
        called_on = node.args[1:] if list(_called_by(node)) else []
        self.items |= {
            (container, "", Use.CALLED) for part in called_on for container in _containers(part)
        }
        for argument in [*node.args, *(keyword.value for keyword in node.keywords)]:
            if (passed := dotted(argument)) is not None:
                self.items.add((passed, "", Use.PASSED))

    def _read_entries(self, node: ast.Attribute, use: Use) -> None:
        """Note a read of an attribute of a container's entry: `TABLE["a"].size`."""
        if isinstance(node.value, (ast.Subscript, ast.Call)):
            self.items |= {(container, node.attr, use) for container in _containers(node.value)}

    def _looped(self, node: ast.expr) -> None:
        """Note a loop over an expression: `for cls in (A, B)` reads the members of each."""
        if isinstance(node, (ast.Tuple, ast.List)):
            for part in node.elts:
                self._expression(part, Use.INSIDE)
        else:
            self._expression(node, Use.USED)


def _containers(node: ast.expr) -> Iterator[str]:
    """Yield the names of the containers in an expression, as in `enumerate(TABLE)`,
    `TABLE.values()`."""
    name = dotted(node)
    if name is not None:
        yield name
    elif isinstance(node, (ast.Subscript, ast.Starred)):
        yield from _containers(node.value)
    elif isinstance(node, (ast.Tuple, ast.List)):
        for part in node.elts:
            yield from _containers(part)
    elif isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute):
            yield from _containers(node.func.value)
        for argument in node.args:
            yield from _containers(argument)


_CALLERS = ("map", "filter", "reduce", "starmap", "accumulate")
_CALLERS_BY_KEY = ("sorted", "min", "max", "groupby")


def _called_by(node: ast.Call) -> Iterator[ast.expr]:
    """Yield the arguments that a function of the standard library will call, as `map` does."""
    name = (dotted(node.func) or "").rpartition(".")[2]
    if name in _CALLERS:
        yield from node.args[:2]
    if name in _CALLERS_BY_KEY:
        yield from (keyword.value for keyword in node.keywords if keyword.arg == "key")


_READ_ALL = ("globals", "vars", "locals", "dir")
_RUN_TEXT = ("exec", "eval")


def _reads_all(node: ast.Call) -> bool:
    """Return whether a call may read every name of its own module, as ``globals()`` and
    ``exec(text)`` do."""
    function, num = dotted(node.func), len(node.args)
    return (num == 0 and function in _READ_ALL) or (num == 1 and function in _RUN_TEXT)


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
