"""Removed assignments to objects of other modules, as `other.FLAG = 1` or `Class.method = f`.

The earlier value can be made again if one of our modules binds it: the plan then treats the
statement that binds the name as new, or a statement that bound it as deleted. Otherwise, if the
value is code that replaced other code, a new process is needed. A plain value stays, like any other
effect of a program, and the report says so.
"""

from __future__ import annotations

import ast
import copy
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from types import FunctionType, MethodType, ModuleType
from typing import Any

import msgspec
from msgspec.structs import replace

from monarch_reload.kinds import is_a, own_names
from monarch_reload.live.registries import Registry, change
from monarch_reload.live.targets import targets_of, value_of
from monarch_reload.plan.graph import ModuleEdit
from monarch_reload.source.source import RunningSources
from monarch_reload.source.statements import Statement
from monarch_reload.undo_log import MISSING, Action

_PLAIN = (bool, int, float, str, bytes, type(None))
_CODE = (FunctionType, MethodType, type, property, classmethod, staticmethod)


class RemovedAssignment(msgspec.Struct, frozen=True):
    """An assignment to an attribute or an item that an edit has removed.

    ``place`` is the assigned attribute, as (module, class or "", name). If the reload runs its
    definition again, the effect of the assignment is gone. None if no such definition is known.
    ``removal`` is the action that deletes an assigned item; None if there is none.
    """

    line: int
    title: str
    is_code: bool
    place: tuple[str, str, str] | None = None
    removal: Action | None = None

    @property
    def reason(self) -> str:
        return f"line {self.line} is gone, and the value before it is not known"

    def __str__(self) -> str:
        return f"{self.title}: {self.reason}, so what it set stays as long as this process lives"


def removed_by(
    edit: ModuleEdit, sources: RunningSources, texts: Iterable[bytes]
) -> Iterator[RemovedAssignment]:
    """Yield the assignments to attributes and items that an edit removes.

    ``texts`` are all new sources. An assignment is not yielded if one of them may still assign the
    same attribute.
    """
    namespace = vars(sys.modules[edit.name])
    whole = b"\n".join(texts).decode("utf-8", "replace")
    assigned = {ast.unparse(target) for new in edit.new for target in targets_of(new.node)}
    for index, old in enumerate(edit.old):
        if index in edit.alignment.inherited or old.is_definition:
            continue
        for target in targets_of(old.node):
            key = _key_of(target)
            if key is MISSING or ast.unparse(target) in assigned or _is_named(key, target, whole):
                continue
            owner = value_of(target.value, namespace)
            if owner is not MISSING and _is_there(target, old, namespace):
                removed = RemovedAssignment(
                    old.first, old.title, is_a(value_of(target, namespace), _CODE)
                )
                yield _followed(removed, owner, key, isinstance(target, ast.Subscript), sources)


def _followed(
    removed: RemovedAssignment, owner: Any, key: Any, is_item: bool, sources: RunningSources
) -> RemovedAssignment:
    """Return the removed assignment with its ``place`` or ``removal`` filled in, if its effect can
    be undone so; otherwise unchanged.

    ``owner`` is the object to which ``key`` was assigned; ``is_item``: as an item, not as an
    attribute.
    """
    if is_item:
        is_ours = type(owner) is dict and _is_made_without(owner, key, sources)
        removal = Action(lambda: change(Registry(owner), lambda entries: entries.pop(key, None)))
        return replace(removed, removal=removal) if is_ours else removed
    if is_a(owner, ModuleType):
        name = own_names(owner).get("__name__", "")
        place = (name, "", key)
    elif is_a(owner, type):
        name = owner.__module__
        place = (name, owner.__qualname__, key)
    else:
        return removed
    if "__wrapped__" in own_names(vars(owner).get(key)):
        return removed  # a wrapper: other code may hold the function that it wraps
    is_ours = name in sources and (
        not place[1] or any(s.is_class and s.name == place[1] for s in sources[name].statements)
    )
    return replace(removed, place=place) if is_ours else removed


def as_if(
    statements: tuple[Statement, ...], places: Collection[tuple[str, str]]
) -> tuple[Statement, ...]:
    """Return a module's statements with a change that makes a plan run those that bind the names in
    `places`.
    """
    changed = list(statements)
    for cls, name in places:
        if not cls:
            _bind_otherwise(changed, name)
            continue
        index = next(i for i, s in enumerate(changed) if s.is_class and s.name == cls)
        node = copy.copy(changed[index].node)
        assert isinstance(node, ast.ClassDef)
        body = list(changed[index].body)
        _bind_otherwise(body, name)
        node.body = [ast.copy_location(part.node, node) for part in body if not part.first]
        node.body += [part.node for part in body if part.first]
        changed[index] = replace(changed[index], node=node, text=f"{changed[index].text}  # {name}")
    return tuple(changed)


def _bind_otherwise(statements: list[Statement], name: str) -> None:
    binders = [index for index, statement in enumerate(statements) if name in statement.binds]
    if binders:
        del statements[binders[-1]]
    else:
        node = ast.parse(f"{name} = None").body[0]
        statements.append(Statement(node, f"{name} = None  # from elsewhere", 0, 0, ()))


def _key_of(target: ast.Attribute | ast.Subscript) -> Any:
    if isinstance(target, ast.Attribute):
        return target.attr
    return target.slice.value if isinstance(target.slice, ast.Constant) else MISSING


def _is_named(key: Any, target: ast.expr, text: str) -> bool:
    """Return whether new code may still assign the attribute or item, perhaps in a function."""
    if isinstance(target, ast.Attribute):
        return f".{key} =" in text or f"setattr({ast.unparse(target.value)}," in text
    return f"[{key!r}] =" in text or f'["{key}"] =' in text


def _is_there(target: ast.expr, old: Statement, namespace: dict[str, Any]) -> bool:
    """Return whether the attribute or item still has the value that the old statement assigned, as
    far as that can be seen without running code.
    """
    value = value_of(target, namespace)
    if not isinstance(old.node, ast.Assign):
        return value is not MISSING
    assigned = value_of(old.node.value, namespace)
    # Other values may not compare to a bool: an array gives an array.
    is_another = (
        value is not assigned
        and type(assigned) in _PLAIN
        and (type(value), value) != (type(assigned), assigned)
    )
    return value is not MISSING and not is_another


def _is_made_without(owner: dict[Any, Any], key: Any, sources: RunningSources) -> bool:
    """Return whether a module of the workspace makes the dict by a ``{...}`` that does not contain
    the key."""
    for name, module in sources.loaded():
        for bound, value in list(vars(module).items()):
            if value is owner:
                displays: Sequence[ast.expr | None] = [
                    getattr(statement.node, "value", None)
                    for statement in sources[name].statements
                    if bound in statement.binds and not statement.is_import
                ]
                if displays and all(_lacks(display, key) for display in displays):
                    return True
    return False


def _lacks(display: ast.expr | None, key: Any) -> bool:
    if not isinstance(display, ast.Dict):
        return False
    return all(isinstance(entry, ast.Constant) and entry.value != key for entry in display.keys)
