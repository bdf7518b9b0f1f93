"""Warnings about edited code: names that exist nowhere, and calls that do not fit."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from types import FunctionType

from monarch_reload.kinds import is_a
from monarch_reload.plan.graph import ModuleEdit, imports_of
from monarch_reload.plan.misfit_calls import Definitions, Function, misfit_calls
from monarch_reload.plan.unbound_names import may_be_unbound, unbound_names
from monarch_reload.source.alignment import changed_functions
from monarch_reload.source.source import ModuleSource
from monarch_reload.source.spelling import FunctionNode
from monarch_reload.source.statements import Statement

Namespaces = Callable[[str], Mapping[str, object]]
Sources = Callable[[str], ModuleSource | None]


_HOOK = "__reload__"
_NEVER_CALLED = f"{_HOOK} of a module is never called: it is a method of an actor's class"


class CodeWarnings:
    """Yields the warnings about one edited module, each with file and line.

    `sources` gives the new source of any module, `namespaces` its present namespace.
    """

    def __init__(
        self, edit: ModuleEdit, source: ModuleSource, sources: Sources, namespaces: Namespaces
    ) -> None:
        self._edit = edit
        self._source = source
        self._sources = sources
        self._namespaces = namespaces

    def __iter__(self) -> Iterator[str]:
        changed = list(self._changed())
        for line, name in sorted(set(self._unbound(changed))):
            yield f"{self._source.path}:{line}: name {name!r} is not defined"
        for statement in changed:
            if statement.is_function and statement.name == _HOOK:
                line = statement.node.lineno + statement.moved_by
                yield f"{self._source.path}:{line}: {_NEVER_CALLED}"
            calls = misfit_calls(statement.node, self._function, self._is_overridden)
            for misfit in calls:
                if misfit.owner is not None or self._is_sure(misfit.called):
                    line = misfit.line + statement.moved_by
                    yield f"{self._source.path}:{line}: {misfit}"

    def _changed(self) -> Iterator[Statement]:
        """Yield the new or edited definitions at the top level."""
        for index, statement in enumerate(self._edit.new):
            if statement.is_definition and index not in self._edit.alignment.same:
                yield statement

    def _edited(self, statement: Statement) -> Iterator[Statement]:
        """Yield the edited parts of a definition: of a class only the functions that changed, of
        any other definition all of it."""
        index = self._edit.new.index(statement)
        origin = self._edit.alignment.narrow.get(index)
        if origin is None:
            yield statement
        else:
            yield from (after for _, after in changed_functions(self._edit.old[origin], statement))

    def _unbound(self, changed: list[Statement]) -> Iterator[tuple[int, str]]:
        bound_names = {*self._namespaces(self._edit.name)} - self._edit.gone
        bound_names |= self._edit.binders.keys()
        for statement in changed:
            for part in self._edited(statement):
                lines = range(part.first, part.last + 1)
                codes = self._source.codes
                inside = (codes[place] for place in list(codes) if place[1] in lines)
                if any(may_be_unbound(code, bound_names) for code in inside):
                    unbound = unbound_names(self._source.code, self._source.tree, bound_names)
                    yield from ((line, name) for line, name in unbound if line in lines)

    def _function(self, dotted: str, module: str | None = None) -> Function | None:
        """Return the definition of the function that a dotted name refers to, in ``module`` or by
        an import of the edited module. None if it is not certain which function that is.
        """
        module = self._edit.name if module is None else module
        source = self._sources(module)
        root, _, rest = dotted.partition(".")
        if source is None:
            return None
        for statement in reversed(source.statements):
            if root not in statement.binds:
                continue
            if statement.is_function and not rest and not statement.is_decorated:
                return self._live(statement, module)
            if not statement.is_import or module != self._edit.name:
                return None
            for bound, (owner, inner) in imports_of(statement, self._edit.package):
                if bound == root and inner is not None and not rest:
                    return self._function(inner, owner)
                if bound == root and rest and "." not in rest:
                    return self._function(rest, owner if inner is None else f"{owner}.{inner}")
        return None

    def _live(self, statement: Statement, module: str) -> Function | None:
        """Return the syntax tree of a function definition. None if the running module has another
        object under its name, such as a decorated one.
        """
        assert isinstance(statement.node, FunctionNode)
        live = self._namespaces(module).get(statement.node.name)
        if live is not None and not is_a(live, FunctionType):
            return None
        code = live.__code__ if isinstance(live, FunctionType) else None
        if code is not None and code.co_name != statement.node.name:
            return None
        return statement.node

    def _is_sure(self, dotted: str) -> bool:
        """Return whether a dotted name certainly refers to one function: it is bound only once in
        this module, and only once in the module that defines the function.
        """
        root, _, rest = dotted.partition(".")
        if self._own_definitions.function(root) is not None:
            return not rest
        if not self._own_definitions.is_imported(root):
            return False
        for statement in self._edit.new:
            for bound, (owner, inner) in imports_of(statement, self._edit.package):
                if bound == root:
                    whole = owner if inner is None or not rest else f"{owner}.{inner}"
                    source = self._sources(whole)
                    name = rest or inner or ""
                    return source is not None and _definitions(source).function(name) is not None
        return False

    @cached_property
    def _own_definitions(self) -> Definitions:
        return _definitions(self._source)

    def _is_overridden(self, cls: str, method: str) -> bool:
        live = self._namespaces(self._edit.name).get(cls)
        if not isinstance(live, type):
            subclassed = self._own_definitions.subclassed.get(cls, ())
            return any(method in ast.dump(subclass) for subclass in subclassed)
        return any(method in vars(subclass) for subclass in _subclasses(live))


def _subclasses(cls: type) -> Iterator[type]:
    subclasses: list[type] = type.__subclasses__(cls)
    for subclass in subclasses:
        yield subclass
        yield from _subclasses(subclass)


def _definitions(source: ModuleSource) -> Definitions:
    return Definitions([statement.node for statement in source.statements])
