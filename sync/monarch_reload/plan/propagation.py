"""How far the marks of an edit reach: through imports, functions, classes and their instances."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

from monarch_reload.live.tables import HeldDefinition
from monarch_reload.plan.dirty_marks import (
    RUNS_AGAIN,
    RUNS_AGAIN_AS_WRITTEN,
    DirtyMark,
    ModulePlan,
    When,
)
from monarch_reload.plan.graph import ImportGraph, ModuleEdit, NameKind, Origin
from monarch_reload.source.alignment import align
from monarch_reload.source.names import Use
from monarch_reload.source.spelling import ABSOLUTE, WHOLE, FunctionNode, dotted, root_of
from monarch_reload.source.statements import Statement

_BY_SUPER = r"\bsuper\([^()]*\)\s*"
_RAN_ONCE = frozenset({"__init__", "__new__", "__del__", "__init_subclass__", "__set_name__"})
_MAX_HOPS = 2
"""A function that calls an edited function is followed through so many other modules. Everything is
called by way of everything else in the end, and each module that is looked at takes its time."""


class Propagation:
    """Tells how the effect of an edit (`DirtyMark`) spreads from names to the statements that read
    them, according to the module plans made so far.

    ``members`` are the class members that behave differently, by (module, class).
    """

    def __init__(self, graph: ImportGraph, plans: Mapping[str, ModulePlan]) -> None:
        self.graph = graph
        self.plans = plans
        self.members: dict[tuple[str, str], frozenset[str]] = {}
        self.num_hops: dict[tuple[str, str], int] = {}

    def forcing(self, module: str, statement: Statement) -> Iterator[str]:
        """Yield the names that the statement reads and whose marks force it to run again."""
        edit = self.plans[module].edit
        binds = statement.binds
        data = (NameKind.DATA, NameKind.ROWS) if statement.is_computed_whole else (NameKind.DATA,)
        # A definition may leave None behind: its function is where the decorator has put it.
        makes_data = bool(binds) and not statement.is_definition
        makes_data = makes_data and all(edit.kinds.get(n) in data for n in binds)
        makes_objects = _makes_objects(edit, statement)
        for name, declared in self.reads(module, statement):
            mark, use = self.mark_and_use(module, name, declared)
            if mark is DirtyMark.METHODS and self._makes_instances_of(module, statement, name):
                continue  # they follow their class
            when = _when(mark, use, declared)
            is_method_call = use is Use.USED and declared is Use.CALLED
            is_method_call = is_method_call and _only_calls_method(statement, name)
            if mark is DirtyMark.FUNCTION and is_method_call:
                when = When.MAKER_RUNS
            if when is When.ALWAYS:
                yield name
            elif when is When.MAKER_RUNS:
                if self._runs(module, name):
                    yield name
            elif when is not None:
                is_made = when is When.BINDS_DATA_OR_IS_MADE and statement.is_definition
                if makes_data or (is_made and self._calls_edited(module, name)):
                    yield name
            elif name == WHOLE:
                if not self._found_by(edit, statement).isdisjoint(self._values(module)):
                    yield name
            elif self._forces(module, name, declared, use) and not (
                makes_objects and use is Use.USED
            ):
                yield name

    def acts_otherwise(self, module: str, dotted: str) -> bool:
        """Return whether a name acts differently after the edit: its function was patched or
        returns other values, or the name has another value.
        """
        mark = self.mark_of(*self.graph.resolve(module, dotted)[:2])
        return mark in (DirtyMark.FUNCTION, DirtyMark.FLOWING, DirtyMark.VALUE)

    def _calls_edited(self, module: str, decorator: str) -> bool:
        """Return whether a decorator calls an edited function.

        Functions that were registered with the decorator do not count, and calls through its
        registry do not either.
        """
        owner, name = self.marked(*self.graph.resolve(module, decorator)[:2])[1]
        edit = self.plans[owner].edit
        return any(
            self.acts_otherwise(owner, called)
            for index in edit.binders.get(name, ())
            for called in edit.new[index].names.deferred
        )

    def reads(self, module: str, statement: Statement) -> Iterator[tuple[str, Use]]:
        """Yield (name, how its value is used) for each name that the statement reads when it runs.

        A read of a container's entry counts as a read of the definitions in the container.
        """
        yield from statement.names.eager
        makes_objects = _makes_objects(self.plans[module].edit, statement)
        for container, attribute, use in statement.names.items:
            does = use in (Use.CALLED, Use.USED)
            for held in self.held(module, container):
                name = f"{ABSOLUTE}{held.module}.{held.name}"
                part = held.member or attribute
                if not held.is_instance:
                    yield (f"{name}.{part}" if part else name), use
                elif not part and use is not Use.CALLED:
                    yield name, use
                elif not (does and makes_objects) and self._differs(held, part or "__call__", does):
                    yield f"{name}.{part or '__call__'}", use

    def held(self, module: str, container: str) -> frozenset[HeldDefinition]:
        """Return the definitions in a container that are in modules of the plan."""
        definitions = self.plans[module].edit.tables[container] if module in self.plans else ()
        return frozenset([held for held in definitions if held.module in self.plans])

    def _differs(self, held: HeldDefinition, member: str, is_called: bool) -> bool:
        """Return whether a member behaves differently, for an instance that is not made again. If
        the member is not called, a possible change of its value counts, too.
        """
        mark = self.mark_of(held.module, held.name)
        is_shaped = mark in (DirtyMark.SHAPE, DirtyMark.VALUE) and not is_called
        return is_shaped or member in self.members_of(held.module, held.name)

    def holds_what_changed(self, module: str, container: str) -> bool:
        """Return whether a definition in a container behaves differently, so that a call through
        the container calls new code."""
        return any(
            self.mark_of(held.module, held.name) is not None
            or self.members_of(held.module, held.name)
            for held in self.held(module, container)
        )

    def _found_by(self, edit: ModuleEdit, statement: Statement) -> set[str]:
        """Return the names that a statement must find in the module when it runs: names bound by
        the statements above it, and names of the old module that no new statement binds.
        """
        above = itertools.takewhile(lambda other: other is not statement, edit.new)
        return {name for other in above for name in other.binds} | edit.gone

    def _values(self, module: str) -> set[str]:
        """Return the names of the module that are bound to other objects than before the edit, or
        are not bound any more.
        """
        marks = self.plans[module].marks if module in self.plans else {}
        return {name for name, mark in marks.items() if mark is DirtyMark.VALUE}

    def _makes_instances_of(self, module: str, statement: Statement, name: str) -> bool:
        """Return whether the class ``name`` decorates the function that a statement defines, so
        that the function's name is bound to an instance of that class."""
        types = self.plans[module].edit.types
        cls = self.marked(module, name)[1]
        return statement.is_function and all(
            cls in types.get(bound, ())[:1] for bound in statement.binds
        )

    def _forces(self, module: str, dotted: str, declared: Use, use: Use) -> bool:
        """Return whether a use of ``dotted`` makes the statement run again: the name is a changed
        member of a class, or a whole module in which names have changed.
        """
        is_held = declared in (Use.HELD, Use.PASSED)
        owner, name, rest = self.graph.resolve(module, dotted)
        members = self.members_of(owner, name)
        if rest and rest[0] in members:
            return not (is_held and len(rest) == 1 and self._is_method(owner, name, rest[0]))
        if members and not rest and _are_operators(members):
            return use not in (Use.PASSED, Use.BASE) and name in self.types(owner)
        whole = self.graph.module_of(module, dotted)
        if whole is not None and use in (Use.PASSED, Use.USED):
            return bool(self._values(whole))
        return name == WHOLE and bool(self._values(owner))

    def _is_method(self, module: str, name: str, member: str) -> bool:
        """Return whether a member of an instance is a plain method of its class. If somebody keeps
        the bound method, it runs the new code without being made again.
        """
        for owner, cls in self.types(module).get(name, ()):
            edit = self.plans[owner].edit if owner in self.plans else None
            for index in edit.binders.get(cls, ()) if edit is not None else ():
                body = edit.new[index].body if edit is not None and edit.new[index].is_class else ()
                binders = [statement for statement in body if member in statement.binds]
                if binders:
                    return all(
                        isinstance(s.node, FunctionNode) and not s.node.decorator_list
                        for s in binders
                    )
        return False

    def _runs(self, module: str, dotted: str) -> bool:
        """Return whether the reload runs the statement again that binds the name ``dotted``."""
        owner, name, _ = self.graph.resolve(module, dotted)
        owner, name = self.marked(owner, name)[1]
        plan = self.plans[owner]
        return any(name in plan.edit.new[index].binds for index in plan.run)

    def types(self, module: str) -> Mapping[str, Sequence[tuple[str, str]]]:
        return self.plans[module].edit.types if module in self.plans else {}

    def note_members(self, plan: ModulePlan, index: int) -> None:
        """Record which members of the class ``index`` behave differently. The reason may be an edit
        of the class, of its bases, or of code that it uses.
        """
        edit, new = plan.edit, plan.edit.new[index]
        origin = edit.alignment.source_of(index)
        if origin is None or new.name is None:
            return
        inherited = {
            member
            for dotted, use in new.names.eager
            if use is Use.BASE
            for member in self.members_of(*self.graph.resolve(edit.name, dotted)[:2])
        }
        affected = {d for d in new.names.deferred if self.spread(edit.name, d)[0]}
        moved = set()  # names from which the class body may compute other values now
        for name, use in new.names.eager:
            mark, use = self.mark_and_use(edit.name, name, use)
            if mark is not None and RUNS_AGAIN[mark].get(use) is When.ALWAYS:
                moved.add(name)
        old = None if index in edit.alignment.same else edit.old[origin]
        if old is None and not (inherited or affected or moved):
            return
        changed = _changed_members(old, new, inherited, affected, moved)
        if changed:
            self.members[edit.name, new.name] = changed

    def spread(self, module: str, dotted: str) -> tuple[DirtyMark | None, int]:
        """Return (mark, distance) for a function that reads ``dotted``. The distance is the number
        of module borders between the function and the edited code.

        The mark is None if the edit does not affect the name, or if the distance is too long.
        """
        if self._is_another(module, dotted):
            return DirtyMark.FLOWING, 0
        owner, name, rest = self.graph.resolve(module, dotted)
        mark, origin = self.marked(owner, name)
        if mark in (DirtyMark.VALUE, DirtyMark.FLOWING):
            return DirtyMark.FLOWING, 0
        if mark in (DirtyMark.FUNCTION, DirtyMark.CALLING):
            num_hops = self.num_hops.get(origin, 0) + (origin[0] != module)
            return (DirtyMark.CALLING, num_hops) if num_hops <= _MAX_HOPS else (None, 0)
        is_member = rest and rest[0] in self.members_of(owner, name)
        return (DirtyMark.CALLING if is_member else None), 0

    def members_of(self, module: str, name: str) -> frozenset[str]:
        """Return the members that behave differently, of a class or an instance. ``name`` may be
        imported into ``module``; empty if no member behaves differently.
        """
        visited = set()
        while (module, name) not in visited and module in self.plans:
            visited.add((module, name))
            if (module, name) in self.members:
                return self.members[module, name]
            types = self.types(module).get(name)
            if types is not None:
                return frozenset().union(*(self.members.get(t, ()) for t in types))
            source = self.graph.source(module, name)
            if source is None or source[1] is None:
                break
            module, name = source[0], source[1]
        return frozenset()

    def mark_and_use(self, module: str, dotted: str, use: Use) -> tuple[DirtyMark | None, Use]:
        owner, name, inside = self.graph.resolve(module, dotted)
        if use is Use.REGISTERS:
            use = use if inside else Use.USED
        elif inside and use is not Use.USED:
            use = Use.USED if use is Use.CALLED else Use.INSIDE
        if self._is_another(module, dotted):
            return DirtyMark.VALUE, use
        return self.mark_of(owner, name), use

    def _is_another(self, module: str, dotted: str) -> bool:
        """Return whether the first part of a dotted name is bound to another object than before the
        edit."""
        return self.plans[module].marks.get(root_of(dotted)) is DirtyMark.VALUE

    def mark_of_import(self, edit: ModuleEdit, name: str, source: Origin) -> DirtyMark | None:
        """Return the mark of a ``name`` that a module imports from ``source``. None if the edit
        does not affect the name, or if the name is bound to a module.
        """
        owner, inner = source
        if inner is None or owner not in self.plans or edit.modules.get(name) == f"{owner}.{inner}":
            return None
        return self.mark_of(owner, inner)

    def mark_of(self, module: str, name: str) -> DirtyMark | None:
        """Return the mark of a name, following the imports that brought it; None if the edit does
        not affect it."""
        return self.marked(module, name)[0]

    def marked(self, module: str, name: str) -> tuple[DirtyMark | None, tuple[str, str]]:
        """Return (mark, origin) of a name. The mark is None if the edit does not affect it.

        The origin is the (module, name) that imports lead to; for a name that was not imported, it
        is the name itself.
        """
        visited = set()
        while (module, name) not in visited and module in self.plans:
            visited.add((module, name))
            mark = self.plans[module].marks.get(name)
            source = self.graph.source(module, name)
            is_import = source is not None and source[1] is not None
            if mark is not None and not (mark is DirtyMark.CALLING and is_import):
                return mark, (module, name)
            if self.comes_from_getattr(module, name):
                is_marked = "__getattr__" in self.plans[module].marks
                return DirtyMark.VALUE if is_marked else None, (module, name)
            if source is None or source[1] is None:
                break
            module, name = source[0], source[1]
        return None, (module, name)

    def comes_from_getattr(self, module: str, name: str) -> bool:
        edit = self.plans[module].edit
        return "__getattr__" in edit.kinds and name not in edit.kinds and name not in edit.binders


