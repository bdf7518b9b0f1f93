"""Turns what was staged into flips: live objects take new insides, the rest is bound anew."""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from ctypes import c_void_p, py_object, pythonapi
from types import CellType, FunctionType
from typing import Any, cast

from .classes import ClassPatch
from .flips import MISSING, Flip, Item
from .patch import FunctionPatch, made_alike
from .plan import ModulePlan, Plan
from .stage import Stage
from .statements import Statement


class Adoption:
    """The flips of all modules of a plan, and what they patch."""

    def __init__(self, stage: Stage, functions: FunctionPatch) -> None:
        self._stage = stage
        self.functions = functions
        self.classes = ClassPatch(functions, self._made_here)
        self.bindings: list[Flip] = []
        self.refused: dict[str, dict[str, str]] = {}  # module -> class -> reason

    def adopt(self, plan: Plan) -> None:
        values: list[tuple[dict[str, Any], str, Any]] = []
        for name, module_plan in plan.modules.items():
            values += self._module(name, module_plan)
        for namespace, key, value in values:
            # Only now is it known for every staged object which live one it stands for.
            value = _with_live_items(value, self.functions.live_of)
            if namespace.get(key, MISSING) is not value:
                self.bindings.append(Item(namespace, key, value))

    def _module(self, name: str, plan: ModulePlan) -> Iterator[tuple[dict[str, Any], str, Any]]:
        live_names = vars(sys.modules[name])
        staged = self._stage.namespaces.get(name, {})
        self.classes.refused = self.refused.setdefault(name, {})
        edit = plan.edit
        definitions = {}
        for index in sorted(plan.run | plan.twin):
            statement = edit.new[index]
            origin = edit.alignment.source_of(index)
            for bound in _bound(statement, staged):
                definitions[bound] = index, statement, None if origin is None else edit.old[origin]
        for bound, (index, statement, old) in definitions.items():
            live, value = live_names.get(bound, MISSING), staged.get(bound, MISSING)
            if bound in edit.keep and live is not MISSING:
                continue
            if index in plan.run:
                self.classes.changed = plan.forced_by[index]
                yield (
                    live_names,
                    bound,
                    self._merged(live, value, old, statement, bound in statement.defines),
                )
            elif live is not value and self._made_here(value):
                self.functions.pair(value, live)
        for bound in edit.gone:
            yield live_names, bound, MISSING

    def _merged(
        self, live: Any, value: Any, old: Statement | None, new: Statement, defined: bool
    ) -> Any:
        if live is MISSING or value is MISSING or live is value or not self._made_here(value):
            return value
        if isinstance(live, FunctionType) and isinstance(value, FunctionType):
            in_place = defined or value.__name__ == "<lambda>"
            if in_place and made_alike(live, value):
                return self.functions.function(live, value)
        elif isinstance(live, type) and isinstance(value, type):
            if defined and made_alike(live, value):
                self.classes.patch(live, value, old, new)
                return live
        elif defined and type(live) is type(value):
            wrapped = getattr(live, "__wrapped__", None), getattr(value, "__wrapped__", None)
            if all(isinstance(part, FunctionType) for part in wrapped) and made_alike(*wrapped):
                kept = self.functions.function(*wrapped) is wrapped[0]  # type: ignore[arg-type]
                if kept and _same_cache(live, value):
                    self.functions.pair(value, live)
                    return live
        return value

    def _made_here(self, value: Any) -> bool:
        return self._stage.made.get(id(value)) is value

    def settle(self) -> None:
        """Everything that staged code made now belongs to the live modules.

        Functions look names up in the live module, instances are of the live class, and
        whoever holds a staged twin holds the live object. All of it is new and reachable
        only through new bindings, so there is nothing to undo.
        """
        homes = {
            id(namespace): vars(sys.modules[name])
            for name, namespace in self._stage.namespaces.items()
        }
        twins = self.functions.twins
        own = {id(value) for value in self._stage.namespaces.values()}
        for thing in self._stage.made.values() if twins else ():
            if issubclass(type(thing), type):
                # Attributes of classes change through the class, which has caches to drop.
                own |= {id(part) for part in gc.get_referents(thing) if type(part) is dict}
        for thing in self._stage.made.values():
            if type(thing) is FunctionType:
                home = homes.get(id(thing.__globals__))
                if home is not None:
                    rehome(thing, home)
                elif getattr(thing, "__builtins__", None) is self._stage.builtins:
                    rehome(thing, thing.__globals__)
            elif id(type(thing)) in twins:
                setter = type.__setattr__ if issubclass(type(thing), type) else object.__setattr__
                try:
                    setter(thing, "__class__", twins[id(type(thing))][1])
                except TypeError:
                    pass  # of a class that only a respawn can change
            if not twins or id(thing) in own:
                continue
            if issubclass(type(thing), type) or any(
                id(part) in twins for part in gc.get_referents(thing)
            ):
                _replace_inside(thing, twins)

    def forget_twins(self) -> None:
        """Staged classes leave the lists of subclasses that their bases keep."""
        for staged, live in self.functions.twins.values():
            if isinstance(staged, type) and staged is not live:
                _detach(staged)

    def forget_all(self) -> None:
        """After an abort, the new classes go as well."""
        self.forget_twins()
        modules = {*self._stage.namespaces, *self._stage.imported}
        for thing in self._stage.made.values() if self._stage.made_is_exact else ():
            if issubclass(type(thing), type) and thing.__module__ in modules:
                _detach(thing)
        self._stage.made.clear()


