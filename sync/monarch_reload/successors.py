"""Questions about the definitions of an edited module: the functions they made, their successors,
and whether they register themselves."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from types import FunctionType
from typing import Any

from monarch_reload.live.patch import wraps
from monarch_reload.plan.edits import LiveModule
from monarch_reload.plan.graph import ModuleEdit
from monarch_reload.source.statements import Statement


def made_by(definition: Statement, module: LiveModule | None) -> Iterator[FunctionType]:
    """Yield the functions that a definition made, and the functions that wrap them, as a registry
    may refer to either."""
    if definition.is_function and module is not None:
        for function in module.functions_of(definition):
            yield function
            yield from module.wrappers_of(function)


def has_another_heir(
    edit: ModuleEdit, statement: Statement, origin: int | None, left_alone: Collection[int]
) -> bool:
    """Return whether the live object under a definition's name continues under another definition.

    `def _` may occur many times, each with a decorator that registers it. `left_alone` are new
    statements that may bind the name, but did not.
    """
    last = edit.last_binders.get(statement.name or "")
    if last is None or last == origin:
        return False
    if any(edit.alignment.source_of(index) == last for index in left_alone):
        return False
    return last in edit.alignment.inherited or edit.old[last].is_decorated


def is_decorated_anew(
    live: FunctionType, staged: FunctionType, old: Statement, new: Statement
) -> bool:
    """Return whether one function has new decorators around it, before and after the edit."""
    name = old.name if old.is_function and old.name == new.name else None
    return name is not None and wraps(live, name) and wraps(staged, name)


def was_one_of_several(edit: ModuleEdit, index: int) -> bool:
    """Return whether a definition is gone while others of its name remain, as with `def _`."""
    others = edit.binders.get(edit.old[index].name or "", ())
    return index not in edit.alignment.inherited and all(
        edit.new[other].is_definition for other in others
    )


def registers_itself(statement: Statement, live: Any) -> bool:
    """Return whether a definition had decorators, base classes or a metaclass of ours register it.

    Other definitions did not register themselves: if they are in a registry, other code put them
    there.
    """
    if statement.is_decorated:
        return True
    if not issubclass(type(live), type):
        return False
    makers = {type(live), *(b for b in live.__mro__[1:] if "__init_subclass__" in vars(b))}
    return any(maker.__module__ not in _STANDARD for maker in makers)


_STANDARD = ("builtins", "abc", "enum", "typing")
