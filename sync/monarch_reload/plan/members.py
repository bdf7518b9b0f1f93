"""Which attributes of a class behave differently after an edit. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from collections.abc import Set as AbstractSet

from monarch_reload.source.alignment import align
from monarch_reload.source.statements import Statement

_BY_SUPER = r"\bsuper\([^()]*\)\s*"
_RAN_ONCE = frozenset({"__init__", "__new__", "__del__", "__init_subclass__", "__set_name__"})


def changed_members(
    old: Statement | None,
    new: Statement,
    inherited: Collection[str],
    affected: AbstractSet[str],
    moved: AbstractSet[str],
) -> frozenset[str]:
    """Return names in the class `new` whose meaning differs from `old`.

    `inherited` are changed names of its bases; `affected` the (dotted) names whose behaviour
    changed for methods, `moved` the names whose value changed for the class body. A method that
    uses such a member of its own class is included.
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
    """Yield the methods that read one of these members, as an attribute of ``owner`` or, if that is
    "", of anything."""
    if not changed:
        return
    mentions = re.compile(rf"{owner}\.({'|'.join(map(re.escape, changed))})\b")
    for statement in body:
        if statement.is_function and mentions.search(statement.text):
            yield from statement.binds


def are_operators(members: Collection[str]) -> bool:
    """Return whether Python calls one of the members without naming it, as `__add__` and
    `__call__`."""
    return any(
        name.startswith("__") and name.endswith("__") and name not in _RAN_ONCE for name in members
    )
