"""Who takes which names from whom. Pure."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

from .names import ABSOLUTE, root_of
from .statements import Alignment, Statement


class Kind(Enum):
    """What a name of a running module holds."""

    FUNCTION = "function"
    CLASS = "class"
    METACLASS = "metaclass"
    DATA = "data"  # a number, a text or the like: nothing with a life of its own
    OTHER = "other"


@dataclass(frozen=True, eq=False)
class ModuleEdit:
    """One module, edited or not, with what its names hold in this process."""

    name: str
    package: str  # what relative imports start from
    old: Sequence[Statement]
    new: Sequence[Statement]
    alignment: Alignment
    kinds: Mapping[str, Kind]
    keep: frozenset[str] = frozenset()
    rereads: frozenset[int] = frozenset()  # statements that name a config file that changed
    compiled: frozenset[str] = frozenset()  # names of what a compiler made
    is_program: bool = False  # its top level is still running, as that of a plain script does
    types: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)
    """Of names that hold instances: the module and name of their class and of its bases."""

    def is_compiled(self, statement: Statement) -> bool:
        """Whether a compiler made what it binds: it reads all that its functions read."""
        return not statement.is_class and not statement.binds.isdisjoint(self.compiled)

    def never_runs(self, statement: Statement) -> bool:
        """What a program does it does once."""
        return statement.is_main_guard or (self.is_program and not statement.is_harmless)

    @cached_property
    def gone(self) -> frozenset[str]:
        before = {name for statement in self.old for name in statement.binds}
        return frozenset(before - {name for s in self.new for name in s.binds} - self.keep - {"*"})


class ImportGraph:
    """The imports of some modules, by the names that they bind."""

    def __init__(self, known: Collection[str]) -> None:
        """`known` are all loaded modules of ours, in import order."""
        self._known = {name: index for index, name in enumerate(known)}
        self._sources: dict[str, dict[str, tuple[str, str | None]]] = {}
        self._packages: dict[str, str] = {}
        self._whole: dict[str, set[str]] = {}
        self._targets: dict[str, set[str]] = {}

    def add(self, edit: ModuleEdit) -> None:
        self._known.setdefault(edit.name, len(self._known))
        self._sources[edit.name] = dict(_imports(edit))
        self._packages[edit.name] = edit.package
        self._whole[edit.name] = set(self._needed_whole(edit))

    def _needed_whole(self, edit: ModuleEdit) -> Iterator[str]:
        """Modules that must have run, though no name of theirs is bound: `import a.b` binds `a`."""
        for statement in edit.new:
            if isinstance(statement.node, ast.Import):
                yield from (alias.name for alias in statement.node.names)
            for dotted, _ in statement.names.eager:
                if dotted.startswith(ABSOLUTE):
                    yield self.resolve(edit.name, dotted)[0]

    def source(self, module: str, name: str) -> tuple[str, str | None] | None:
        """Where an imported name comes from."""
        sources = self._sources[module]
        if name in sources or "*" not in sources or name.startswith("_"):
            return sources.get(name)
        return sources["*"][0], name

    def star(self, module: str) -> str:
        return self._sources[module]["*"][0]

    def module_of(self, module: str, name: str) -> str | None:
        """The module that a name stands for, if an import bound it to one."""
        source = self._sources.get(module, {}).get(name)
        if source is None:
            return None
        owner, inner = source
        if inner is None:
            return owner
        return f"{owner}.{inner}" if f"{owner}.{inner}" in self._known else None

    def resolve(self, module: str, dotted: str) -> tuple[str, str, Sequence[str]]:
        """(module, name in it, the attributes that are read of that name's value)."""
        if dotted.startswith(ABSOLUTE):
            return self._resolve_absolute(module, dotted.removeprefix(ABSOLUTE))
        head, *rest = dotted.split(".")
        source = self._sources.get(module, {}).get(head)
        if source is None:
            return module, head, rest
        owner, name = source
        if name is not None and f"{owner}.{name}" in self._known:
            owner, name = f"{owner}.{name}", None
        if name is not None:
            return module, head, rest
        while rest and f"{owner}.{rest[0]}" in self._known:
            owner = f"{owner}.{rest.pop(0)}"
        if not rest:
            return module, head, ()
        return owner, rest[0], rest[1:]

    def _resolve_absolute(self, module: str, dotted: str) -> tuple[str, str, Sequence[str]]:
        rest = dotted.lstrip(".")
        level = len(dotted) - len(rest)
        parts = absolute_name(self._packages[module], rest, level).split(".")
        size = next((n for n in range(len(parts) - 1, 0, -1) if self._knows(parts[:n])), 0)
        if not size:
            return module, ABSOLUTE + dotted, ()
        return ".".join(parts[:size]), parts[size], parts[size + 1 :]

    def _knows(self, parts: Sequence[str]) -> bool:
        return ".".join(parts) in self._known

    def targets(self, module: str) -> set[str]:
        """The modules that a module takes names from, or needs."""
        if module not in self._targets:
            sources = self._sources[module].values()
            named = {target for source in sources for target in _modules_of(source)}
            self._targets[module] = named | self._whole[module]
        return self._targets[module]

    def ordered(self) -> list[str]:
        """Imported modules before their importers; cycles break where the import order says."""
        result: list[str] = []
        visiting: set[str] = set()

        def visit(name: str) -> None:
            if name in visiting or name not in self._sources:
                return
            visiting.add(name)
            for target in sorted(self.targets(name), key=lambda t: self._known.get(t, 0)):
                visit(target)
            result.append(name)

        for name in sorted(self._sources, key=lambda n: self._known.get(n, 0)):
            visit(name)
        return result


def _modules_of(source: tuple[str, str | None]) -> tuple[str, ...]:
    return (source[0],) if source[1] is None else (source[0], f"{source[0]}.{source[1]}")


def _imports(edit: ModuleEdit) -> Iterator[tuple[str, tuple[str, str | None]]]:
    """(local name, (module, name there or None for the module itself))."""
    for statement in edit.new:
        for node in statement.imports:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.asname:
                        yield alias.asname, (alias.name, None)
                    else:
                        yield root_of(alias.name), (root_of(alias.name), None)
            else:
                owner = absolute_name(edit.package, node.module, node.level)
                for alias in node.names:
                    yield alias.asname or alias.name, (owner, alias.name)


def absolute_name(package: str, module: str | None, level: int) -> str:
    if level == 0:
        return module or ""
    base = package.rsplit(".", level - 1)[0] if level > 1 else package
    return f"{base}.{module}" if module else base
