"""Applies a new class body to the live class, so that instances, pickles and subclasses follow."""

from __future__ import annotations

import abc
import collections.abc
import dataclasses
import enum
import functools
import gc
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from types import FunctionType
from typing import Any, Protocol, cast

from monarch_reload.kinds import definition_at, is_a, is_heap_type, own_names
from monarch_reload.live.enums import live_members, with_live_members
from monarch_reload.live.natives import is_laid_out, why_its_metaclass_objects
from monarch_reload.live.patch import FunctionPatch, made_alike, moved_alike, wrapped_in, wraps
from monarch_reload.source.alignment import kept_class_values
from monarch_reload.source.statements import Statement
from monarch_reload.undo_log import MISSING, Attribute, Cell, Flip, Item, contents_of

_LAYOUT = frozenset({"__dict__", "__weakref__", "__slots__"})
# Written by the interpreter or a metaclass, or by code that uses the class: absent from the new
# body does not mean removed.
_NOT_OURS = _LAYOUT | {
    "__abstractmethods__",
    "_abc_impl",
    "__module__",
    "__doc__",
    "__annotations_cache__",
    "__subclasshook__",
    "__classcell__",
}


def why_not_in_place(live: type, staged: type, metaclass: type) -> str | None:
    """Return the reason why the class ``live`` cannot be changed into ``staged``; None if it can.

    `metaclass` is the metaclass that `staged` will have.
    """
    if type(live) is not metaclass:
        return f"metaclass changed from {type(live).__name__} to {metaclass.__name__}"
    if _slots(live) != _slots(staged):
        return f"__slots__ changed from {_slots(live)} to {_slots(staged)}"
    if _shape(live) != _shape(staged):
        return "base classes with another memory layout"
    direct = object in live.__bases__, object in staged.__bases__
    if direct[0] != direct[1] and len(live.__bases__) + len(staged.__bases__) > 0:
        return "Python cannot change the bases of a class between `object` and another class"
    if live.__base__ and staged.__base__ and _shape(live.__base__) != _shape(staged.__base__):
        return "base classes with another memory layout"
    return why_its_metaclass_objects(live, staged)


def _slots(cls: type) -> Any:
    slots = cls.__dict__.get("__slots__")
    return slots if slots is None or isinstance(slots, str) else sorted(slots)


def _shape(cls: type) -> tuple[Any, ...]:
    builtin = next(base for base in cls.__mro__ if not is_heap_type(base))
    has_dict, has_references = bool(cls.__dictoffset__), bool(cls.__weakrefoffset__)
    return builtin, cls.__basicsize__, cls.__itemsize__, has_dict, has_references


def kept_names(live: type, old: Statement, new: Statement, changed: AbstractSet[str]) -> set[str]:
    """Return the names of a class's attributes that keep their live values when the edited class
    replaces the class. ``changed`` are the names, used in the class body, whose values have
    changed.

    Empty for an Enum, whose members ``live_members`` chooses.
    """
    if is_a(live, enum.EnumMeta):
        return set()
    return {_mangled(live.__name__, name) for name in kept_class_values(old, new, changed)}


def keep_live_values(live: type, staged: type, names: Iterable[str]) -> None:
    """Give the staged class the live values of these attributes. If one is a registry, other code
    that registers something with the staged class then adds to the live registry.
    """
    for name in names:
        live_value = live.__dict__.get(name, MISSING)
        if live_value is MISSING or name not in staged.__dict__ or _is_layout(live_value):
            continue
        # Not the `__class__` of a proxy class, which answers for its instances.
        if name != "__class__" and not is_laid_out(live, name):
            Attribute(staged, name, live_value).apply()


