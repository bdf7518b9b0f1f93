"""Settling: make objects that staged code made part of the live modules."""

from __future__ import annotations

import builtins
import contextlib
import functools
from collections.abc import Collection, Iterator, Mapping
from ctypes import c_void_p, py_object, pythonapi
from types import CellType, FunctionType, MemberDescriptorType
from typing import Any, cast

from monarch_reload.kinds import is_a, is_heap_type, own_names
from monarch_reload.undo_log import contents_of


def replace_inside(holder: Any, twins: Mapping[int, tuple[Any, Any]]) -> None:
    """Replace each staged object in a container, closure or partial by its live object. ``twins``
    are the (staged, live) pairs, by the id of the staged object.
    """
    if is_a(holder, dict):
        for key, value in dict(holder).items():
            if id(value) in twins:
                holder[key] = twins[id(value)][1]
            if id(key) in twins:
                holder[twins[id(key)][1]] = holder.pop(key)
    elif type(holder) is tuple:
        _replace_in_tuple(holder, twins)
    elif is_a(holder, list):
        for index, value in enumerate(holder):
            if id(value) in twins:
                holder[index] = twins[id(value)][1]
    elif is_a(holder, set):
        for value in [value for value in holder if id(value) in twins]:
            holder.discard(value)
            holder.add(twins[id(value)][1])
    elif is_a(holder, FunctionType):
        for cell in holder.__closure__ or ():
            _replace_in_cell(cell, twins)
        replace_inside(holder.__dict__, twins)
    elif type(holder) is CellType:
        _replace_in_cell(holder, twins)
    elif is_a(holder, functools.partial):
        if id(holder.func) in twins:
            state = (twins[id(holder.func)][1], holder.args, holder.keywords, holder.__dict__)
            cast("Any", holder).__setstate__(state)
    elif is_a(holder, type):
        if id(holder) in twins:
            return
        for name, value in holder.__dict__.copy().items():
            if id(value) in twins:
                type.__setattr__(holder, name, twins[id(value)][1])
        if any(id(base) in twins for base in holder.__bases__):
            holder.__bases__ = tuple(
                twins[id(base)][1] if id(base) in twins else base for base in holder.__bases__
            )
    elif is_heap_type(type(holder)):
        replace_inside(own_names(holder), twins)
        for slot in _slots(type(holder)):
            with contextlib.suppress(AttributeError):  # empty
                value = slot.__get__(holder)
                if id(value) in twins:
                    slot.__set__(holder, twins[id(value)][1])


def _slots(cls: type) -> Iterator[MemberDescriptorType]:
    for base in cls.__mro__:
        if "__slots__" in base.__dict__:
            yield from (v for v in base.__dict__.values() if type(v) is MemberDescriptorType)


def _replace_in_tuple(holder: tuple[Any, ...], twins: Mapping[int, tuple[Any, Any]]) -> None:
    # Written in place, because other objects refer to it. The items follow the object header.
    slots = (c_void_p * len(holder)).from_address(id(holder) + tuple.__basicsize__)
    for index, item in enumerate(holder):
        if id(item) in twins and slots[index] == id(item):
            pythonapi.Py_IncRef(py_object(twins[id(item)][1]))
            slots[index] = id(twins[id(item)][1])
            pythonapi.Py_DecRef(c_void_p(id(item)))


def sort_in_again(holder: Any, keys: Collection[int]) -> None:
    """Insert all entries of a dict or set again if one of its keys has an id in ``keys``, because
    the hashes of those keys have changed.
    """
    if type(holder) is dict and any(id(key) in keys for key in holder):
        items = list(dict(holder).items())
        holder.clear()
        holder.update(items)
    elif type(holder) is set and any(id(key) in keys for key in holder):
        members = list(holder)
        holder.clear()
        holder.update(members)


def _replace_in_cell(cell: CellType, twins: Mapping[int, tuple[Any, Any]]) -> None:
    contents = contents_of(cell)
    if id(contents) in twins:
        cell.cell_contents = twins[id(contents)][1]


def rehome(function: FunctionType, namespace: dict[str, Any]) -> None:
    """Make a function look up its globals in `namespace`.

    Python has no way to do this, and a copy of the function would not reach the objects that hold
    it already (wrappers, registries, C caches). In CPython the two pointers follow the object
    header; their position is checked for every function before they are written.
    """
    builtins_now = namespace.get("__builtins__", builtins)
    builtins_now = builtins_now if isinstance(builtins_now, dict) else vars(builtins_now)
    address = id(function) + object.__basicsize__
    slots = (c_void_p * 2).from_address(address)
    before = function.__globals__, getattr(function, "__builtins__", None)
    if slots[0] != id(before[0]) or (before[1] is not None and slots[1] != id(before[1])):
        raise RuntimeError("this Python keeps a function's globals in another place")
    for index, value in enumerate((namespace, builtins_now)):
        old = slots[index]
        if old != id(value):
            pythonapi.Py_IncRef(py_object(value))
            slots[index] = id(value)
            pythonapi.Py_DecRef(c_void_p(old))
    # Tells the interpreter that its specialised code for this function is out of date.
    function.__code__ = function.__code__
