"""Attributes and items of live objects that top-level statements assign to.

`config.rate = 5` changes a live object. When staged code does that, it is taken back, and the
commit repeats it.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

from monarch_reload.live.staged_module import StagedModule
from monarch_reload.source.spelling import walk_scope
from monarch_reload.undo_log import MISSING, Action


def targets_of(node: ast.AST) -> Iterator[ast.Attribute | ast.Subscript]:
    """Yield the attributes and items that a statement assigns to when it runs."""
    for part in walk_scope(node):
        if isinstance(part, (ast.Attribute, ast.Subscript)) and not isinstance(part.ctx, ast.Load):
            yield part


def called_on(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the objects whose methods a statement calls for the effect, such as `rows` in
    `rows.update(a=1)`.
    """
    for part in walk_scope(node):
        if isinstance(part, ast.Expr) and isinstance(part.value, ast.Call):
            function = part.value.func
            if isinstance(function, ast.Attribute):
                yield function.value


class Target:
    """An attribute or item of an object, and its value before staged code ran."""

    def __init__(self, owner: Any, key: Any, is_item: bool) -> None:
        self._owner, self._key, self._is_item = owner, key, is_item
        self._before = self._after = self.read()

    @classmethod
    def find(
        cls, node: ast.Attribute | ast.Subscript, namespace: Mapping[str, Any]
    ) -> Target | None:
        """Return the target of an assignment; ``None`` if the object cannot be determined without
        running code.
        """
        owner = value_of(node.value, namespace)
        if owner is MISSING or type(owner) is StagedModule:
            return None
        if isinstance(node, ast.Attribute):
            return cls(owner, node.attr, False)
        key = value_of(node.slice, namespace)
        if key is MISSING or not hasattr(type(owner), "__delitem__"):
            return None
        return cls(owner, key, True)

    @property
    def place(self) -> Hashable:
        """A key that is equal for two targets that are the same attribute or item."""
        key = self._key if _has_hash(self._key) else repr(self._key)
        return id(self._owner), self._is_item, key

    def read(self) -> Any:
        try:
            if self._is_item:
                return self._owner[self._key]
            if isinstance(self._owner, type):
                return self._owner.__dict__.get(self._key, MISSING)
            kept_by = inspect.getattr_static(type(self._owner), self._key, None)
            if hasattr(type(kept_by), "__set__"):  # a property or a slot
                return getattr(self._owner, self._key)
            return getattr(self._owner, "__dict__", {}).get(self._key, MISSING)
        except Exception:
            return MISSING  # there is none, or it cannot be asked for

    def write(self, value: Any) -> None:
        if value is MISSING and self._is_item:
            del self._owner[self._key]
        elif value is MISSING:
            delattr(self._owner, self._key)
        elif self._is_item:
            self._owner[self._key] = value
        else:
            setattr(self._owner, self._key, value)

    def was_assigned(self) -> None:
        self._after = self.read()

    def take_out(self) -> bool:
        """Restore the value from before staged code ran; return whether staged code had assigned
        another value.

        A value that running code has assigned since then is not replaced.
        """
        if self._after is self._before:
            return False
        value = self.read()
        # Each read of an environment variable gives another string.
        if value is self._after or (type(value) is str and value == self._after):
            self.write(self._before)
        return True

    def flip(self, live_of: Callable[[Any], Any]) -> Action:
        """Return the action that makes the same assignment at the commit, with live objects in
        place of staged ones."""

        def do() -> Callable[[], None]:
            # A staged twin may have been assigned to, in the place of a live object.
            target = Target(live_of(self._owner), self._key, self._is_item)
            before = target.read()
            target.write(live_of(self._after))
            return lambda: target.write(before)

        return Action(do)


def _has_hash(key: Any) -> bool:
    try:
        hash(key)
    except TypeError:  # a slice, a list of indices
        return False
    return True


def value_of(node: ast.expr, namespace: Mapping[str, Any]) -> Any:
    """Return the value of an expression that is a name, a constant, or a chain of attributes and
    items. MISSING for any other expression, and if a part of it does not exist.
    """
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return namespace.get(node.id, MISSING)
    if isinstance(node, (ast.Attribute, ast.Subscript)):
        owner = value_of(node.value, namespace)
        if owner is MISSING:
            return MISSING
        try:
            if isinstance(node, ast.Attribute):
                return getattr(owner, node.attr)
            return owner[value_of(node.slice, namespace)]
        except Exception:
            return MISSING  # the statement will raise it
    return MISSING
