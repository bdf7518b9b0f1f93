"""Keys of calls: equal if two calls differ only in their tensors' values and their numbers.

A key is a flat tuple: the operation, and for each argument what it looks like. The first item of
each argument's part determines how long the part is, so that two different argument lists cannot
have the same key:

- a tensor is its ``Meta``, which is nothing else's first item;
- a number that the operation's schema declares as a number is a mark of its type: its value is sent
  apart from the key;
- other numbers are their values. 1, 1.0 and True are equal to Python, so floats are a mark and
  their text, bools are marks of their own, and only ints are themselves;
- lists, tuples and dicts are a mark, their length, and their items;
- objects that are safe to compare (text, ``None``, dtypes, devices) are themselves;
- functions, classes and objects that are compared by identity (meshes, groups) are a mark and the
  object;
- objects with a state besides (generators of random numbers) are a mark, the object, and its state:
  a worker draws from its copy until the object here is seeded again;
- any other object is its class and its pickle: equal objects may differ for the callee.
"""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple


class _Mark:
    """An item of a key that is equal to no argument, and so can say what the next items are."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


FLOAT, INT = _Mark("float"), _Mark("int")
_TRUE, _FALSE, _VALUE = _Mark("True"), _Mark("False"), _Mark("value")
_LIST, _TUPLE, _DICT, _SAME = _Mark("list"), _Mark("tuple"), _Mark("dict"), _Mark("same")
_STATE = _Mark("state")
_NONE: frozenset[Any] = frozenset()


class _Every(frozenset[Any]):
    """A set that contains every position.

    It says that all items of a list of numbers are passed as numbers.
    """

    def __contains__(self, position: object) -> bool:
        return True


_EVERY = _Every()


class NumberList(NamedTuple):
    """An entry of ``numbers`` for an argument that is a list of numbers."""

    where: int | str


_BY_IDENTITY: set[type] = {
    types.FunctionType,
    types.BuiltinFunctionType,
    types.ModuleType,
    type,
}
_STATES: dict[type, Callable[[Any], bytes]] = {}
_ATOMS: set[type] = {str, bytes, type(None), type(Ellipsis)}


CONTAINERS: dict[type, tuple[Callable[[Any], list[Any]], Callable[[Any], Any]]] = {}
"""The classes of containers that tensors may be in: how to get their items, and how to make one."""


def look_into(kind: type, items: Callable[[Any], list[Any]], rebuild: Callable[[Any], Any]) -> None:
    """Have tensors found inside objects of class ``kind``, as they are inside lists.

    ``items`` returns what an object contains. ``rebuild`` makes an object of such a list; workers
    import it by name.
    """
    CONTAINERS[kind] = (items, rebuild)


def compare_by_value(*kinds: type) -> None:
    """Declare classes whose equal objects are one and the same argument to any function."""
    _ATOMS.update(kinds)


def compare_by_identity(*kinds: type) -> None:
    """Declare classes whose objects are compared by identity."""
    _BY_IDENTITY.update(kinds)


def compare_by_state(kind: type, state: Callable[[Any], bytes]) -> None:
    """Have arguments of class ``kind`` compared by identity and by the bytes of ``state(object)``.

    So a call does not match an earlier call with the same object if its state has changed since.
    """
    _STATES[kind] = state


class LocalTensor(Exception):
    """An argument, ``args[0]``, is a tensor of this process and not of the mesh."""


class Flattener:
    """Takes arguments apart into a key, tensors, and numbers.

    ``tensor`` is the class of distributed tensors, ``local`` the class of all tensors; ``pickle``
    turns objects of other classes into bytes.
    """

    def __init__(self, tensor: type, local: type, pickle: Callable[[Any], bytes]) -> None:
        self._tensor = tensor
        self._local = local
        self._pickle = pickle

    def flatten(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        numbers: frozenset[Any],
        key: list[Any],
        tensors: list[Any],
        scalars: list[Any],
    ) -> None:
        """Extend ``key``, ``tensors`` and ``scalars`` by the arguments of a call.

        ``numbers`` are the positions and names of arguments that are numbers, and a ``NumberList``
        for each list of numbers.

        Raises ``LocalTensor`` for a tensor that is not of a mesh.
        """
        tensor = self._tensor
        for position, value in enumerate(args):
            kind = type(value)
            if kind is tensor:
                key.append(value._meta)
                tensors.append(value)
            elif kind is float and position in numbers:
                key.append(FLOAT)
                scalars.append(value)
            elif kind is int:
                if position in numbers:
                    key.append(INT)
                    scalars.append(value)
                else:
                    key.append(value)
            else:
                is_list = kind is list and numbers and NumberList(position) in numbers
                inner = _EVERY if is_list else _NONE
                self._rest(value, kind, inner, key, tensors, scalars)
        if kwargs:
            for name, value in kwargs.items():
                kind = type(value)
                key.append(name)
                if (kind is float or kind is int) and name in numbers:
                    key.append(FLOAT if kind is float else INT)
                    scalars.append(value)
                else:
                    is_list = kind is list and NumberList(name) in numbers
                    inner = frozenset((NumberList(0),)) if is_list else _NONE
                    self.flatten((value,), {}, inner, key, tensors, scalars)

    def _rest(
        self,
        value: Any,
        kind: type,
        inner: frozenset[Any],
        key: list[Any],
        tensors: list[Any],
        scalars: list[Any],
    ) -> None:
        if kind is bool:
            key.append(_TRUE if value else _FALSE)
        elif kind in _ATOMS:
            key.append(value)
        elif kind is list or kind is tuple:
            key.append(_LIST if kind is list else _TUPLE)
            key.append(len(value))
            self.flatten(value, {}, inner, key, tensors, scalars)
        elif kind is float:
            key.append(_VALUE)
            key.append(repr(value))
        elif kind is dict:
            key.append(_DICT)
            key.append(len(value))
            for item in value.items():
                self.flatten(item, {}, _NONE, key, tensors, scalars)
        elif isinstance(value, self._tensor):
            key.append(value._meta)  # type: ignore[attr-defined]
            tensors.append(value)
        elif isinstance(value, self._local):
            raise LocalTensor(value)
        elif isinstance(value, tuple):
            key.append(kind)
            key.append(len(value))
            self.flatten(value, {}, _NONE, key, tensors, scalars)
        elif kind in CONTAINERS:
            items = CONTAINERS[kind][0](value)
            key.append(kind)
            key.append(len(items))
            self.flatten(items, {}, _NONE, key, tensors, scalars)
        elif kind in _BY_IDENTITY or isinstance(value, type):
            key.append(_SAME)
            key.append(value)
        elif kind in _STATES:
            key.append(_STATE)
            key.append(value)
            key.append(_STATES[kind](value))
        else:
            key.append(kind)
            key.append(self._pickle(value))


def explain(key: Sequence[Any], cached: Sequence[Sequence[Any]]) -> str:
    """Return in words how ``key`` differs from the most similar key in ``cached``."""
    if not cached:
        return "it is the first call of this operation"

    def differences(other: Sequence[Any]) -> list[tuple[Any, Any]]:
        pairs = itertools.zip_longest(other, key, fillvalue="nothing")
        return [(old, new) for old, new in pairs if old is not new and old != new]

    nearest = min((differences(other) for other in cached), key=len)
    parts = [f"{old!r} is now {new!r}" for old, new in nearest[:4]]
    return "; ".join(parts) or "its arguments are equal, and were pickled differently"
