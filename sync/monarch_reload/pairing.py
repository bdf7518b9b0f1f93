"""Pairs the definitions of an edited module: each live object with the staged object that has its
new code.

Several statements may bind one name, and only a registry may refer to a function. Both cases are
resolved here, one module at a time; `adopt` binds the names.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import FunctionType
from typing import Any

from monarch_reload.live.live_functions import Functions
from monarch_reload.live.patch import FunctionPatch, made_alike, wraps
from monarch_reload.live.registrars import taken_away
from monarch_reload.plan.dirty_marks import ModulePlan
from monarch_reload.plan.edits import LiveModule
from monarch_reload.plan.graph import ModuleEdit
from monarch_reload.source.statements import Statement
from monarch_reload.trial.stage import TrialStage


class Pairing:
    """Pairs the old and new definitions of one module."""

    def __init__(
        self,
        *,
        name: str,
        plan: ModulePlan,
        module: LiveModule | None,
        stage: TrialStage,
        functions: FunctionPatch,
        made: Callable[[], Functions],
    ) -> None:
        self._name = name
        self._plan = plan
        #: The live module; None if no statement of it was edited and no decorated one runs.
        self._module = module
        #: The finished trial run.
        self._stage = stage
        #: Takes the pairs of functions.
        self._functions = functions
        #: Returns the functions that staged code made. They are searched for at the first call.
        self._made = made
        #: The globals of the live module, and those of the staged one.
        self._live_names = vars(sys.modules[name])
        self._staged_names = stage.namespaces.get(name, {})
        #: By statement, the names that it might bind but left to definitions above it.
        self._left_alone = _left_alone(plan.edit, name, stage.left_alone)
        #: By name, the index of the statement that binds it last.
        self._last_binders = {
            bound: index for index in range(len(plan.edit.new)) for bound in self._bound_by(index)
        }
        #: By name, the statement that binds it last among those that ran, with its index.
        self.definitions: dict[str, tuple[int, Statement]] = {}
        #: Names whose live object continues under another name.
        self.strangers: set[str] = set()
        #: Live objects, each with the decorators that it has lost.
        self.undecorated: list[tuple[Any, list[Any]]] = []

    def pair(self) -> None:
        """Pair the definitions of all statements that ran, in their order."""
        for index in sorted(self._plan.run | self._plan.twin):
            origin = self._plan.edit.alignment.source_of(index)
            old = None if origin is None else self._plan.edit.old[origin]
            if old is not None:
                self._note_decorators(index, old)
                self._pair_functions(index, old)
            is_stranger = self._is_stranger(index, origin)
            if is_stranger and old is not None:
                self._pair_by_place(index, old)
            self._bind(index, is_stranger)

    def _note_decorators(self, index: int, old: Statement) -> None:
        """Note the decorators that a definition has lost: their registrations are removed."""
        statement = self._plan.edit.new[index]
        if index not in self._plan.run or not statement.is_definition:
            return
        lost = list(taken_away(old, statement, self._live_names))
        if lost:
            self.undecorated.append((self._live_names.get(old.name or ""), lost))
            self.undecorated += [(function, lost) for function in made_by(old, self._module)]

    def _pair_functions(self, index: int, old: Statement) -> None:
        """Pair functions of a definition that cannot be found by its name, because only registries
        refer to them, with their new versions.
        """
        if not old.is_function or self._module is None:
            return
        for before, after in self._where_held(self._module, index, old):
            if index in self._plan.run:
                self._functions.function(before, after)
            else:
                self._functions.pair(after, before)

    def _where_held(
        self, module: LiveModule, index: int, old: Statement
    ) -> Iterator[tuple[FunctionType, FunctionType]]:
        """Yield (live, staged) pairs of functions that registries may refer to: those that the old
        definition made and those that the new definition made, and the functions that wrap them.
        """
        new = self._plan.edit.new[index]
        place = new.name or "", new.first
        for live in module.hidden_of(old) if index in self._plan.run else module.functions_of(old):
            staged_functions = self._made().at_top_level(self._stage.namespaces[module.name])
            for staged in staged_functions.get(place, ()):
                yield live, staged
                for wrapper in module.wrappers_of(live):
                    alike = (w for w in self._made().wrappers_of(staged) if made_alike(wrapper, w))
                    yield from ((wrapper, staged_wrapper) for staged_wrapper in alike)

    def _is_stranger(self, index: int, origin: int | None) -> bool:
        """Return whether the live object that has the name of the new definition ``index``
        continues as another definition. Then the new definition is a new object.

        ``origin`` is the index of the old statement that the new definition comes from; None if it
        is new.
        """
        statement = self._plan.edit.new[index]
        left_alone = {i for i, bound in self._left_alone.items() if statement.name in bound}
        return statement.is_definition and has_another_heir(
            self._plan.edit, statement, origin, left_alone
        )

    def _pair_by_place(self, index: int, old: Statement) -> None:
        """Pair the staged function of the new definition ``index`` with the live function that the
        old definition ``old`` made, found by its line. Nothing happens if there are several such
        functions.
        """
        if self._module is None:
            return
        assert old.name is not None
        functions = self._module.functions.get((old.name, old.first), [])
        value = self._stage.defined.get((self._name, index))
        if len(functions) == 1 and type(value) is FunctionType and made_alike(functions[0], value):
            self._functions.function(functions[0], value)

    def _bind(self, index: int, is_stranger: bool) -> None:
        """Record which names the new statement ``index`` binds.

        ``is_stranger``: the live objects with these names continue as other definitions, so the new
        objects do not take their place.
        """
        statement = self._plan.edit.new[index]
        names: Iterable[str] = sorted(self._bound_by(index))
        if "*" in statement.binds:
            last = self._last_binders
            names = [n for n in self._staged_names if n[:2] != "__" and last.get(n, -1) < index]
            names = [name for name in names if name not in self.definitions]
        for bound in names:
            if statement.is_definition and self._last_binders[bound] > index:
                continue  # hidden by a later one of the same name
            self.definitions[bound] = index, statement
            (self.strangers.add if is_stranger else self.strangers.discard)(bound)

    def _bound_by(self, index: int) -> frozenset[str] | set[str]:
        return self._plan.edit.new[index].binds - self._left_alone.get(index, set())


def _left_alone(
    edit: ModuleEdit, name: str, left_by: Mapping[tuple[str, int], set[str]]
) -> Mapping[int, set[str]]:
    """Return, by the index of a new statement, the names that it could have bound but did not, so
    that a definition above it still has them.

    ``left_by`` has the names that a statement did not bind when it ran, by (module, index).
    """
    above: set[str] = set()
    left_alone: dict[int, set[str]] = {}
    for index, statement in enumerate(edit.new):
        left_names = above & left_by.get((name, index), set())
        if left_names:
            left_alone[index] = left_names
        above |= statement.defines
    return left_alone


def made_by(definition: Statement, module: LiveModule | None) -> Iterator[FunctionType]:
    """Yield the functions that a definition made, and the functions that wrap them, as a registry
    may refer to either."""
    if definition.is_function and module is not None:
        for function in module.functions_of(definition):
            yield function
            yield from module.wrappers_of(function)


def has_another_heir(
    edit: ModuleEdit, statement: Statement, origin: int | None, left_alone: Collection[int]
) -> bool:
    """Return whether a live object must not be changed into the new definition ``statement``,
    although both have the same name, because another new definition is the object's successor.

    That happens with several ``def _`` that a decorator registers. ``origin`` is the index of the
    old statement that ``statement`` comes from. ``left_alone`` are the indexes of new statements
    that could have bound the name but did not: an object that one of them made has no other
    successor.
    """
    last = edit.last_binders.get(statement.name or "")
    if last is None or last == origin:
        return False
    if any(edit.alignment.source_of(index) == last for index in left_alone):
        return False
    return last in edit.alignment.inherited or edit.old[last].is_decorated


def is_decorated_anew(
    live: FunctionType, staged: FunctionType, old: Statement, new: Statement
) -> bool:
    """Return whether ``live`` and ``staged`` are one function before and after the edit, perhaps
    inside decorators."""
    name = old.name if old.is_function and old.name == new.name else None
    return name is not None and wraps(live, name) and wraps(staged, name)


def was_one_of_several(edit: ModuleEdit, index: int) -> bool:
    """Return whether the edit removed the old definition ``index``, and only definitions bind its
    name in the new source, if anything does. An example is one of several ``def _``.
    """
    others = edit.binders.get(edit.old[index].name or "", ())
    return index not in edit.alignment.inherited and all(
        edit.new[other].is_definition for other in others
    )


def registers_itself(statement: Statement, live: Any) -> bool:
    """Return whether a definition registered itself. It did if it has decorators, or if it is a
    class whose metaclass, or a base with ``__init_subclass__``, is not from builtins, abc, enum or
    typing.

    Any other definition that is in a registry was put there by other code.
    """
    if statement.is_decorated:
        return True
    if not issubclass(type(live), type):
        return False
    makers = {type(live), *(b for b in live.__mro__[1:] if "__init_subclass__" in vars(b))}
    return any(maker.__module__ not in _STANDARD for maker in makers)


_STANDARD = ("builtins", "abc", "enum", "typing")
