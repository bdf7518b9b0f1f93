"""Which module imports which names from which. Pure."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import Enum
from functools import cached_property

import msgspec

from monarch_reload.live.tables import HeldDefinition
from monarch_reload.source.alignment import Alignment
from monarch_reload.source.spelling import ABSOLUTE, root_of
from monarch_reload.source.statements import Statement

# Where an imported name comes from: a module, and its name there, or None for the module itself.
Origin = tuple[str, str | None]


class NameKind(Enum):
    """The kind of value that a name of a running module has."""

    FUNCTION = "function"
    CLASS = "class"
    METACLASS = "metaclass"
    DATA = "data"  # a number, a text or the like, without state
    ROWS = "rows"  # a small list, dict or set of data, which running code may have added to
    OTHER = "other"


class ModuleEdit(msgspec.Struct, frozen=True, eq=False, dict=True):
    """The old and the new statements of a module, edited or not, and what its names are bound to in
    this process."""

    name: str
    package: str  # the package from which relative imports start
    old: Sequence[Statement]
    new: Sequence[Statement]
    alignment: Alignment
    kinds: Mapping[str, NameKind]
    keep: frozenset[str] = frozenset()
    rereads: frozenset[int] = frozenset()  # statements that name a config file that changed
    compiled: frozenset[str] = frozenset()  # names of compiled functions
    is_script: bool = False  # it is `__main__`, whose main guard has run
    is_program: bool = False  # its top level is a script's, which is run once
    types: Mapping[str, Sequence[tuple[str, str]]] = msgspec.field(default_factory=dict)
    """The module and name of the class and its bases, for names that hold instances."""
    modules: Mapping[str, str] = msgspec.field(default_factory=dict)
    """The names of the modules, for names that hold one."""
    origins: Mapping[str, Origin] = msgspec.field(default_factory=dict)
    """The origin of names that an `if` or `try` imports from one of several places."""

    tables: Mapping[str, frozenset[HeldDefinition]] = msgspec.field(
        default_factory=lambda: defaultdict(frozenset)
    )
    """The definitions in containers, by their dotted names; any name may be looked up."""

    exports_others: bool = False  # a star import of it will bring other names

    def names_module(self, name: str, module: str) -> bool:
        """Return whether a name may refer to a module, judged by its present value."""
        return name not in self.kinds or self.modules.get(name) == module

    def is_compiled(self, statement: Statement) -> bool:
        """Return whether a compiler, such as torch's, made the function that a statement binds. The
        names that the function reads then count as read by the statement."""
        return not statement.is_class and not statement.binds.isdisjoint(self.compiled)

    def never_runs(self, statement: Statement) -> bool:
        """Return whether a statement must not run again, because it is an action of a program."""
        return (self.is_script and statement.is_main_guard) or (
            self.is_program and not statement.is_harmless
        )

    @cached_property
    def binders(self) -> Mapping[str, Sequence[int]]:
        """The indexes of the new statements that bind each name."""
        binders = defaultdict(list)
        for index, statement in enumerate(self.new):
            for name in statement.binds:
                binders[name].append(index)
        return binders

    @cached_property
    def last_binders(self) -> Mapping[str, int]:
        """The index of the old statement that last bound each name."""
        return {name: i for i, statement in enumerate(self.old) for name in statement.binds}

    def live_definition(self, index: int) -> Statement | None:
        """Return the old statement that made the live object that the new statement ``index``
        replaces; None if there is none.

        If a name is defined twice, the last old definition made the live object. The new statement
        may come from the first.
        """
        statement = self.new[index]
        origin = self.alignment.source_of(index)
        if statement.is_definition and origin is not None:
            name = statement.name or ""
            origin = self.last_binders.get(name, origin)
            if self.old[origin].name != name:  # a branch that was not taken, perhaps
                definers = (i for i, statement in enumerate(self.old) if statement.name == name)
                origin = max(definers, default=origin)
        return None if origin is None else self.old[origin]

    @cached_property
    def gone(self) -> frozenset[str]:
        """Names that no new statement binds any more."""
        return frozenset(self.last_binders.keys() - self.binders.keys() - self.keep - {"*"})

    @cached_property
    def definitions(self) -> tuple[frozenset[str], frozenset[str]]:
        """The names that ``def`` and ``class`` statements bind: (before the edit, after it)."""
        before = frozenset(name for statement in self.old for name in statement.defines)
        return before, frozenset(name for statement in self.new for name in statement.defines)

    @cached_property
    def displaced(self) -> frozenset[str]:
        """The names that are last bound by another statement than before the edit, if that
        statement existed before, too.
        """
        after = {name: indexes[-1] for name, indexes in self.binders.items()}
        return frozenset(
            name
            for name, index in after.items()
            if name in self.last_binders
            and name not in self.keep
            and not self.never_runs(self.new[index])
            and self.alignment.source_of(index) not in (None, self.last_binders[name])
        ) - {"*"}

    @cached_property
    def bound_twice(self) -> frozenset[str]:
        """Names that several of the new statements bind."""
        names = {name for name, indexes in self.binders.items() if len(indexes) > 1}
        return frozenset(names - {"*"})


class ImportGraph:
    """The imports between some modules, by the names that they bind."""

    def __init__(self, loaded: Collection[str]) -> None:
        """``loaded`` are all loaded modules that can be reloaded, in import order."""
        self._import_order = {name: index for index, name in enumerate(loaded)}
        self._edits: dict[str, ModuleEdit] = {}
        self._sources: dict[str, dict[str, Origin]] = {}
        self._whole: dict[str, set[str]] = {}
        self._targets: dict[str, set[str]] = {}

    def add(self, edit: ModuleEdit) -> None:
        self._import_order.setdefault(edit.name, len(self._import_order))
        self._edits[edit.name] = edit
        self._sources[edit.name] = _sources(edit)
        self._whole[edit.name] = set(self._needed_whole(edit))

    def _needed_whole(self, edit: ModuleEdit) -> Iterator[str]:
        """Yield the modules that ``edit``'s module needs as a whole. They must have run before it,
        even if no name is bound to them: ``import a.b`` binds only ``a``.
        """
        for statement in edit.new:
            if isinstance(statement.node, ast.Import):
                yield from (alias.name for alias in statement.node.names)
            for dotted, _ in statement.names.eager:
                if dotted.startswith(ABSOLUTE):
                    yield self.resolve(edit.name, dotted)[0]

    def source(self, module: str, name: str) -> Origin | None:
        """Return the (module, name) from which a module last imported this name; None if it did not
        import it."""
        return self._sources[module].get(name)

    def module_of(self, module: str, name: str) -> str | None:
        """Return the module that a name refers to; None if no import has bound the name to a
        module.
        """
        source = self._sources.get(module, {}).get(name)
        if source is None:
            return None
        owner, inner = source
        if inner is None:
            return owner
        return self._submodule(module, name, f"{owner}.{inner}")

    def _submodule(self, module: str, name: str, full_name: str) -> str | None:
        """Return ``full_name`` if it is a loaded module and ``name`` refers to it; else None."""
        is_one = full_name in self._import_order and self._edits[module].names_module(
            name, full_name
        )
        return full_name if is_one else None

    def resolve(self, module: str, dotted: str) -> tuple[str, str, Sequence[str]]:
        """Resolve a dotted name that is used in ``module``.

        Returns (module, name, attributes): the module that has the object, its name there, and the
        attributes that are read of it.
        """
        if dotted.startswith(ABSOLUTE):
            return self._resolve_absolute(module, dotted.removeprefix(ABSOLUTE))
        head, *rest = dotted.split(".")
        source = self._sources.get(module, {}).get(head)
        if source is None:
            return module, head, rest
        owner, name = source
        if name is not None:
            submodule = self._submodule(module, head, f"{owner}.{name}")
            if submodule is None:
                return module, head, rest
            owner = submodule
        while rest and f"{owner}.{rest[0]}" in self._import_order:
            owner = f"{owner}.{rest.pop(0)}"
        if not rest:
            return module, head, ()
        return owner, rest[0], rest[1:]

    def _resolve_absolute(self, module: str, dotted: str) -> tuple[str, str, Sequence[str]]:
        rest = dotted.lstrip(".")
        level = len(dotted) - len(rest)
        parts = absolute_name(self._edits[module].package, rest, level).split(".")
        size = next((n for n in range(len(parts) - 1, 0, -1) if self._knows(parts[:n])), 0)
        if not size:
            return module, ABSOLUTE + dotted, ()
        return ".".join(parts[:size]), parts[size], parts[size + 1 :]

    def _knows(self, parts: Sequence[str]) -> bool:
        return ".".join(parts) in self._import_order

    def targets(self, module: str) -> set[str]:
        """Return the modules that a module imports names from, or that must have run before it."""
        if module not in self._targets:
            targets = self._targets[module] = set(self._whole[module])
            for owner, name in self._sources[module].values():
                targets |= {owner} if name is None else {owner, f"{owner}.{name}"}
        return self._targets[module]

    def _imported_late(self, module: str) -> set[str]:
        """Return the modules that functions of this module import only when they are called.
        Modules that themselves need this module are left out.
        """
        modules = {
            self.resolve(module, dotted)[0]
            for statement in self._edits[module].new
            for dotted in statement.names.deferred
            if dotted.startswith(ABSOLUTE)
        }
        return {m for m in modules if m in self._sources and module not in self._needs(m)}

    def _needs(self, module: str) -> set[str]:
        """Return a module, and all modules that it imports from, directly or through others."""
        needed: set[str] = set()
        pending = [module]
        while pending:
            current = pending.pop()
            if current not in needed and current in self._sources:
                needed.add(current)
                pending += self.targets(current)
        return needed

    def ordered(self) -> list[str]:
        """Return the modules with each imported module before its importers; cycles are broken by
        the order of import."""
        result: list[str] = []
        visiting: set[str] = set()

        def visit(name: str) -> None:
            if name in visiting or name not in self._sources:
                return
            visiting.add(name)
            targets = self.targets(name) | self._imported_late(name)
            for target in sorted(targets, key=lambda t: self._import_order.get(t, 0)):
                visit(target)
            result.append(name)

        for name in sorted(self._sources, key=lambda n: self._import_order.get(n, 0)):
            visit(name)
        return result


def _sources(edit: ModuleEdit) -> dict[str, Origin]:
    sources: dict[str, Origin] = {}
    for statement in edit.new:
        if isinstance(statement.node, ast.Delete):
            continue  # the statements above it have read the imported value
        for name in statement.binds:
            sources.pop(name, None)
        for name, source in imports_of(statement, edit.package):
            sources[name] = edit.origins.get(name, source)
    return sources


def imports_of(statement: Statement, package: str) -> Iterator[tuple[str, Origin]]:
    """Yield the names that a statement imports, each with its origin."""
    for node in statement.imports:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname:
                    yield alias.asname, (alias.name, None)
                else:
                    yield root_of(alias.name), (root_of(alias.name), None)
        else:
            owner = absolute_name(package, node.module, node.level)
            for alias in node.names:
                if alias.name != "*":
                    yield alias.asname or alias.name, (owner, alias.name)
    for owner, name in statement.brought or ():
        yield name, (owner, name)


def package_of(name: str, path: str) -> str:
    """Return the package in which a module's relative imports begin, from its name and file."""
    return name if path.endswith("/__init__.py") else name.rpartition(".")[0]


def absolute_name(package: str, module: str | None, level: int) -> str:
    if level == 0:
        return module or ""
    base = package.rsplit(".", level - 1)[0] if level > 1 else package
    return f"{base}.{module}" if module else base