class _Detached:
    pass


def _detach(cls: type) -> None:
    try:
        cls.__bases__ = (_Detached,)
    except TypeError:
        pass  # it goes when it is collected


def _bound(statement: Statement, staged: Mapping[str, Any]) -> Iterable[str]:
    if "*" in statement.binds:
        return [name for name in staged if not name.startswith("__")]
    return sorted(statement.binds)


def _same_cache(live: Any, value: Any) -> bool:
    parameters = getattr(live, "cache_parameters", None)
    return parameters is not None and bool(parameters() == value.cache_parameters())


def _with_live_items(value: Any, live_of: Callable[[Any], Any]) -> Any:
    value = live_of(value)
    if type(value) is tuple and any(live_of(item) is not item for item in value):
        return tuple(live_of(item) for item in value)
    return value


def _replace_inside(holder: Any, twins: Mapping[int, tuple[Any, Any]]) -> None:
    if isinstance(holder, dict):
        for key, value in list(holder.items()):
            if id(value) in twins:
                holder[key] = twins[id(value)][1]
            if id(key) in twins:
                holder[twins[id(key)][1]] = holder.pop(key)
    elif isinstance(holder, list):
        for index, value in enumerate(holder):
            if id(value) in twins:
                holder[index] = twins[id(value)][1]
    elif isinstance(holder, set):
        for value in [value for value in holder if id(value) in twins]:
            holder.discard(value)
            holder.add(twins[id(value)][1])
    elif isinstance(holder, FunctionType):
        for cell in holder.__closure__ or ():
            _replace_in_cell(cell, twins)
        _replace_inside(holder.__dict__, twins)
    elif type(holder) is CellType:
        _replace_in_cell(holder, twins)
    elif isinstance(holder, functools.partial):
        if id(holder.func) in twins:
            state = (twins[id(holder.func)][1], holder.args, holder.keywords, holder.__dict__)
            cast("Any", holder).__setstate__(state)
    elif isinstance(holder, type):
        if id(holder) in twins:
            return
        for name, value in list(holder.__dict__.items()):
            if id(value) in twins:
                type.__setattr__(holder, name, twins[id(value)][1])
        if any(id(base) in twins for base in holder.__bases__):
            holder.__bases__ = tuple(
                twins[id(base)][1] if id(base) in twins else base for base in holder.__bases__
            )
    elif type(holder).__flags__ & _HEAP_TYPE and hasattr(holder, "__dict__"):
        _replace_inside(vars(holder), twins)


_HEAP_TYPE = 1 << 9


def _replace_in_cell(cell: CellType, twins: Mapping[int, tuple[Any, Any]]) -> None:
    try:
        contents = cell.cell_contents
    except ValueError:
        return
    if id(contents) in twins:
        cell.cell_contents = twins[id(contents)][1]


def rehome(function: FunctionType, namespace: dict[str, Any]) -> None:
    """Let a function look up its globals in `namespace`.

    Python has no way to say this, and a copy of the function would not reach those who hold
    it already (wrappers, registries, C caches). In CPython the two pointers follow the object
    header; that they are where we think is checked for every function before they are written.
    """
    builtins_now = namespace["__builtins__"]
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
    # Tells the interpreter that what it specialised for this function no longer holds.
    function.__code__ = function.__code__
