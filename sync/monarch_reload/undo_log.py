"""The changes that a commit may make to live objects, each of which can be undone.

Every flip changes one attribute, item or cell: a thread that runs meanwhile sees the old value or
the new one. An undo reverts the flips in reverse order, to the values from when they were made.
"""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Callable, Iterable, MutableMapping
from types import CellType, FunctionType
from typing import Any, Final, Protocol

import msgspec

from monarch_reload.thread_switches import Turns, longer_turns


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = _Missing()


class Flip(Protocol):
    """A change of one live object, which a trial prepares and a commit makes."""

    def apply(self) -> Callable[[], None]:
        """Make the change; return a function that undoes it."""


class Attribute(msgspec.Struct, frozen=True, eq=False):
    """A change that sets an attribute to a value; MISSING deletes it."""

    owner: Any
    name: str
    value: Any = MISSING

    def apply(self) -> Callable[[], None]:
        before = _attribute_of(self.owner, self.name)
        _set_attribute(self.owner, self.name, self.value)
        return lambda: _set_attribute(self.owner, self.name, before)


class Item(msgspec.Struct, frozen=True, eq=False):
    """A change that sets a mapping's item to a value; MISSING deletes it."""

    mapping: MutableMapping[Any, Any]
    key: Any
    value: Any = MISSING

    def apply(self) -> Callable[[], None]:
        before = self.mapping.get(self.key, MISSING)
        _set_item(self.mapping, self.key, self.value)
        return lambda: _set_item(self.mapping, self.key, before)


class Cell(msgspec.Struct, frozen=True, eq=False):
    """A change that sets a closure's variable to a value."""

    cell: CellType
    value: Any
    function: FunctionType | None = None  # a live one that closes over it

    def apply(self) -> Callable[[], None]:
        before = contents_of(self.cell)
        self.cell.cell_contents = self.value
        return lambda: _set_cell(self.cell, before)


class Action(msgspec.Struct, frozen=True, eq=False):
    """Any other change: `do` makes it, and returns the function that undoes it."""

    do: Callable[[], Callable[[], None]]

    def apply(self) -> Callable[[], None]:
        """Make the change; return a function that undoes it."""
        return self.do()


class UndoLog:
    """Makes changes, and undoes them in reverse order."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def apply(self, flips: Iterable[Flip]) -> None:
        """Make all changes; other threads see them as one step, unless they take long."""
        with longer_turns():
            Turns().freshen()
            for flip in flips:
                self._undo.append(flip.apply())

    def held(self) -> list[Any]:
        """Return the objects that refer to the earlier values."""
        return [self._undo]

    def rollback(self) -> None:
        with longer_turns():
            Turns().freshen()
            while self._undo:
                self._undo.pop()()


def contents_of(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return MISSING


def _attribute_of(owner: Any, name: str) -> Any:
    """Return the present value of an attribute; MISSING if there is none. Of a class, only
    attributes that the class itself has are returned, not inherited ones.
    """
    if isinstance(owner, type) and name not in ("__bases__", "__name__", "__qualname__"):
        return owner.__dict__.get(name, MISSING)
    return getattr(owner, name, MISSING)


def _set_attribute(owner: Any, name: str, value: Any) -> None:
    # Not through the metaclass, which may refuse assignments, as that of Enum does.
    setter, deleter = (
        (type.__setattr__, type.__delattr__)
        if isinstance(owner, type)
        else (object.__setattr__, object.__delattr__)
    )
    if isinstance(owner, type) and type(owner).__module__ == "_ctypes":
        setter, deleter = setattr, delattr  # it accepts no others
    if value is MISSING:
        with contextlib.suppress(AttributeError):
            deleter(owner, name)
    elif name == "__code__" and (owner.__code__.co_flags ^ value.co_flags) & _KINDS:
        with warnings.catch_warnings():
            # A function that becomes a generator: Python warns, but its holders need the new code.
            warnings.simplefilter("ignore", DeprecationWarning)
            setter(owner, name, value)
    else:
        setter(owner, name, value)


_KINDS = (
    inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
    | inspect.CO_ITERABLE_COROUTINE
)


def _set_item(mapping: MutableMapping[Any, Any], key: Any, value: Any) -> None:
    if value is MISSING:
        mapping.pop(key, None)
    else:
        mapping[key] = value


def _set_cell(cell: CellType, value: Any) -> None:
    if value is MISSING:
        del cell.cell_contents
    else:
        cell.cell_contents = value
