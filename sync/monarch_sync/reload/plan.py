"""What an edit has to run, and in which order. Pure.

Marks say what happened to a name, and a table says which uses of it force a statement to run
again. State comes first: a function or class is patched in place, so whoever merely holds it
follows without running, and an instance follows its class. What was *computed* from a changed
value, by calling a changed function, or by looking into a changed class, is computed again.
A change also spreads through the functions that read it (`D = make()` follows `C` where `make`
reads `C`, or calls what does). Where only some members of a class changed, what was made of the
class stays, and what was read from those members follows: an edited layer does not rebuild the
model that is made of it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from .graph import ImportGraph, Kind, ModuleEdit
from .members import are_operators, changed_members
from .names import Use, dotted, root_of
from .statements import Statement, changed_functions
from .targets import targets_of


class Mark(IntEnum):
    """What an edit did to a name; the higher one wins."""

    KEPT = 1  # kept instance of a class some of whose members behave differently
    INSTANCE = 2  # kept instance of a class whose attributes differ
    METHODS = 3  # class: only methods behave differently
    FUNCTION = 4  # function: patched in place
    CALLING = 5  # function: it calls what was patched in place
    FLOWING = 6  # function: its result depends on a changed value
    SHAPE = 7  # class: attributes, bases or fields differ, patched in place
    VALUE = 8  # bound to something else, or gone


RUNS_AGAIN: Mapping[Mark, frozenset[Use]] = {
    # But for the members that differ, and for data: see `_Planner._forces`.
    Mark.KEPT: frozenset(),
    Mark.CALLING: frozenset(),
    # Not USED: an optimizer made of `model.parameters()` has state of its own.
    Mark.INSTANCE: frozenset({Use.INSIDE}),
    Mark.METHODS: frozenset({Use.USED}),
    Mark.FUNCTION: frozenset({Use.CALLED, Use.USED}),
    Mark.FLOWING: frozenset({Use.CALLED, Use.USED}),
    Mark.SHAPE: frozenset({Use.USED, Use.INSIDE, Use.BASE, Use.PASSED}),
    Mark.VALUE: frozenset(Use),
}


_CLASSES = (Kind.CLASS, Kind.METACLASS)
# Methods that have their say when a class statement runs; by whether theirs is a metaclass.
_MAKERS = {
    False: frozenset({"__init_subclass__"}),
    True: frozenset({"__init_subclass__", "__new__", "__init__", "__prepare__", "__call__"}),
}


@dataclass
class ModulePlan:
    edit: ModuleEdit
    run: set[int] = field(default_factory=set)
    twin: set[int] = field(default_factory=set)  # run too, but only for others to call
    marks: dict[str, Mark] = field(default_factory=dict)
    forced_by: dict[int, set[str]] = field(default_factory=dict)  # names read, for what runs


@dataclass(frozen=True)
class Plan:
    """Modules in the order in which their statements run."""

    modules: dict[str, ModulePlan]


Importers = Callable[[str, Collection[str]], Iterable[ModuleEdit]]


def make_plan(edits: Iterable[ModuleEdit], importers: Importers, known: Collection[str]) -> Plan:
    """`importers(module, names)` gives the loaded modules that may take `names` from `module`;
    `known` are all loaded modules of ours, in import order."""
    planner = _Planner(edits, importers, known)
    planner.spread()
    planner.choose_twins()
    return planner.plan()


class _Planner:
    def __init__(
        self, edits: Iterable[ModuleEdit], importers: Importers, known: Collection[str]
    ) -> None:
        self._importers = importers
        self._members: dict[tuple[str, str], frozenset[str]] = {}
        self._graph = ImportGraph(known)
        self.plans: dict[str, ModulePlan] = {}
        for edit in edits:
            self._add(edit)
            plan = self.plans[edit.name]
            plan.marks.update(dict.fromkeys(edit.gone, Mark.VALUE))

    def _add(self, edit: ModuleEdit) -> None:
        self.plans[edit.name] = ModulePlan(edit)
        self._graph.add(edit)

    def spread(self) -> None:
        """Mark and run until nothing more follows."""
        seen: dict[str, tuple[dict[str, Mark], int]] = {}
        asked: dict[str, set[str]] = {}
        while True:
            for plan in list(self.plans.values()):
                self._visit(plan)
            size = sum(map(len, self._members.values()))
            news = [n for n, plan in self.plans.items() if seen.get(n) != (plan.marks, size)]
            if not news:
                return
            for name in news:
                marks = dict(self.plans[name].marks)
                seen[name] = marks, size
                fresh = marks.keys() - asked.setdefault(name, set())
                asked[name] |= fresh
                for edit in self._importers(name, fresh) if fresh else ():
                    if edit.name not in self.plans:
                        self._add(edit)

    def _visit(self, plan: ModulePlan) -> None:
        edit = plan.edit
        for index, statement in enumerate(edit.new):
            if statement.is_main_guard or (statement.binds and statement.binds <= edit.keep):
                continue
            if statement.is_class:
                self._note_members(plan, index)
            if self._must_run(plan, index):
                plan.run.add(index)
                for name, written in self._written_to(edit, statement):
                    plan.marks[name] = max(written, plan.marks.get(name, written))
            for name in statement.binds - edit.keep:
                mark = self._mark(plan, index, name)
                if mark is not None and mark > plan.marks.get(name, 0):
                    plan.marks[name] = mark
            if "*" in statement.binds:
                for name, taken in self._taken_whole(edit):
                    plan.marks[name] = max(taken, plan.marks.get(name, taken))
            if index in plan.run and statement.is_opaque:
                plan.marks.update(dict.fromkeys(_bound_by_no_statement(edit), Mark.VALUE))
        # A name that the module deleted after use must be made again for whoever needs it.
        live = edit.kinds.keys()
        needed = {
            root_of(name) for index in plan.run for name, _ in edit.new[index].names.eager
        } - live
        for index, statement in enumerate(edit.new) if needed else ():
            if not needed.isdisjoint(statement.binds) and not statement.is_main_guard:
                plan.run.add(index)
        # `x = 1` and then `x += 1`: the second alone would start from the finished value.
        displaced = _displaced(edit)
        for name in _bound_twice(edit.new) | displaced:
            binders = {i for i, statement in enumerate(edit.new) if name in statement.binds}
            if name in displaced:
                plan.run.add(max(binders))
                plan.marks[name] = Mark.VALUE
            if plan.run & binders and not all(edit.new[i].is_definition for i in binders):
                plan.run |= {i for i in binders if not edit.new[i].is_main_guard}

    def _taken_whole(self, edit: ModuleEdit) -> list[tuple[str, Mark]]:
        """What `import *` brings that is not what it was."""
        owner = self.plans.get(self._graph.star(edit.name))
        own = {name for statement in edit.new for name in statement.binds} | edit.keep
        marks = owner.marks.items() if owner is not None else ()
        return [(n, mark) for n, mark in marks if n not in own and not n.startswith("_")]

    def _must_run(self, plan: ModulePlan, index: int) -> bool:
        alignment = plan.edit.alignment
        statement = plan.edit.new[index]
        if index not in alignment.same and index not in alignment.narrow:
            return True
        if index in plan.edit.rereads and statement.binds and not statement.is_definition:
            return True
        if statement.is_import:
            marks = {self.mark_of(plan.edit.name, name) for name in statement.binds}
            if "*" in statement.binds:
                owner = self.plans.get(self._graph.star(plan.edit.name))
                marks |= set(owner.marks.values()) if owner else set()
            return Mark.VALUE in marks
        return any(self._forcing(plan.edit.name, statement))

    def _forcing(self, module: str, statement: Statement) -> Iterator[str]:
        """The names it reads whose marks make it run again."""
        edit = self.plans[module].edit
        binds = statement.binds
        makes_data = bool(binds) and all(edit.kinds.get(n) is Kind.DATA for n in binds)
        makes_objects = not binds or not binds.isdisjoint(edit.types)
        for name, declared in statement.names.eager:
            mark, use = self._mark_and_use(module, name, declared)
            if mark is not None and use in RUNS_AGAIN[mark]:
                yield name
            elif mark is Mark.CALLING and use in (Use.CALLED, Use.USED):
                # A model that is made by way of an edited function has weights by now.
                if makes_data:
                    yield name
            elif self._forces(module, name, use) and not (makes_objects and use is Use.USED):
                yield name

    def _forces(self, module: str, dotted: str, use: Use) -> bool:
        """Whether it reads a changed member, or a module whose names changed as a whole."""
        owner, name, rest = self._graph.resolve(module, dotted)
        members = self._members_of(owner, name)
        if rest and rest[0] in members:
            return True
        if members and not rest and are_operators(members):
            return use not in (Use.PASSED, Use.BASE) and name in self._types(owner)
        whole = self._graph.module_of(module, dotted)
        if whole is not None and use in (Use.PASSED, Use.USED):
            return whole in self.plans and Mark.VALUE in self.plans[whole].marks.values()
        return name == "__dict__" and Mark.VALUE in self.plans[owner].marks.values()

    def _types(self, module: str) -> Mapping[str, Sequence[tuple[str, str]]]:
        return self.plans[module].edit.types if module in self.plans else {}

    def _note_members(self, plan: ModulePlan, index: int) -> None:
        """Which members of a class behave differently, because of an edit here or elsewhere."""
        edit, new = plan.edit, plan.edit.new[index]
        origin = edit.alignment.source_of(index)
        if origin is None or new.name is None:
            return
        inherited = {
            member
            for dotted, use in new.names.eager
            if use is Use.BASE
            for member in self._members_of(*self._graph.resolve(edit.name, dotted)[:2])
        }
        old = None if index in edit.alignment.same else edit.old[origin]
        found = changed_members(old, new, inherited, lambda d: bool(self._spread(edit.name, d)))
        if found:
            self._members[edit.name, new.name] = found

    def _spread(self, module: str, dotted: str) -> Mark | None:
        """What becomes of a function that reads the name."""
        owner, name, rest = self._graph.resolve(module, dotted)
        mark = self.mark_of(owner, name)
        if mark in (Mark.VALUE, Mark.FLOWING):
            return Mark.FLOWING
        calls = mark in (Mark.FUNCTION, Mark.CALLING)
        return (
            Mark.CALLING if calls or (rest and rest[0] in self._members_of(owner, name)) else None
        )

    def _members_of(self, module: str, name: str) -> frozenset[str]:
        """The members that differ, of a class or of an instance, through imports."""
        visited = set()
        while (module, name) not in visited and module in self.plans:
            visited.add((module, name))
            if (module, name) in self._members:
                return self._members[module, name]
            types = self._types(module).get(name)
            if types is not None:
                return frozenset().union(*(self._members.get(t, ()) for t in types))
            source = self._graph.source(module, name)
            if source is None or source[1] is None:
                break
            module, name = source[0], source[1]
        return frozenset()

    def _written_to(self, edit: ModuleEdit, statement: Statement) -> Iterator[tuple[str, Mark]]:
        """Names to whose values the statement assigns attributes or items."""
        for target in targets_of(statement.node):
            name = root_of(dotted(target.value) or "")
            if not name or name in statement.binds:
                continue
            if edit.kinds.get(name) is Kind.FUNCTION:
                yield name, Mark.FLOWING
            elif edit.kinds.get(name) in _CLASSES:
                yield name, Mark.SHAPE
            elif name in edit.kinds and self._graph.module_of(edit.name, name) is None:
                yield name, Mark.VALUE if isinstance(target, ast.Subscript) else Mark.INSTANCE

    def _mark(self, plan: ModulePlan, index: int, name: str) -> Mark | None:
        """What running, patching or its callees do to a name that this statement binds."""
        edit, statement = plan.edit, plan.edit.new[index]
        if statement.is_import:
            fresh = index not in edit.alignment.same
            return Mark.VALUE if fresh else self.mark_of(edit.name, name)
        if not statement.is_definition:
            if index in plan.run:
                return Mark.VALUE
            called = (
                self._mark_and_use(edit.name, dotted, use)
                for dotted, use in statement.names.eager
                if use is Use.CALLED
            )
            if (Mark.SHAPE, Use.CALLED) in called:
                return Mark.INSTANCE
            return Mark.KEPT if self._members_of(edit.name, name) else None
        origin = edit.alignment.source_of(index)
        kinds = _CLASSES if statement.is_class else (Kind.FUNCTION,)
        if index in plan.run and (origin is None or edit.kinds.get(name) not in kinds):
            return Mark.VALUE
        marks = [Mark.METHODS if statement.is_class else Mark.FUNCTION]
        if index in edit.alignment.narrow and statement.is_class:
            old = edit.old[edit.alignment.narrow[index]]
            makers = _MAKERS[edit.kinds.get(name) is Kind.METACLASS]
            if any(after.name in makers for _, after in changed_functions(old, statement)):
                marks.append(Mark.SHAPE)
        if index in plan.run:
            marks.append(Mark.SHAPE if statement.is_class else Mark.FUNCTION)
        reads = statement.names.deferred
        spread = {self._spread(edit.name, dotted) for dotted in reads}
        if index in edit.rereads or Mark.FLOWING in spread:
            marks.append(Mark.METHODS if statement.is_class else Mark.FLOWING)
        elif (edit.name, name) in self._members and index not in plan.run:
            marks.append(Mark.KEPT)
            if index in edit.alignment.same:
                return Mark.KEPT
        elif Mark.CALLING in spread and statement.is_function:
            marks.append(Mark.CALLING)
        elif index not in plan.run and (
            index in edit.alignment.same
            or edit.old[edit.alignment.narrow[index]].dump == statement.dump
        ):
            return None
        return max(marks)

    def _mark_and_use(self, module: str, dotted: str, use: Use) -> tuple[Mark | None, Use]:
        owner, name, inside = self._graph.resolve(module, dotted)
        if inside and use is not Use.USED:
            use = Use.USED if use is Use.CALLED else Use.INSIDE
        return self.mark_of(owner, name), use

    def mark_of(self, module: str, name: str) -> Mark | None:
        """The mark of a name, through the imports that brought it there."""
        visited = set()
        while (module, name) not in visited and module in self.plans:
            visited.add((module, name))
            mark = self.plans[module].marks.get(name)
            if mark is not None:
                return mark
            if self._comes_from_getattr(module, name):
                return Mark.VALUE if "__getattr__" in self.plans[module].marks else None
            source = self._graph.source(module, name)
            if source is None or source[1] is None:
                return None
            module, name = source[0], source[1]
        return None

    def _comes_from_getattr(self, module: str, name: str) -> bool:
        edit = self.plans[module].edit
        return "__getattr__" in edit.kinds and not (
            name in edit.kinds or any(name in statement.binds for statement in edit.new)
        )

    def choose_twins(self) -> None:
        """Statements that run call functions; those must already behave in the new way."""
        pending = [
            (name, dotted)
            for name, plan in self.plans.items()
            for index in plan.run
            for dotted, _ in plan.edit.new[index].names.eager
        ]
        reads: dict[tuple[str, str], set[tuple[str, str]]] = {}
        while pending:
            module, dotted = pending.pop()
            node: tuple[str, str] = self._graph.resolve(module, dotted)[:2]
            if node[0] in self.plans and self._comes_from_getattr(*node):
                node = node[0], "__getattr__"
            if node in reads or node[0] not in self.plans:
                continue
            reads[node] = set()
            source = self._graph.source(*node)
            if source is not None and source[1] is not None:
                reads[node].add((source[0], source[1]))
                pending.append((source[0], source[1]))
            for kind in self._types(node[0]).get(node[1], ()):
                if kind in self._members:
                    # Its class, so that the instance can be seen as it will be.
                    reads[node].add(kind)
                    pending.append(kind)
            for _, statement in self._definitions(node):
                bases = {d for d, use in statement.names.eager if use is Use.BASE}
                for name in statement.names.deferred | bases:
                    reads[node].add(self._graph.resolve(node[0], name)[:2])
                    pending.append((node[0], name))
        affected = {node for node in reads if self.mark_of(*node) is not None}
        while True:
            more = {node for node, used in reads.items() if node not in affected}
            more = {node for node in more if reads[node] & affected}
            if not more:
                break
            affected |= more
        for node in affected:
            plan = self.plans[node[0]]
            plan.twin |= {index for index, _ in self._definitions(node)} - plan.run

    def _definitions(self, node: tuple[str, str]) -> Iterator[tuple[int, Statement]]:
        for index, statement in enumerate(self.plans[node[0]].edit.new):
            if node[1] in statement.binds and (statement.is_definition or statement.is_import):
                yield index, statement

    def plan(self) -> Plan:
        for name, plan in self.plans.items():
            for index in plan.run:
                plan.forced_by[index] = set(self._forcing(name, plan.edit.new[index]))
        return Plan({name: self.plans[name] for name in self._graph.ordered()})


def _bound_by_no_statement(edit: ModuleEdit) -> set[str]:
    bound = {name for statement in (*edit.old, *edit.new) for name in statement.binds}
    return {name for name in edit.kinds.keys() - bound if not name.startswith("__")}


def _displaced(edit: ModuleEdit) -> set[str]:
    """Names whose last binder of old is not their last binder now, though both exist still."""
    before = {name: i for i, statement in enumerate(edit.old) for name in statement.binds}
    after = {name: i for i, statement in enumerate(edit.new) for name in statement.binds}
    return {
        name
        for name, index in after.items()
        if name in before
        and name not in edit.keep
        and not edit.new[index].is_main_guard
        and edit.alignment.source_of(index) not in (None, before[name])
    } - {"*"}


def _bound_twice(statements: Sequence[Statement]) -> set[str]:
    seen: set[str] = set()
    twice: set[str] = set()
    for statement in statements:
        twice |= seen & statement.binds
        seen |= statement.binds
    return twice - {"*"}
