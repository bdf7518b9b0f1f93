"""Stand-ins: live objects look to staged code as if they had the staged classes already.

The other way round, staged functions and classes get the state of the live ones that they replace
at the commit.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

from monarch_reload.kinds import BY_VALUE, is_a
from monarch_reload.live.classes import keep_live_values, kept_names
from monarch_reload.live.enums import keep_live_members
from monarch_reload.live.patch import parts_of
from monarch_reload.plan.dirty_marks import ModulePlan

_NAMED = (FunctionType, type)


class StandIns:
    """Stand-ins are instances of staged classes that pass for live instances during a trial.
    ``pairs`` are (stand-in, live instance).

    ``namespaces`` are the namespaces of staged code, by module. ``kept`` are the (module, name) of
    live instances that need a stand-in, because their class is staged.
    """

    def __init__(self, namespaces: Mapping[str, dict[str, Any]]) -> None:
        self._namespaces = namespaces
        self.kept: list[tuple[str, str]] = []
        self.pairs: list[tuple[Any, Any]] = []
        self._live: dict[int, type] = {}  # by the id of the staged class
        self.checks = {
            "isinstance": functools.partial(self._check, isinstance),
            "issubclass": functools.partial(self._check, issubclass),
        }
        """The functions that staged code gets in place of the built-in ones."""

    def let_go(self) -> None:
        """Drop all references to objects of the trial."""
        self.pairs.clear()
        self._live.clear()

    def take_over(self, plan: ModulePlan, index: int, live: Any, staged: Any) -> None:
        """Give the class ``staged``, which a statement has just defined, the state of ``live``.

        Defaults and class values are shared, not copied: if staged code changes one of them in
        place, the live class is changed too.
        """
        statement = plan.edit.new[index]
        if type(staged) is FunctionType and type(live) is FunctionType:
            origin = plan.edit.alignment.source_of(index)
            if plan.edit.last_binders.get(statement.name or "", origin) != origin:
                return  # the live function is that of a later `def _`
            if "__wrapped__" not in live.__dict__ and "__wrapped__" not in staged.__dict__:
                for name, held in live.__dict__.items():
                    staged.__dict__.setdefault(name, held)
            if index in plan.twin:
                staged.__defaults__ = live.__defaults__
                staged.__kwdefaults__ = live.__kwdefaults__
        elif is_a(staged, type) and is_a(live, type) and staged is not live:
            self._pass_for(live, staged)
            old = plan.edit.live_definition(index)
            if is_a(staged, enum.EnumMeta) and is_a(live, enum.EnumMeta):
                keep_live_members(live, staged)
            elif old is not None and old.is_class and statement.is_class:
                changed = plan.forced_by.get(index, set())
                keep_live_values(live, staged, kept_names(live, old, statement, changed))

    def _pass_for(self, live: type, staged: type) -> None:
        """Have ``isinstance`` count objects of the class ``live`` as objects of ``staged``. In the
        staged namespaces, put stand-ins in the place of live instances of the class.
        """
        self._live[id(staged)] = live
        for name, key in self.kept:
            namespace = self._namespaces[name]
            if key in namespace and type(namespace[key]) is live:
                namespace[key] = self.of(namespace[key], staged)

    def of(self, instance: Any, staged: type) -> Any:
        """Return a stand-in for a live instance: an instance of ``staged`` with its state. Return
        the live instance itself if no stand-in can be made.
        """
        if hasattr(staged, "__del__"):
            return instance  # the stand-in would close a resource that the instance still uses
        try:
            twin = _copied(instance, staged)
        except (TypeError, AttributeError):
            return instance  # its memory layout does not allow one
        self.pairs.append((twin, instance))
        return twin

    def _check(self, check: Callable[[Any, Any], bool], thing: Any, kind: Any) -> bool:
        """Return the answer of ``isinstance`` or ``issubclass`` (``check``) for staged code:
        objects of a live class also count as objects of the staged class."""
        if check(thing, kind):
            return True
        kinds = kind if type(kind) is tuple else (kind,)
        live = [self._live[id(k)] for k in kinds if id(k) in self._live]
        if not live:
            return False
        # Not `check`: a live protocol may ask for other members than the new one.
        cls = type(thing) if check is isinstance else thing
        return any(type.__subclasscheck__(live_class, cls) for live_class in live)


def twins_of(module: str, live: Any, staged: Any) -> dict[int, Any]:
    """Return the staged versions of a definition and of the functions that its decorators wrap, by
    the ids of the live versions. A container may refer to any of these functions.
    """
    before, after = (
        {part.__qualname__: part for part in parts_of(definition, module) if is_a(part, _NAMED)}
        for definition in (live, staged)
    )
    twins = {
        id(before[name]): after[name]
        for name in before.keys() & after.keys()
        if before[name] is not after[name]
    }
    if live is not None and live is not staged:
        twins[id(live)] = staged
    return twins


def _copied(value: Any, cls: type) -> Any:
    """Return an instance of ``cls`` with the same state as ``value``. The two share their
    attributes. If ``cls`` derives from a plain type such as int or str, value and attributes are
    copied.
    """
    plain: Any = next(base for base in cls.__mro__ if base.__module__ == "builtins")
    if plain in BY_VALUE:
        same = plain.__new__(cls, value)
        if hasattr(value, "__dict__"):
            same.__dict__.update(value.__dict__)
        return same
    twin: Any = object.__new__(cls)
    object.__setattr__(twin, "__dict__", value.__dict__)
    return twin
