"""Chooses the definitions of which a trial needs staged copies: the statements of a plan call them,
while live code keeps the live ones. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from monarch_reload.plan.dirty_marks import DirtyMark
from monarch_reload.plan.graph import ModuleEdit, imports_of
from monarch_reload.plan.propagation import Propagation
from monarch_reload.source.names import Use
from monarch_reload.source.statements import Statement

_KEPT = (DirtyMark.KEPT, DirtyMark.INSTANCE)


def choose_twins(reach: Propagation) -> None:
    """Choose the functions and classes that get a staged copy for the trial. Statements that run in
    the trial call them, and the calls must run the new code.
    """
    pending = [
        (name, dotted)
        for name, plan in reach.plans.items()
        for statement in (plan.edit.new[index] for index in plan.run)
        for dotted in _read_now(reach, plan.edit, statement)
    ]
    reads: dict[tuple[str, str], set[tuple[str, str]]] = {}
    while pending:
        module, dotted = pending.pop()
        node: tuple[str, str] = reach.graph.resolve(module, dotted)[:2]
        if node[0] in reach.plans and reach.comes_from_getattr(*node):
            node = node[0], "__getattr__"
        if node in reads or node[0] not in reach.plans:
            continue
        reads[node] = set()
        for kind in reach.types(node[0]).get(node[1], ()):
            if kind in reach.members:
                # Its class, so that staged code sees the instance as it will be.
                reads[node].add(kind)
                pending.append(kind)
        for definition in reach.held(*node):
            reads[node].add((definition.module, definition.name))
            pending.append((definition.module, definition.name))
        for _, statement in _definitions(reach, node):
            package = reach.plans[node[0]].edit.package
            for name, (owner, inner) in imports_of(statement, package):
                if name == node[1] and inner is not None:
                    reads[node].add((owner, inner))
                    pending.append((owner, inner))
            held = {d for d, use in statement.names.eager if use is Use.BASE}
            if statement.is_holder:
                held = {d for d, _ in statement.names.eager}
            for name in statement.names.deferred | held:
                reads[node].add(reach.graph.resolve(node[0], name)[:2])
                pending.append((node[0], name))
    affected = {node for node in reads if reach.mark_of(*node) is not None}
    while True:
        more = {node for node, used in reads.items() if node not in affected}
        more = {node for node in more if reads[node] & affected}
        if not more:
            break
        affected |= more
    for node in affected:
        plan = reach.plans[node[0]]
        is_dispatcher = reach.held(*node) and reach.mark_of(*node) is None
        plan.twin |= {
            index
            for index, statement in _definitions(reach, node)
            if not (is_dispatcher and statement.is_function)  # its new entries go into the live one
        } - plan.run
        if reach.mark_of(*node) in _KEPT and node[1] in plan.edit.types:
            plan.disguised.add(node[1])
        if reach.held(*node) and plan.run.isdisjoint(plan.edit.binders.get(node[1], ())):
            plan.shadowed.add(node[1])


def _read_now(reach: Propagation, edit: ModuleEdit, statement: Statement) -> frozenset[str]:
    read = frozenset(name for name, _ in reach.reads(edit.name, statement))
    return read | statement.names.deferred if edit.is_compiled(statement) else read


def _definitions(reach: Propagation, node: tuple[str, str]) -> Iterator[tuple[int, Statement]]:
    edit = reach.plans[node[0]].edit
    for index in edit.binders.get(node[1], ()):
        statement = edit.new[index]
        makes_functions = statement.is_definition or index in edit.alignment.narrow
        takes_them = statement.is_import or statement.is_holder or node[1] in edit.origins
        if makes_functions or takes_them:
            yield index, statement
