"""Find calls of workspace functions with arguments that those do not take. Pure.

Only if it is certain which function is called: its module defines it once, at the top level and
without decorators, or a class defines the method so and no subclass overrides it.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import msgspec

from monarch_reload.source.spelling import FunctionNode, catches, dotted, walk_scope

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Misfit(msgspec.Struct, frozen=True):
    """A call that would raise TypeError. `owner` is the class, if a method is called through
    `self`."""

    line: int
    called: str
    why: str
    owner: str | None = None

    def __str__(self) -> str:
        return f"{self.called}() {self.why}"


class Definitions:
    """The functions and classes at the top level of a module. A name is looked up only if the
    module's text shows that it cannot refer to anything else.
    """

    def __init__(self, body: Sequence[ast.stmt]) -> None:
        self._body = body

    @cached_property
    def _binders(self) -> Mapping[str, Sequence[ast.AST]]:
        """Return all nodes that may bind a top-level name, at any depth, by name."""
        binders: dict[str, list[ast.AST]] = {}
        for node in self._walked():
            if isinstance(node, (ast.Global, ast.Nonlocal)):
                for name in node.names:
                    binders.setdefault(name, []).append(node)
        for statement in self._body:
            for node in walk_scope(statement):
                for name in _bound_by(node):
                    binders.setdefault(name, []).append(node)
        return binders

    def function(self, name: str) -> Function | None:
        node = self._only(name)
        is_plain = isinstance(node, FunctionNode) and not node.decorator_list
        return node if is_plain else None  # type: ignore[return-value]

    def is_assigned_once(self, name: str) -> bool:
        """Return whether one plain assignment at the top level is the only binder of a name."""
        binders = self._binders.get(name, ())
        targets = [
            target
            for node in self._body
            if isinstance(node, (ast.Assign, ast.AnnAssign))
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        ]
        return len(binders) == 1 and any(binders[0] is target for target in targets)

    def is_imported(self, name: str) -> bool:
        """Return whether an import at the top level is the only binder of a name."""
        return isinstance(self._only(name), (ast.Import, ast.ImportFrom))

    def _walked(self) -> Iterator[ast.AST]:
        for statement in self._body:
            yield from ast.walk(statement)

    def _only(self, name: str) -> ast.AST | None:
        """Return the only top-level statement that may bind a name; None if several may, or
        none."""
        binders = self._binders.get(name, ())
        is_plain = len(binders) == 1 and any(binders[0] is node for node in self._body)
        return binders[0] if is_plain else None

    @cached_property
    def subclassed(self) -> Mapping[str, Sequence[ast.ClassDef]]:
        """The classes that have a base class, by the last part of the base class's name."""
        subclasses: dict[str, list[ast.ClassDef]] = {}
        for node in self._walked():
            if isinstance(node, ast.ClassDef):
                for base in node.bases:
                    subclasses.setdefault((dotted(base) or "").rpartition(".")[2], []).append(node)
        return subclasses


Find = Callable[[str], Function | None]
"""The function that a dotted name of the module stands for, as far as can be seen."""


def misfit_calls(
    definition: ast.stmt, find: Find, overridden: Callable[[str, str], bool]
) -> Iterator[Misfit]:
    """Yield the calls in a top-level function or class that would raise TypeError.

    ``overridden(class, method)`` tells whether a subclass may override the method.
    """
    local = {name for node in ast.walk(definition) for name in _bound_by(node)}
    local -= {getattr(definition, "name", "")}
    skipped = set(_prepared_for_errors(definition))
    for call in _calls(definition, skipped):
        name = dotted(call.func)
        if name is None or name.partition(".")[0] in local:
            continue
        called = find(name)
        if called is not None and (why := _misfit(called.args, call)):
            yield Misfit(call.lineno, name, why)
    if isinstance(definition, ast.ClassDef):
        yield from _of_methods(definition, overridden, skipped)


