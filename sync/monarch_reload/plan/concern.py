"""Finds the statements that an edit may concern, so that the others need no look. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from monarch_reload.plan.dirty_marks import ModulePlan
from monarch_reload.plan.graph import ModuleEdit, imports_of
from monarch_reload.plan.propagation import Propagation
from monarch_reload.source.spelling import ABSOLUTE


class Concern:
    """Tells which statements of one module may lead to marks. It may name too many, never too
    few."""

    def __init__(self, reach: Propagation, edit: ModuleEdit) -> None:
        self._reach = reach
        self._edit = edit
        self._always = frozenset(self._always_concerned())
        self._num_members = -1
        self._from_others: frozenset[str] = frozenset()

    def _always_concerned(self) -> Iterator[int]:
        """Yield the statements that must always be looked at, whatever is marked."""
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
        """Find the names that were affected by other modules since the last call."""
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
        """Return whether an import refers to a module that the plan includes."""
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
