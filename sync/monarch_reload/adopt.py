"""Turns staged objects into flips: live objects take the new code, and other names are bound to the
new objects."""

from __future__ import annotations

import builtins
import contextlib
import functools
import gc
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any

from monarch_reload.kinds import is_a
from monarch_reload.live.classes import ClassPatch, why_not_in_place
from monarch_reload.live.live_functions import Functions
from monarch_reload.live.patch import FunctionPatch, made_alike, moved_alike, wrapped_in
from monarch_reload.live.settle import rehome, replace_inside, sort_in_again
from monarch_reload.live.staged_module import StagedModule
from monarch_reload.pairing import (
    Pairing,
    is_decorated_anew,
    made_by,
    registers_itself,
    was_one_of_several,
)
from monarch_reload.plan.dirty_marks import EditPlan, ModulePlan
from monarch_reload.plan.edits import LiveModule, kind_of
from monarch_reload.plan.graph import ModuleEdit, NameKind
from monarch_reload.source.source import ModuleSource
from monarch_reload.source.statements import Statement
from monarch_reload.trial.stage import TrialStage
from monarch_reload.undo_log import MISSING, Flip, Item


class Adoption:
    """Collects the changes that a commit makes to live objects, for all modules of a plan."""

    def __init__(self, stage: TrialStage, functions: FunctionPatch) -> None:
        self._stage = stage
        self.functions = functions
        self.classes = ClassPatch(functions, self._is_made_here)
        #: The new values of module-level names.
        self.bindings: list[Flip] = []
        #: The last sources of modules whose file is deleted.
        self.deleted: Mapping[str, ModuleSource] = {}
        #: The qualified names of classes that moved, by where they are after the edit.
        self.moved: list[str] = []
        #: The edit of each module of the plan.
        self._edits: dict[str, ModuleEdit] = {}
        #: (new value, value before) of each name that is bound to another object, by the id of the
        #: new value.
        self.displaced: dict[int, tuple[Any, Any]] = {}
        #: The objects of decorated definitions that are in no source any more.
        self.gone: list[Any] = []
        #: Live objects, each with the decorators that it has lost.
        self.undecorated: list[tuple[Any, list[Any]]] = []
        #: Why a class cannot change in place: module -> class -> reason.
        self.refused: dict[str, dict[str, str]] = {}
        #: Effects of the old code that a running process keeps, as text for the report.
        self.stays: list[str] = []

    def adopt(self, plan: EditPlan, live: Mapping[str, LiveModule]) -> None:
        """Collect the changes that a plan makes to live objects, without applying them. ``live``
        has the edited modules, by name."""
        for twin, instance in self._stage.stand_ins.pairs:
            self.functions.pair(twin, instance)
        for thing in self._stage.made.values():
            if type(thing) is StagedModule:
                self.functions.pair(thing, thing.__reload_module__)
        self._edits = {name: module_plan.edit for name, module_plan in plan.modules.items()}
        values: list[tuple[dict[str, Any], str, Any]] = []
        for name, module_plan in plan.modules.items():
            values += self._module(name, module_plan, live.get(name))
        for namespace, key, value in values:
            # Only now every staged object is paired with the live object that continues it.
            value = _with_live_items(value, self.functions.live_of)
            before = namespace.get(key, MISSING)
            if before is not value:
                self.bindings.append(Item(namespace, key, value))
                self.displaced[id(value)] = value, before

    def before_of(self, value: Any) -> Any:
        """Return the object that a module's name has before the commit, where the commit binds that
        name to ``value``.

        Returns MISSING if the commit binds no name to ``value``, or a name that does not exist yet.
        It does so too if one of the two objects is plain data, such as a number or a text.
        """
        _, before = self.displaced.get(id(value), (value, MISSING))
        return MISSING if NameKind.DATA in (kind_of(value), kind_of(before)) else before

    def _module(
        self, name: str, plan: ModulePlan, module: LiveModule | None
    ) -> Iterator[tuple[dict[str, Any], str, Any]]:
        """Yield the new bindings of a module's names: (namespace, name, value)."""
        live_names = vars(sys.modules[name])
        self.classes.refused = self.refused.setdefault(name, {})
        pairing = Pairing(
            name=name,
            plan=plan,
            module=module,
            stage=self._stage,
            functions=self.functions,
            made=lambda: self._made,
        )
        pairing.pair()
        self.undecorated += pairing.undecorated
        yield from self._bindings(name, plan, pairing, live_names)
        yield from self._bound_unseen(name, plan.edit, live_names)
        staged = self._stage.namespaces.get(name, {})
        for bound in plan.edit.gone - staged.keys():  # names that a star import brings are not gone
            yield live_names, bound, MISSING
        self._note_gone(plan.edit, module, live_names)

    def _bindings(
        self, name: str, plan: ModulePlan, pairing: Pairing, live_names: dict[str, Any]
    ) -> Iterator[tuple[dict[str, Any], str, Any]]:
        """Yield (namespace, name, value) for each name whose binding statement ran in the trial."""
        staged = self._stage.namespaces.get(name, {})
        for bound, (index, statement) in pairing.definitions.items():
            live, value = live_names.get(bound, MISSING), staged.get(bound, MISSING)
            if bound in plan.edit.keep and live is not MISSING:
                continue
            if index in plan.run:
                self.classes.changed = plan.forced_by[index]
                if bound not in pairing.strangers:
                    old, is_defined = plan.edit.live_definition(index), bound in statement.defines
                    value = self._merged(live, value, old, statement, is_defined)
                yield live_names, bound, value
            elif live is not value and self._is_made_here(value):
                self.functions.pair(value, live)

    def _note_gone(
        self, edit: ModuleEdit, module: LiveModule | None, live_names: Mapping[str, Any]
    ) -> None:
        """Add to ``gone`` the live objects of deleted definitions that had registered themselves,
        so that their registrations are removed."""
        for index, old in enumerate(edit.old):
            if old.name in edit.gone:
                if registers_itself(old, live_names.get(old.name)):
                    self.gone += [live_names.get(old.name), *made_by(old, module)]
            elif old.is_function and was_one_of_several(edit, index):
                functions = made_by(old, module)
                self.gone += [function for function in functions if registers_itself(old, function)]

    @functools.cached_property
    def _made(self) -> Functions:
        return Functions(self._stage.made.values())

    def _bound_unseen(
        self, name: str, edit: ModuleEdit, live_names: dict[str, Any]
    ) -> Iterator[tuple[dict[str, Any], str, Any]]:
        """Yield (namespace, name, value) for names that code has bound in the staged namespace
        without an assignment to the name: by `exec`, `globals()` or `global`.
        """
        staged = self._stage.namespaces.get(name, {})
        assigned = self._stage.assigned.get(name, set())
        for bound in assigned - staged.keys() - edit.keep:
            yield live_names, bound, MISSING
        for bound, value in staged.items():
            live = live_names.get(bound, MISSING)
            if bound == "__builtins__" or value is live:
                continue
            if bound not in assigned and (bound in edit.binders or "*" in edit.binders):
                continue
            if bound not in edit.keep and not bound.startswith("__annot"):
                yield live_names, bound, self._merged(live, value, None, None, True)

    def _merged(
        self, live: Any, value: Any, old: Statement | None, new: Statement | None, defined: bool
    ) -> Any:
        """Return the object to bind to a name: the live object with new code, or the staged value.

        `old` is the statement that defines `live`, and `new` the statement that defines `value`;
        None if it is not known. `defined`: the name is that of a definition.
        """
        if live is MISSING or value is MISSING or live is value or not self._is_made_here(value):
            return value
        if (moved_alike(live, value) or self._is_renamed(live, value)) and self._has_left(live):
            return self._moved(live, value)
        if is_a(live, FunctionType) and is_a(value, FunctionType):
            in_place = defined or value.__name__ == "<lambda>"
            if in_place and made_alike(live, value):
                return self.functions.function(live, value)
            if old is not None and new is not None and is_decorated_anew(live, value, old, new):
                self.functions.forward(live, value)
        elif is_a(live, type) and is_a(value, type):
            if defined and made_alike(live, value):
                self.classes.patch(live, value, old, new)
                return live
        elif defined and not (is_a(live, type) or is_a(value, type)):
            return self._rewrapped(live, value)
        return value

    def _moved(self, live: Any, value: Any) -> Any:
        """Give a live definition the new code of ``value``, the staged definition that replaces it
        under another module or name, and return the object to bind.

        That is the live definition. It is the staged function if the live function cannot take its
        code.
        """
        if is_a(live, FunctionType):
            return self.functions.function(live, value)
        if id(value) not in self.functions.twins:
            self.moved.append(f"{value.__module__}.{value.__qualname__}")
            new = None
            if live.__module__ == value.__module__:
                new = next(s for s in self._edits[live.__module__].new if s.name == value.__name__)
            self.classes.patch(live, value, self._statement_of(live), new)
        return live

    def _is_renamed(self, live: Any, value: Any) -> bool:
        """Return whether an old name is now bound to a new definition, as by `Trainer =
        FastTrainer`."""
        if not any(is_a(live, kind) and is_a(value, kind) for kind in (FunctionType, type)):
            return False
        edit = self._edits.get(live.__module__)
        if edit is None or live.__module__ != value.__module__:
            return False
        before, after = edit.definitions
        is_new = live.__qualname__ in before and value.__qualname__ in after - before
        kind = self.functions.live_of(type(value))
        return is_new and (is_a(live, FunctionType) or why_not_in_place(live, value, kind) is None)

    def _statement_of(self, live: type) -> Statement | None:
        """Return the statement of the old source that defined a class which has left its module;
        None if there is none."""
        statements: Sequence[Statement] = ()
        if live.__module__ not in self.deleted:
            statements = self._edits[live.__module__].old
        else:
            with contextlib.suppress(SyntaxError, ValueError):  # broken before we first looked
                statements = self.deleted[live.__module__].statements
        return next((s for s in statements if s.is_class and s.name == live.__qualname__), None)

    def _has_left(self, live: Any) -> bool:
        """Return whether a function or class is no longer defined in its module."""
        edit = self._edits.get(live.__module__)
        return live.__module__ in self.deleted or (
            edit is not None and not any(live.__qualname__ in s.defines for s in edit.new)
        )

    def _rewrapped(self, live: Any, value: Any) -> Any:
        """Return the object to bind to the name of a wrapped function, such as a cached function.

        It is the live wrapper if the wrapper can call the new code and its cache may stay;
        otherwise it is the new wrapper. In either case objects that refer to the live wrapper reach
        the new code.
        """
        befores = [live] if is_a(live, FunctionType) else wrapped_in(live)
        afters = [value] if is_a(value, FunctionType) else list(wrapped_in(value))
        pairs = (
            (before, after) for before in befores for after in afters if made_alike(before, after)
        )
        before, after = next(pairs, (None, None))
        if before is None or after is None:
            return value
        if type(live) is type(value) and _same_cache(live, value):
            if self.functions.function(before, after) is before:
                self.functions.pair(value, live)
                return live
        elif type(live) is type(value) and is_a(type(live).__call__, FunctionType):
            # An object that refers to the old wrapper calls through it.
            self.functions.function(before, after)
        elif callable(value):
            self.functions.forward(before, value)
        if type(live) is type(value) and hasattr(live, "cache_parameters"):
            size, name = live.cache_parameters()["maxsize"], before.__qualname__
            self.stays.append(f"{name}, where it is held from before: its cache of maxsize={size}")
        return value

    def _is_made_here(self, value: Any) -> bool:
        return self._stage.made.get(id(value)) is value

    def settle(self) -> None:
        """Make the new objects of staged code part of the live modules.

        Functions get the live module's globals, instances get the live class, and references in
        these objects to staged objects become references to live ones. All of them are new and
        reachable only through new bindings, so nothing has to be undone.
        """
        homes = {
            id(namespace): vars(sys.modules[name])
            for name, namespace in self._stage.namespaces.items()
        }
        twins = self.functions.twins
        excluded = {id(value) for value in self._stage.namespaces.values()}
        for thing in self._stage.made.values() if twins else ():
            if issubclass(type(thing), type):
                # Attributes of classes change through the class, which has caches to drop.
                excluded |= {
                    id(part) for part in gc.get_referents(thing) if type(part) in (dict, tuple)
                }
        tuples: set[int] = set()
        for thing in self._stage.made.values():
            if type(thing) is FunctionType:
                home = homes.get(id(thing.__globals__))
                if home is not None:
                    rehome(thing, home)
                elif getattr(thing, "__builtins__", None) is self._stage.builtins:
                    if thing.__globals__.get("__builtins__") is self._stage.builtins:
                        thing.__globals__["__builtins__"] = vars(
                            builtins
                        )  # `exec` has put it there
                    rehome(thing, thing.__globals__)
            elif id(type(thing)) in twins:
                setter = type.__setattr__ if issubclass(type(thing), type) else object.__setattr__
                try:
                    setter(thing, "__class__", twins[id(type(thing))][1])
                except TypeError:
                    pass  # of a class that only a respawn can change
            if not twins or id(thing) in excluded:
                continue
            if issubclass(type(thing), type) or any(
                id(part) in twins for part in gc.get_referents(thing)
            ):
                replace_inside(thing, twins)
                if type(thing) is tuple:
                    tuples.add(id(thing))
        for thing in self._stage.made.values() if tuples else ():
            if id(thing) not in excluded:
                sort_in_again(thing, tuples)

    def let_go(self) -> None:
        """Drop all references to objects of the trial."""
        self.classes.flips.clear()
        self.bindings.clear()
        self.gone.clear()
        self.undecorated.clear()
        self.displaced.clear()
        self._edits, self.deleted = {}, {}
        self.__dict__.pop("_made", None)

    def forget_twins(self) -> None:
        """Remove staged classes from the subclass lists of their bases, and mark staged functions
        as wrappers of their live functions, so that no staged object is taken for a further
        definition.
        """
        for staged, live in self.functions.twins.values():
            if is_a(staged, type) and staged is not live:
                _detach(staged)
            elif is_a(staged, FunctionType) and staged is not live:
                staged.__dict__["__wrapped__"] = live

    def forget_all(self) -> None:
        """After an abort, remove staged classes, and the new classes that the trial made, from the
        subclass lists of their bases."""
        self.forget_twins()
        modules = {*self._stage.namespaces, *self._stage.imported}
        for thing in self._stage.made.values() if self._stage.made_is_exact else ():
            if issubclass(type(thing), type) and thing.__module__ in modules:
                _detach(thing)
        self._stage.made.clear()


class _Detached:
    """The base class that staged classes get, so that their real bases no longer list them."""


def _detach(cls: type) -> None:
    try:
        cls.__bases__ = (_Detached,)
    except TypeError:
        pass  # it goes when it is collected


def _same_cache(live: Any, value: Any) -> bool:
    parameters = getattr(live, "cache_parameters", None)
    return parameters is not None and bool(parameters() == value.cache_parameters())


def _with_live_items(value: Any, live_of: Callable[[Any], Any]) -> Any:
    value = live_of(value)
    if type(value) is tuple and any(live_of(item) is not item for item in value):
        return tuple(live_of(item) for item in value)
    return value
