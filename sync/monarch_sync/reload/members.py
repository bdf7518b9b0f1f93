"""Which attributes of a class behave differently after an edit. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence

from .alignment import align
from .statements import Statement

_RAN_ONCE = frozenset({"__init__", "__new__", "__del__", "__init_subclass__", "__set_name__"})


def changed_members(
    old: Statement | None,
    new: Statement,
    inherited: Collection[str],
    is_affected: Callable[[str], bool],
) -> frozenset[str]:
    """Names in the class `new` that mean something else than in `old`.

    `inherited` are those of its bases; `is_affected` tells whether a (dotted) name that a method
    reads stands for something that behaves differently. A method that uses such a member of its
    own class is one, too.
    """
    changed = set(_edited(old, new))
    own = {name for statement in new.body for name in statement.binds}
    changed |= set(inherited) - own
    for statement in new.body:
        if statement.is_function and any(map(is_affected, statement.names.deferred)):
            changed |= statement.binds
    while True:
        more = set(_users(new.body, changed)) - changed
        if not more:
            return frozenset(changed)
        changed |= more


def _edited(old: Statement | None, new: Statement) -> Iterator[str]:
    if old is None or not old.is_class or old.text == new.text:
        return
    alignment = align(old.body, new.body)
    for index, statement in enumerate(new.body):
        if index not in alignment.same:
            yield from statement.binds
    left = {name for statement in new.body for name in statement.binds}
    for statement in old.body:
        yield from statement.binds - left


def _users(body: Sequence[Statement], changed: Collection[str]) -> Iterator[str]:
    if not changed:
        return
    mentions = re.compile(rf"\.({'|'.join(map(re.escape, changed))})\b")
    for statement in body:
        if statement.is_function and mentions.search(statement.text):
            yield from statement.binds


def are_operators(members: Collection[str]) -> bool:
    """Whether one of them is used without being named, as `__add__` and `__call__` are."""
    return any(
        name.startswith("__") and name.endswith("__") and name not in _RAN_ONCE for name in members
    )