def _when(mark: DirtyMark | None, use: Use, declared: Use) -> When | None:
    """Return when a statement runs again because of a name with this mark. ``use`` is how the value
    is used in the end, ``declared`` how the statement itself uses it.

    None if this use is no reason to run it again.
    """
    if mark is None:
        return None
    return RUNS_AGAIN[mark].get(use) or RUNS_AGAIN_AS_WRITTEN.get(mark, {}).get(declared)


def _makes_objects(edit: ModuleEdit, statement: Statement) -> bool:
    return not statement.binds or not statement.binds.isdisjoint(edit.types)


def _only_calls_method(statement: Statement, name: str) -> bool:
    """Return whether the statement only calls a method of a function: `f.register(g)`."""
    call = statement.node.value if isinstance(statement.node, ast.Expr) else None
    return isinstance(call, ast.Call) and dotted(call.func) == name


def _changed_members(
    old: Statement | None,
    new: Statement,
    inherited: Collection[str],
    affected: AbstractSet[str],
    moved: AbstractSet[str],
) -> frozenset[str]:
    """Return the names of the members of class `new` that behave otherwise than in `old`, members
    that use such a member included.

    `inherited` are changed members of its bases. `affected` are (dotted) names that behave
    differently when methods call them; `moved` are names whose value changed for the class body.
    """
    changed = set(_edited(old, new))
    bound = {name for statement in new.body for name in statement.binds}
    changed |= set(inherited) - bound
    changed |= set(_users(new.body, bound.intersection(inherited), _BY_SUPER))
    for statement in new.body:
        if statement.is_function:
            follows = not statement.names.deferred.isdisjoint(affected)
        else:
            read = {name for name, _ in statement.names.eager}
            follows = not statement.is_definition and bool(read & (moved | changed))
        if follows:
            changed |= statement.binds
    while True:
        users = set(_users(new.body, changed)) - changed
        if not users:
            return frozenset(changed)
        changed |= users


def _edited(old: Statement | None, new: Statement) -> Iterator[str]:
    if old is None or not old.is_class or old.text == new.text:
        return
    alignment = align(old.body, new.body)
    for index, statement in enumerate(new.body):
        if index not in alignment.same:
            yield from statement.binds
    remaining = {name for statement in new.body for name in statement.binds}
    for statement in old.body:
        yield from statement.binds - remaining


def _users(body: Sequence[Statement], changed: Collection[str], owner: str = "") -> Iterator[str]:
    """Yield the names of methods that mention one of the ``changed`` members as an attribute of
    ``owner``; if ``owner`` is "", as an attribute of anything.
    """
    if not changed:
        return
    mentions = re.compile(rf"{owner}\.({'|'.join(map(re.escape, changed))})\b")
    for statement in body:
        if statement.is_function and mentions.search(statement.text):
            yield from statement.binds


def _are_operators(members: Collection[str]) -> bool:
    """Return whether one of the members is an operator such as ``__add__``, which Python calls
    without its being named."""
    return any(
        name.startswith("__") and name.endswith("__") and name not in _RAN_ONCE for name in members
    )