class ClassPatch:
    """Collects the changes that turn live classes into their new definitions.

    ``refused`` has the classes that cannot be changed in place, with the reasons.
    """

    def __init__(self, functions: FunctionPatch, made_here: Callable[[Any], bool]) -> None:
        self._functions = functions
        self._made_here = made_here
        self.flips: list[Flip] = []
        self.patched: list[type] = []
        self.refused: dict[str, str] = {}
        self.is_partial = False  # refused classes take the new methods
        # Names from outside that the class body reads anew.
        self.changed: AbstractSet[str] = frozenset()
        self._moving = ("", "")  # the module where the class was, and where it is

    def patch(self, live: type, staged: type, old: Statement | None, new: Statement | None) -> None:
        reason = why_not_in_place(live, staged, self._functions.live_of(type(staged)))
        self._functions.pair(staged, live)
        if reason is not None:
            self.refused[live.__qualname__] = reason
            if not self.is_partial or type(live) is not type(staged):
                return
        self.patched.append(live)
        self._moving = live.__module__, staged.__module__
        keep: set[str] = set()
        bound: set[str] = set()
        inner: dict[str | None, tuple[Statement, Statement]] = {}
        if old is not None and old.is_class:
            mangle = functools.partial(_mangled, live.__name__)
            bound = {mangle(name) for statement in old.body for name in statement.binds}
        if old is not None and new is not None and old.is_class and new.is_class:
            keep = kept_names(live, old, new, self.changed)
            before = {s.name: s for s in old.body if s.is_class}
            inner = {s.name: (before[s.name], s) for s in new.body if s.name in before}
        members = {}
        if is_a(live, enum.EnumMeta):
            members = live_members(live, staged, self.flips)
            for member in cast("Any", staged).__members__.values():
                self._functions.pair(member, members[id(member)])
        for name, value in staged.__dict__.items():
            if name in _LAYOUT or name == "_abc_impl" or _is_layout(value):
                continue
            if is_laid_out(live, name):
                continue
            current = live.__dict__.get(name, MISSING)
            if name in keep and current is not MISSING:
                continue
            self._close_over(value, live, staged)
            if is_a(live, enum.EnumMeta):
                value = with_live_members(value, members)
            names = f"{live.__qualname__}.{name}", f"{staged.__qualname__}.{name}"
            merged = self._merged(current, value, names, *inner.get(name, (None, None)))
            if merged is not current:
                self.flips.append(Attribute(live, name, merged))
                cached = functools.cached_property
                if is_a(current, cached) and is_a(merged, (FunctionType, property)):
                    self.flips += _filled(live, name)
                if hasattr(type(merged), "__set_name__") and merged is value:
                    self.flips.append(_Named(merged, live, name))
        late = dict(late_defaults(live, staged))
        self.flips += [Attribute(live, name, value) for name, value in late.items()]
        for name in list(live.__dict__):
            gone = name in bound or (name.startswith("__") and name.endswith("__"))
            stays = (
                name in staged.__dict__
                or name in late
                or name in _NOT_OURS
                or _is_layout(live.__dict__[name])
            )
            if gone and not stays:
                self.flips.append(Attribute(live, name))
        for name in ("__name__", "__qualname__"):
            if getattr(live, name) != getattr(staged, name):
                self.flips.append(Attribute(live, name, getattr(staged, name)))
        bases = tuple(self._functions.live_of(base) for base in staged.__bases__)
        if bases != live.__bases__ and reason is None:
            self.flips.append(Attribute(live, "__bases__", bases))

    def take_methods_only(self, live: type) -> None:
        """Keep only the changes of methods, because the rest of the new class body was refused."""
        self.flips = [
            flip
            for flip in self.flips
            if not (isinstance(flip, Attribute) and flip.owner is live)
            or is_a(flip.value, (FunctionType, staticmethod, classmethod, property))
        ]

    def _close_over(self, value: Any, live: type, staged: type) -> None:
        """Have `super()` in new methods refer to the live class."""
        for function in _functions_in(value):
            names = function.__code__.co_freevars
            for name, cell in zip(names, function.__closure__ or (), strict=True):
                if name == "__class__" and contents_of(cell) is staged:
                    self.flips.append(Cell(cell, live))

    def _merged(
        self,
        current: Any,
        value: Any,
        names: tuple[str, str],
        old: Statement | None = None,
        new: Statement | None = None,
    ) -> Any:
        """Return the object to bind for an attribute: the live object with new code, or the new
        object. `names` are the qualified names before and after the edit."""
        functions = self._functions
        if current is MISSING or current is value:
            return functions.live_of(value)
        are_functions = is_a(current, FunctionType), is_a(value, FunctionType)
        if all(are_functions) and self._are_alike(current, value, names):
            return functions.function(current, value)
        if any(are_functions):
            self._redecorated(current, value, names)
            return functions.live_of(value)
        if type(current) is not type(value):
            return functions.live_of(value)
        if is_a(value, (staticmethod, classmethod)):
            function = current.__func__
            return current if self._merged(function, value.__func__, names) is function else value
        if is_a(value, property):
            accessors = ("fget", "fset", "fdel")
            pairs = [(getattr(current, name), getattr(value, name)) for name in accessors]
            merged = [self._merged(before, after, names) for before, after in pairs]
            same = all(m is before for m, (before, _) in zip(merged, pairs, strict=True))
            return current if same and current.__doc__ == value.__doc__ else value
        if is_a(value, functools.cached_property):
            self._merged(current.func, value.func, names)
            return value
        if id(value) in functions.twins:  # classes may hold each other
            return functions.live_of(value)
        if is_a(value, type) and self._made_here(value) and self._are_alike(current, value, names):
            self.patch(current, value, old, new)
            return current
        wrapped = getattr(current, "__wrapped__", None), getattr(value, "__wrapped__", None)
        if all(is_a(w, FunctionType) for w in wrapped) and made_alike(*wrapped):
            functions.function(*wrapped)  # type: ignore[arg-type]
        return functions.live_of(value)

    def _redecorated(self, current: Any, value: Any, names: tuple[str, str]) -> None:
        """Have the function in a method's old wrapper call the method's new wrapper. It is needed
        if other decorators made the new wrapper, because some objects may still refer to the old
        one.
        """
        if callable(value) and not any(
            is_a(attribute, _NOT_BOUND) for attribute in (current, value)
        ):
            befores = [current] if is_a(current, FunctionType) else wrapped_in(current)
            before = next((function for function in befores if wraps(function, names[0])), None)
            if before is not None and wraps(value, names[1]):
                self._functions.forward(before, value)

    def _are_alike(self, current: Any, value: Any, names: tuple[str, str]) -> bool:
        """Return whether two functions, or two classes, are the old and the new version of one
        definition. ``names`` are its qualified names before and after the edit."""
        same_name = moved_alike(current, value) or names == (
            current.__qualname__,
            value.__qualname__,
        )
        modules = current.__module__, value.__module__
        return made_alike(current, value) or (same_name and self._moving == modules)