def _of_methods(
    cls: ast.ClassDef, overridden: Callable[[str, str], bool], skipped: Collection[ast.AST]
) -> Iterator[Misfit]:
    """Yield the calls ``self.method(...)`` in a class that would raise TypeError. Only methods that
    this class itself defines are checked.
    """
    methods = [node for node in cls.body if isinstance(node, FunctionNode)]
    bound = [name for node in cls.body for part in walk_scope(node) for name in _bound_by(part)]
    assigned = {
        node.attr
        for node in ast.walk(cls)
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load)
    }
    plain = {
        node.name: node
        for node in methods
        if not node.decorator_list
        and bound.count(node.name) == 1
        and node.name not in assigned
        and node.args.args + node.args.posonlyargs
        and not node.name.startswith("__")
        and not _is_to_be_defined(node)
    }
    for method in methods:
        parameters = [*method.args.posonlyargs, *method.args.args]
        if method.decorator_list or not parameters:
            continue
        me = parameters[0].arg
        rebound = sum(me in _bound_by(node) for node in ast.walk(method))
        for call in _calls(method, skipped) if rebound == 1 else ():
            owner, _, name = (dotted(call.func) or "").partition(".")
            if owner != me or name not in plain or overridden(cls.name, name):
                continue
            if why := _misfit(plain[name].args, call, is_bound=True):
                yield Misfit(call.lineno, f"{owner}.{name}", why, cls.name)


def _is_to_be_defined(method: Function) -> bool:
    """Return whether a method's body looks like a placeholder that subclasses override."""
    last = method.body[-1]
    return isinstance(last, (ast.Raise, ast.Pass)) or (
        isinstance(last, ast.Expr) and isinstance(last.value, ast.Constant)
    )


def _calls(node: ast.AST, skipped: Collection[ast.AST]) -> Iterator[ast.Call]:
    for part in ast.walk(node):
        if isinstance(part, ast.Call) and part not in skipped:
            yield part


def _misfit(arguments: ast.arguments, call: ast.Call, *, is_bound: bool = False) -> str | None:
    """Return why a call would raise TypeError; ``None`` if it fits, or if that is unknown."""
    if any(isinstance(argument, ast.Starred) for argument in call.args):
        return None
    names = [keyword.arg for keyword in call.keywords if keyword.arg is not None]
    if len(names) != len(call.keywords):
        return None
    try:
        _signature(arguments).bind(*[0] * (len(call.args) + is_bound), **dict.fromkeys(names))
    except TypeError as error:
        return _in_words(str(error), arguments, call, is_bound)
    return None


def _in_words(error: str, arguments: ast.arguments, call: ast.Call, is_bound: bool) -> str:
    if error == "too many positional arguments":
        most = len(arguments.posonlyargs) + len(arguments.args) - is_bound
        return f"takes {most} positional argument{'' if most == 1 else 's'}, not {len(call.args)}"
    return f"is {error}" if error.startswith("missing") else error


def _signature(arguments: ast.arguments) -> inspect.Signature:
    """Return the signature of a function with these arguments; each default is None."""
    none = ast.Constant(None)
    plain = ast.arguments(
        posonlyargs=arguments.posonlyargs,
        args=arguments.args,
        vararg=arguments.vararg,
        kwonlyargs=arguments.kwonlyargs,
        kw_defaults=[default and none for default in arguments.kw_defaults],
        kwarg=arguments.kwarg,
        defaults=[none for _ in arguments.defaults],
    )
    function = ast.fix_missing_locations(ast.Expression(ast.Lambda(plain, none)))
    return inspect.signature(eval(compile(function, "", "eval", dont_inherit=True)))


def _bound_by(node: ast.AST) -> Iterable[str]:
    """Return the names that a node itself binds, without those of its children."""
    if isinstance(node, ast.arg):
        return (node.arg,)
    if isinstance(node, ast.Name):
        return () if isinstance(node.ctx, ast.Load) else (node.id,)
    if isinstance(node, (*FunctionNode, ast.ClassDef)):
        return (node.name,)
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return [alias.asname or alias.name.partition(".")[0] for alias in node.names]
    if isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)):
        return () if node.name is None else (node.name,)
    if isinstance(node, ast.MatchMapping):
        return () if node.rest is None else (node.rest,)
    name = getattr(node, "name", None)  # of a type, and of its parameters
    return (name,) if isinstance(name, str) and not isinstance(node, ast.alias) else ()


_CAUGHT = frozenset({"TypeError", "Exception", "BaseException"})


def _prepared_for_errors(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes in a `try` that catches a TypeError, or in a `with` that expects one."""
    for part in ast.walk(node):
        body: Sequence[ast.AST] = ()
        if isinstance(part, ast.Try) and catches(part, _CAUGHT):
            body = part.body
        elif isinstance(part, (ast.With, ast.AsyncWith)):
            expecting = [
                dotted(getattr(item.context_expr, "func", item.context_expr)) or ""
                for item in part.items
            ]
            if any(word in name.lower() for name in expecting for word in ("raises", "suppress")):
                body = part.body
        for statement in body:
            yield from ast.walk(statement)
