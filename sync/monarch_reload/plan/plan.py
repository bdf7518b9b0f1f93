"""The plan of an edit: which statements have to run, and in which order. Pure.

Marks say what happened to a name, and a table says which uses of it force a statement to run again.
State is kept if possible: a function or class is patched in place, so an object that only refers to
it follows without a run, and an instance follows its class. A value that was *computed* from a
changed value, by calling a changed function, or by looking into a changed class, is computed again.
A change also spreads through the functions that read it (`D = make()` follows `C` where `make`
reads `C`, or calls a function that does). Where only some members of a class changed, objects made
of the class stay, and values read from those members are computed again: an edited layer does not
rebuild the model that is made of it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from monarch_reload.live.targets import called_on, targets_of
from monarch_reload.plan.dirty_marks import DirtyMark, EditPlan, ModulePlan
from monarch_reload.plan.graph import ImportGraph, ModuleEdit, NameKind, absolute_name, imports_of
from monarch_reload.plan.propagation import Propagation
from monarch_reload.plan.staged_copies import choose_twins
from monarch_reload.source.alignment import changed_functions, differ_in_bodies_only
from monarch_reload.source.names import Use
from monarch_reload.source.spelling import ABSOLUTE, dotted, root_of
from monarch_reload.source.statements import Statement

_FILLED_ONCE = ("argparse", "ArgumentParser")
_CLASSES = (NameKind.CLASS, NameKind.METACLASS)
# Methods that take part when classes are made, of classes (False) and of metaclasses (True).
_MAKERS = {
    False: frozenset({"__init_subclass__"}),
    True: frozenset({"__init_subclass__", "__new__", "__init__", "__prepare__", "__call__"}),
}


Importers = Callable[[str, Collection[str]], Iterable[ModuleEdit]]


def make_plan(
    edits: Iterable[ModuleEdit],
    importers: Importers,
    loaded: Collection[str],
    check: Callable[[], None] = lambda: None,
) -> EditPlan:
    """Return the plan of some edits.

    ``importers(module, names)`` returns the loaded modules that may import ``names`` from
    ``module``; ``loaded`` are all loaded modules that can be reloaded, in import order. ``check``
    is called now and then; it raises to cancel the work.
    """
    planner = _Planner(importers, ImportGraph(loaded), check)
    for edit in edits:
        planner.add(edit)
    planner.spread()
    return planner.plan()


class _Planner:
    """Marks names and chooses statements, over and over, until nothing changes any more."""

    def __init__(self, importers: Importers, graph: ImportGraph, check: Callable[[], None]) -> None:
        self._importers = importers
        self._graph = graph
        self._check = check
        self.plans: dict[str, ModulePlan] = {}
        self._reach = Propagation(graph, self.plans)
        self._concerns: dict[str, _Concern] = {}

    def add(self, edit: ModuleEdit) -> None:
        self.plans[edit.name] = ModulePlan(edit, marks=dict.fromkeys(edit.gone, DirtyMark.VALUE))
        self._graph.add(edit)
        self._concerns[edit.name] = _Concern(self._reach, edit)

    def spread(self) -> None:
        """Spread marks, and choose the statements to run, until nothing changes any more."""
        asked: dict[str, set[str]] = {}
        pending = set(self.plans)
        while pending:
            visited = [name for name in list(self.plans) if name in pending]
            changed = [n for n in visited if self._visit(n) or (n not in asked and self._lacks(n))]
            pending = set()
            for name in changed:
                plan = self.plans[name]
                fresh = plan.marks.keys() - asked.setdefault(name, set())
                if plan.edit.exports_others:
                    fresh |= {"__all__"} - asked[name]
                asked[name] |= fresh
                for edit in self._importers(name, fresh) if fresh else ():
                    if edit.name not in self.plans:
                        self.add(edit)
                        pending.add(edit.name)
                pending.add(name)
                pending |= {other for other in self.plans if self._looks_at(other, name)}

    def _lacks(self, module: str) -> bool:
        """Return whether the edit removes names, or exports others than before. Then the modules
        that import from this module must be looked at.
        """
        edit = self.plans[module].edit
        return bool(edit.gone) or edit.exports_others

    def _looks_at(self, module: str, other: str) -> bool:
        types = self.plans[module].edit.types.values()
        return other in self._graph.targets(module) or any(
            owner == other for bases in types for owner, _ in bases
        )

    def _visit(self, name: str) -> bool:
        """Mark the statements and names of a module. Return whether anything is new: a mark, a
        statement to run or a changed member.
        """
        self._check()
        plan, members = self.plans[name], self._reach.members
        before = dict(plan.marks), set(plan.run), {k: v for k, v in members.items() if k[0] == name}
        self._mark_all(plan)
        after = plan.marks, plan.run, {k: v for k, v in members.items() if k[0] == name}
        return before != after

    def _mark_all(self, plan: ModulePlan) -> None:
        edit, concern = plan.edit, self._concerns[plan.edit.name]
        concern.look_around()
        for index, statement in enumerate(edit.new):
            if not concern.of(plan, index):
                continue
            if edit.never_runs(statement) or (statement.binds and statement.binds <= edit.keep):
                continue
            if statement.is_class:
                self._reach.note_members(plan, index)
            if self._must_run(plan, index):
                plan.run.add(index)
                for name, written in self._written_to(edit, statement):
                    plan.marks[name] = max(written, plan.marks.get(name, written))
            for name in statement.binds - edit.keep:
                mark = self._mark(plan, index, name)
                if mark is not None and mark > plan.marks.get(name, 0):
                    plan.marks[name] = mark
            if index in plan.run and statement.is_opaque:
                plan.marks.update(dict.fromkeys(_bound_by_no_statement(edit), DirtyMark.VALUE))
        # A name that the module deleted after use must be made again for the code that needs it.
        live = edit.kinds.keys()
        needed = {
            root_of(name) for index in plan.run for name, _ in edit.new[index].names.eager
        } - live
        for index, statement in enumerate(edit.new) if needed else ():
            if not needed.isdisjoint(statement.binds) and not edit.never_runs(statement):
                plan.run.add(index)
        # `x = 1` and then `x += 1`: the second alone would start from the finished value.
        displaced = edit.displaced
        for name in edit.bound_twice | displaced:
            binders = set(edit.binders[name])
            if name in displaced:
                plan.run.add(max(binders))
                plan.marks[name] = DirtyMark.VALUE
            if plan.run & binders and not all(edit.new[i].is_definition for i in binders):
                plan.run |= {i for i in binders if not edit.never_runs(edit.new[i])}
        for name, types in edit.types.items():
            if _FILLED_ONCE in types and name not in edit.keep:
                self._fill_again(plan, name)

    def _fill_again(self, plan: ModulePlan, name: str) -> None:
        """Run all statements that make or fill the object ``name``, if one of them runs or was
        removed: ``parser.add_argument``, for example, does not take an option twice."""
        edit = plan.edit
        origins = {edit.alignment.source_of(index) for index in range(len(edit.new))}
        is_less = any(_fills(s, name) for i, s in enumerate(edit.old) if i not in origins)
        fillers = {i for i, statement in enumerate(edit.new) if _fills(statement, name)}
        if is_less or plan.run & fillers:
            plan.run |= fillers
            plan.marks[name] = DirtyMark.VALUE

    def _must_run(self, plan: ModulePlan, index: int) -> bool:
        alignment = plan.edit.alignment
        statement = plan.edit.new[index]
        if index not in alignment.same and index not in alignment.narrow:
            return True
        if index in plan.edit.rereads and statement.binds and not statement.is_definition:
            return True
        if statement.imports and self._imports_anew(plan, index):
            return True
        if statement.is_import:
            return False
        forcing = self._reach.forcing(plan.edit.name, statement)
        return any(forcing) or (
            plan.edit.is_compiled(statement)
            and any(self._reach.spread(plan.edit.name, name)[0] for name in statement.names.all)
        )

    def _imports_anew(self, plan: ModulePlan, index: int) -> bool:
        """Return whether the import ``index`` binds other objects now than before the edit."""
        edit, statement = plan.edit, plan.edit.new[index]
        origin = edit.alignment.source_of(index)
        if origin is not None and edit.old[origin].brought != statement.brought:
            return True
        for name, source in imports_of(statement, edit.package):
            if self._reach.mark_of_import(edit, name, source) is DirtyMark.VALUE:
                return True
        return statement.is_star and self._may_export_others(edit, statement)

    def _may_export_others(self, edit: ModuleEdit, statement: Statement) -> bool:
        """Return whether a star import may bring unknown names: the exporting module of the plan
        computes its names when it runs.
        """
        assert isinstance(statement.node, ast.ImportFrom)
        node = statement.node
        owner = self.plans.get(absolute_name(edit.package, node.module, node.level))
        return owner is not None and (
            owner.marks.get("__all__") is DirtyMark.VALUE
            or any(owner.edit.new[index].is_opaque for index in owner.run)
        )

    def _written_to(
        self, edit: ModuleEdit, statement: Statement
    ) -> Iterator[tuple[str, DirtyMark]]:
        """Yield (name, mark) for each name whose value the statement changes in place, by assigning
        an attribute or item of it, or by adding rows to it."""
        for owner in called_on(statement.node):
            name = dotted(owner) or ""
            if edit.kinds.get(name) is NameKind.ROWS and name not in statement.binds:
                yield name, DirtyMark.VALUE
        for target in targets_of(statement.node):
            name = root_of(dotted(target.value) or "")
            if not name or name in statement.binds:
                continue
            if edit.kinds.get(name) is NameKind.FUNCTION:
                yield name, DirtyMark.FLOWING
            elif edit.kinds.get(name) in _CLASSES:
                yield name, DirtyMark.SHAPE
            elif name in edit.kinds and self._graph.module_of(edit.name, name) is None:
                is_item = isinstance(target, ast.Subscript)
                yield name, DirtyMark.VALUE if is_item else DirtyMark.INSTANCE

    def _mark(self, plan: ModulePlan, index: int, name: str) -> DirtyMark | None:
        """Return the mark of a name that a statement binds: the statement runs, or is patched, or
        calls code that changed. None if the edit does not affect the name.
        """
        edit, statement = plan.edit, plan.edit.new[index]
        if statement.is_import:
            source = next((s for n, s in imports_of(statement, edit.package) if n == name), None)
            if source is None:
                return None
            if index in edit.alignment.same:
                return self._reach.mark_of_import(edit, name, source)
            module = source[0] if source[1] is None else f"{source[0]}.{source[1]}"
            return None if edit.modules.get(name) == module else DirtyMark.VALUE
        if not statement.is_definition:
            if index in plan.run:
                return DirtyMark.VALUE
            if index in edit.alignment.narrow:
                return DirtyMark.FUNCTION
            called = (
                self._reach.mark_and_use(edit.name, dotted, use)
                for dotted, use in statement.names.eager
                if use is Use.CALLED
            )
            if (DirtyMark.SHAPE, Use.CALLED) in called:
                return DirtyMark.INSTANCE
            if statement.is_holder and (mark := self._mark_of_holder(edit, statement, name)):
                return mark
            if self._reach.holds_what_changed(edit.name, name):
                return DirtyMark.CALLING
            return DirtyMark.KEPT if self._reach.members_of(edit.name, name) else None
        origin = edit.alignment.source_of(index)
        kinds = _CLASSES if statement.is_class else (NameKind.FUNCTION,)
        if index in plan.run and (origin is None or edit.kinds.get(name) not in kinds):
            return DirtyMark.VALUE
        marks = [DirtyMark.METHODS if statement.is_class else DirtyMark.FUNCTION]
        if self._makes_others(plan, index):
            marks.append(DirtyMark.SHAPE)
        if index in plan.run and statement.is_class and not self._only_decorates_anew(plan, index):
            marks.append(DirtyMark.SHAPE)
        reads = statement.names.deferred
        spread = [self._reach.spread(edit.name, dotted) for dotted in reads]
        calling = [num_hops for mark, num_hops in spread if mark is DirtyMark.CALLING]
        if index in edit.rereads or any(mark is DirtyMark.FLOWING for mark, _ in spread):
            marks.append(DirtyMark.METHODS if statement.is_class else DirtyMark.FLOWING)
        elif (edit.name, name) in self._reach.members and index not in plan.run:
            marks.append(DirtyMark.KEPT)
            if index in edit.alignment.same and DirtyMark.SHAPE not in marks:
                return DirtyMark.KEPT
        elif calling and statement.is_function:
            marks.append(DirtyMark.CALLING)
            if max(marks) is DirtyMark.CALLING or index in edit.alignment.same:
                self._reach.num_hops[edit.name, name] = min(calling)
                return DirtyMark.CALLING
        elif index not in plan.run and (
            index in edit.alignment.same
            or edit.old[edit.alignment.narrow[index]].dump == statement.dump
        ):
            return max(marks) if DirtyMark.SHAPE in marks else None
        return max(marks)

    def _makes_others(self, plan: ModulePlan, index: int) -> bool:
        """Return whether edited code takes part in making a class's subclasses or instances.

        It does if ``__init_subclass__`` or a similar method of the class was edited, or uses edited
        code.
        """
        edit, statement = plan.edit, plan.edit.new[index]
        if not statement.is_class:
            return False
        names = _MAKERS[edit.kinds.get(statement.name or "") is NameKind.METACLASS]
        if not any(name in statement.text for name in names):
            return False
        makers = [s for s in statement.body if s.is_function and s.name in names]
        old = edit.alignment.narrow.get(index)
        if old is not None:
            changed = [after for _, after in changed_functions(edit.old[old], statement)]
            if any(maker in changed for maker in makers):
                return True
        return any(
            self._reach.acts_otherwise(edit.name, name)
            for maker in makers
            for name in maker.names.deferred
        )

    def _mark_of_holder(
        self, edit: ModuleEdit, statement: Statement, name: str
    ) -> DirtyMark | None:
        """Return the mark of a name whose value refers to functions that behave differently, so
        that a call of the value calls them. None if it refers to no such function.
        """
        spread = [self._reach.spread(edit.name, dotted) for dotted, _ in statement.names.eager]
        num_hops = [num for mark, num in spread if mark in (DirtyMark.CALLING, DirtyMark.FLOWING)]
        if not num_hops:
            return None
        self._reach.num_hops[edit.name, name] = min(num_hops)
        return DirtyMark.CALLING

    def _only_decorates_anew(self, plan: ModulePlan, index: int) -> bool:
        """Return whether a class statement runs again only for the decorators of its methods, which
        may read a value that has changed. Of the statement itself, only function bodies differ.
        """
        statement, origin = plan.edit.new[index], plan.edit.alignment.renewed.get(index)
        if origin is None or not differ_in_bodies_only(plan.edit.old[origin], statement):
            return False
        return not any(self._reach.forcing(plan.edit.name, statement))

    def plan(self) -> EditPlan:
        choose_twins(self._reach)
        for name, plan in self.plans.items():
            for index in plan.run:
                plan.forced_by[index] = set(self._reach.forcing(name, plan.edit.new[index]))
        return EditPlan({name: self.plans[name] for name in self._graph.ordered()})


class _Concern:
    """Tells which statements of one module a planner has to look at, because they may get or pass
    on a mark. It may name too many, never too few."""

    def __init__(self, reach: Propagation, edit: ModuleEdit) -> None:
        self._reach = reach
        self._edit = edit
        self._always = frozenset(self._always_concerned())
        self._num_members = -1
        self._from_others: frozenset[str] = frozenset()

    def _always_concerned(self) -> Iterator[int]:
        """Yield the indexes of the statements that the planner must look at in each round,
        whichever names are marked.
        """
        edit = self._edit
        for index, statement in enumerate(edit.new):
            origin = edit.alignment.same.get(index)
            may_read_any = statement.is_star or statement.reads_whole or "__getattr__" in edit.kinds
            imports_inside = bool(statement.imports) and not statement.is_import
            if (
                origin is None
                or index in edit.rereads
                or edit.old[origin].brought != statement.brought
                or may_read_any
                or imports_inside
                or edit.is_compiled(statement)
                or any(name[0] == ABSOLUTE for name in statement.names.roots)
            ):
                yield index

    def look_around(self) -> None:
        """Update the names of this module that edits of other modules may affect, according to the
        present plan.
        """
        reach, edit = self._reach, self._edit
        self._num_members = len(reach.members)
        taken = {
            name
            for statement in edit.new
            for name, (owner, inner) in imports_of(statement, edit.package)
            if self._has_news(owner, inner)
        }
        members = {name for module, name in reach.members if module == edit.name}
        instances = {n for n, types in edit.types.items() if any(t in reach.members for t in types)}
        self._from_others = frozenset(taken | members | instances)

    def _has_news(self, owner: str, inner: str | None) -> bool:
        """Return whether the plan includes the module that an import reads, or a module inside it.
        The import is of ``inner`` from ``owner``, or of ``owner`` itself if ``inner`` is None.
        """
        plans = self._reach.plans
        whole = owner if inner is None else f"{owner}.{inner}"
        return owner in plans or any(
            name == whole or name.startswith(f"{whole}.") for name in plans
        )

    def of(self, plan: ModulePlan, index: int) -> bool:
        if index in self._always or index in plan.run:
            return True
        if len(self._reach.members) != self._num_members:
            self.look_around()
        statement = plan.edit.new[index]
        roots = statement.names.roots
        if not (roots.isdisjoint(plan.marks) and roots.isdisjoint(self._from_others)):
            return True
        containers = statement.names.containers
        if not statement.is_definition:
            containers |= statement.binds
        tables, plans = plan.edit.tables, self._reach.plans
        return any(held.module in plans for container in containers for held in tables[container])


def _bound_by_no_statement(edit: ModuleEdit) -> set[str]:
    names = edit.kinds.keys() - edit.last_binders.keys() - edit.binders.keys()
    return {name for name in names if not name.startswith("__")}


def _fills(statement: Statement, name: str) -> bool:
    """Return whether the statement may change the object ``name``: it binds the name, or calls a
    method of the object, or passes the object to a call.
    """
    is_call = isinstance(statement.node, ast.Expr)
    reads = {root_of(dotted) for dotted, _ in statement.names.eager}
    return name in statement.binds or (is_call and name in reads)


_MADE_BY = "torch._library.custom_ops"


def leave_out(plan: ModulePlan, live: Mapping[str, Any]) -> dict[str, str]:
    """Remove from the plan the statements that make torch operators, which cannot be made twice.
    Return the reason for each name that they bind."""
    refused = {}
    for index in plan.run | plan.twin:
        for name in plan.edit.new[index].binds & live.keys():
            if type(live[name]).__module__ == _MADE_BY:
                refused[name] = "an operator of torch cannot be defined a second time"
                plan.run.discard(index)
                plan.twin.discard(index)
    return refused