# Attributes that do not take the instance as their first argument.
_NOT_BOUND = (type, staticmethod, classmethod)


class _Named:
    """A change that calls a descriptor's ``__set_name__`` with the live class. Before, it was
    called with the staged class."""

    def __init__(self, descriptor: Any, owner: type, name: str) -> None:
        self._arguments = descriptor, owner, name

    def apply(self) -> Callable[[], None]:
        descriptor, owner, name = self._arguments
        type(descriptor).__set_name__(descriptor, owner, name)
        return lambda: None


def _filled(cls: type, name: str) -> Iterator[Item]:
    """Yield changes that delete a property's cached values from the instances of a class and of its
    subclasses.

    The cached value would hide the method that has the property's name now.
    """
    for thing in gc.get_referrers(cls):
        if type(thing) is cls and name in own_names(thing):
            yield Item(thing.__dict__, name)
    subclasses: list[type] = type.__subclasses__(cls)
    for subclass in subclasses:
        yield from _filled(subclass, name)


def forget_subclass_checks(classes: Iterable[type]) -> None:
    """Clear the caches of `isinstance` for protocols and abstract classes.

    The cached answers depend on methods, which an edit may have added or removed.
    """
    pending: list[type] = [*classes, cast("type", Protocol)]
    pending += [cls for cls in vars(collections.abc).values() if isinstance(cls, abc.ABCMeta)]
    seen: set[int] = set()
    while pending:
        cls = pending.pop()
        if isinstance(cls, abc.ABCMeta) and id(cls) not in seen:
            seen.add(id(cls))
            cls._abc_caches_clear()  # type: ignore[attr-defined]
            if cls.__dict__.get("_is_protocol"):
                pending += cls.__subclasses__()


def hooked_classes(functions: Iterable[FunctionType]) -> Iterator[type]:
    """Yield the classes whose `__subclasshook__` is one of these functions."""
    for function in functions:
        if function.__name__ == "__subclasshook__":
            cls = definition_at(function.__module__, function.__qualname__.rpartition(".")[0])
            if is_a(cls, type):
                yield cls


def _functions_in(value: Any) -> Iterator[FunctionType]:
    pending = [value]
    seen: set[int] = set()
    while pending:
        part = pending.pop()
        if part is None or id(part) in seen:
            continue
        seen.add(id(part))
        if is_a(part, FunctionType):
            yield part
            pending.append(part.__dict__.get("__wrapped__"))
            pending += [
                contents
                for cell in part.__closure__ or ()
                if is_a(contents := contents_of(cell), FunctionType)
            ]
        elif is_a(part, property):
            pending += [part.fget, part.fset, part.fdel]
        else:
            pending += [
                getattr(part, name, None)
                for name in ("__func__", "func", "__wrapped__")
                if not is_a(part, type)
            ]


def _is_layout(value: Any) -> bool:
    return type(value).__name__ in ("member_descriptor", "getset_descriptor")


def _mangled(class_name: str, name: str) -> str:
    if name.startswith("__") and not name.endswith("__"):
        return f"_{class_name.lstrip('_')}{name}"
    return name


class LateDefault:
    """The default of a new field in a class, for instances that were made without the field.

    The first read of the field makes the instance's value; the class itself has none.
    """

    def __init__(self, name: str, factory: Callable[[], Any]) -> None:
        self._name, self._factory = name, factory

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            raise AttributeError(f"it has no attribute {self._name!r}; its instances have")
        return instance.__dict__.setdefault(self._name, self._factory())


def late_defaults(live: type, staged: type) -> Iterator[tuple[str, LateDefault]]:
    """Yield the fields that live instances of a dataclass lack, each with a `LateDefault`."""
    before = live.__dict__.get("__dataclass_fields__", {})
    after = staged.__dict__.get("__dataclass_fields__", {})
    for name, field in after.items() if before else ():
        is_new = name not in before or type(live.__dict__.get(name)) is LateDefault
        if is_new and field.default_factory is not dataclasses.MISSING:
            yield name, LateDefault(name, field.default_factory)
