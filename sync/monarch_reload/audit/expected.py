"""The values that a commit expects live objects to have, noted while the new objects exist to
compare with.

A fresh import would give these values. Native code keeps some of them where a commit cannot reach,
and functions that `exec` made have no source to compare with.
"""

from __future__ import annotations

import dis
import sys
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import CodeType, FunctionType, GetSetDescriptorType, MemberDescriptorType
from typing import Any

import msgspec

from monarch_reload.kinds import is_a

_PLAIN = (int, float, complex, bool, str, bytes, type(None))


class ExpectedValue(msgspec.Struct, frozen=True, eq=False):
    """The value that an attribute of a live class or function would have after a fresh import."""

    owner: weakref.ref[Any]
    name: str
    value: Any


class ChangedDefault(msgspec.Struct, frozen=True, eq=False):
    """A field of a class whose default has changed; older instances keep the default ``before``."""

    owner: weakref.ref[type]
    name: str
    before: Any


class Expected:
    """The values that live objects should have after one commit, or after several.

    ``classes`` are classes that no name is bound to any more: a live class continues in their
    place, or another object has taken their name. ``defaults`` and ``patched`` (functions whose
    behaviour changed) are those of the last commit.
    """

    def __init__(self) -> None:
        self.values: dict[tuple[int, str], ExpectedValue] = {}
        self.classes: list[weakref.ref[type]] = []
        self.defaults: list[ChangedDefault] = []
        self.patched: list[weakref.ref[FunctionType]] = []

    @classmethod
    def of(
        cls,
        twins: Collection[tuple[Any, Any]],
        displaced: Iterable[Any],
        paths: Collection[str],
        patched: Iterable[FunctionType],
    ) -> Expected:
        """Record the expected values of a commit.

        ``twins`` pairs each new object with the live object that takes its code. ``displaced`` are
        objects whose name is bound to another object now. ``paths`` are the source files of the
        modules; functions from other files count as generated. ``patched`` are the functions whose
        behaviour changed.
        """
        expected = cls()
        for owner, name, value in cls._values_of(twins, paths):
            expected.values[id(owner), name] = ExpectedValue(weakref.ref(owner), name, value)
        old = [fresh for fresh, live in twins if fresh is not live] + list(displaced)
        expected.classes = [weakref.ref(old_class) for old_class in old if is_a(old_class, type)]
        expected.defaults = [
            ChangedDefault(weakref.ref(live), name, before)
            for fresh, live in twins
            if is_a(fresh, type) and is_a(live, type) and fresh is not live
            for name, before in _changed(defaults_of(live), defaults_of(fresh))
        ]
        expected.patched = [weakref.ref(function) for function in patched]
        return expected

    def followed_by(self, later: Expected) -> Expected:
        """Return a record that combines both. If both have a value for the same object, the value
        in ``later`` is used.
        """
        both = Expected()
        values = {**self.values, **later.values}
        both.values = {key: value for key, value in values.items() if value.owner() is not None}
        both.classes = [ref for ref in self.classes + later.classes if ref() is not None]
        both.defaults, both.patched = later.defaults, later.patched
        return both

    @staticmethod
    def _values_of(
        twins: Collection[tuple[Any, Any]], paths: Collection[str]
    ) -> Iterator[tuple[Any, str, Any]]:
        for fresh, live in twins:
            if fresh is live:
                continue
            if is_a(fresh, type) and is_a(live, type):
                for name in _native_names(type(fresh)):
                    value = getattr(fresh, name, None)
                    if is_plain(value):
                        yield live, name, value
            elif _are_generated(fresh, live, paths):
                for name in _names_read(fresh.__code__):
                    value = fresh.__globals__.get(name)
                    if name in fresh.__globals__ and is_plain(value):
                        yield live, name, value


def _are_generated(fresh: Any, live: Any, paths: Collection[str]) -> bool:
    """Return whether ``fresh`` and ``live`` are both functions, and ``fresh`` was generated: its
    file is not in ``paths``, and its globals are those of no loaded module.
    """
    are_functions = type(fresh) is FunctionType and type(live) is FunctionType
    return (
        are_functions
        and fresh.__code__.co_filename not in paths
        and fresh.__globals__.get("__name__") not in sys.modules
    )


def is_plain(value: Any) -> bool:
    """Return whether a value can be compared safely: a number, a text or a tuple of these."""
    return type(value) in _PLAIN or (type(value) is tuple and all(map(is_plain, value)))


def defaults_of(cls: type) -> Mapping[str, Any]:
    """Return the defaults of a class's fields, by the field's name, as far as they are plain
    values. Only dataclasses, pydantic models and attrs classes have such fields.
    """
    attributes = vars(cls)
    defaults: dict[str, Any] = {}
    for table in ("__dataclass_fields__", "__pydantic_fields__"):
        if is_a(fields := attributes.get(table), dict):
            defaults |= {name: getattr(field, "default", ...) for name, field in fields.items()}
    for field in attributes.get("__attrs_attrs__", ()):
        defaults[field.name] = field.default
    return {name: value for name, value in defaults.items() if is_plain(value)}


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in after.items():
        if name in before and before[name] != value:
            yield name, before[name]


def _native_names(metaclass: type) -> Iterator[str]:
    """Yield the names of the attributes that classes have because their metaclass is written in C.
    Attributes that all classes have are left out.
    """
    for base in metaclass.__mro__:
        if base in (type, object):
            break
        for name, value in vars(base).items():
            is_own = type(value) in (GetSetDescriptorType, MemberDescriptorType)
            if is_own and name not in ("__dict__", "__weakref__"):
                yield name


def _names_read(code: CodeType) -> frozenset[str]:
    """Return the names that a code object's instructions mention, without those that it assigns."""
    stores = (i.argval for i in dis.get_instructions(code) if i.opname == "STORE_GLOBAL")
    return frozenset(code.co_names).difference(stores)
