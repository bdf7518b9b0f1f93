"""The marks that an edit puts on names, the uses of a marked name that make a statement run again,
and the plan."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntEnum

import msgspec

from monarch_reload.plan.graph import ModuleEdit
from monarch_reload.source.names import Use


class DirtyMark(IntEnum):
    """The effect of an edit on a name; of two marks the higher one counts."""

    KEPT = 1  # kept instance of a class some of whose members behave differently
    INSTANCE = 2  # kept instance of a class whose attributes differ
    METHODS = 3  # class: only methods behave differently
    CALLING = 4  # function: it calls one that was patched in place
    FUNCTION = 5  # function: patched in place
    FLOWING = 6  # function: its result depends on a changed value
    SHAPE = 7  # class: attributes, bases or fields differ, patched in place
    VALUE = 8  # bound to something else, or gone


class When(Enum):
    """The condition under which a statement that uses a marked name runs again."""

    ALWAYS = "always"
    MAKER_RUNS = "the statement that binds the name runs again"
    BINDS_DATA = "all that it binds is data"
    BINDS_DATA_OR_IS_MADE = "all that it binds is data, or its decorator calls edited code"


_ALWAYS, _BINDS_DATA = When.ALWAYS, When.BINDS_DATA

# A use that has no entry in either table does not make a statement run again, but for members that
# differ: see `Propagation.forcing`.
RUNS_AGAIN: Mapping[DirtyMark, Mapping[Use, When]] = {
    DirtyMark.KEPT: {},
    # Not ALWAYS: a model that an edited function helped to make has trained weights.
    DirtyMark.CALLING: dict.fromkeys((Use.CALLED, Use.USED), When.BINDS_DATA_OR_IS_MADE),
    # Not USED: an optimizer made of `model.parameters()` has state of its own.
    DirtyMark.INSTANCE: {Use.INSIDE: _ALWAYS},
    DirtyMark.METHODS: {Use.USED: _ALWAYS, Use.REGISTERS: _ALWAYS},
    DirtyMark.FUNCTION: {
        Use.CALLED: _ALWAYS,
        Use.USED: _ALWAYS,
        # Its registrations stay: the function takes its new body in place.
        Use.REGISTERS: When.MAKER_RUNS,
    },
    DirtyMark.FLOWING: dict.fromkeys((Use.CALLED, Use.USED, Use.REGISTERS), _ALWAYS),
    DirtyMark.SHAPE: {
        **dict.fromkeys((Use.USED, Use.REGISTERS, Use.INSIDE, Use.BASE, Use.PASSED), _ALWAYS),
        Use.CALLED: _BINDS_DATA,  # a named tuple has its values, and nothing else
    },
    DirtyMark.VALUE: dict.fromkeys(Use, _ALWAYS),
}
"""The answer by mark and by the use as it is after imports and attributes are followed."""

# A result that is data does not refer to its arguments: it was computed from them.
_PASSED = {Use.PASSED: _BINDS_DATA, Use.WITHIN: _BINDS_DATA}

RUNS_AGAIN_AS_WRITTEN: Mapping[DirtyMark, Mapping[Use, When]] = {
    DirtyMark.KEPT: {Use.USED: _BINDS_DATA},  # `Class(1).method()`
    DirtyMark.CALLING: _PASSED,
    DirtyMark.FUNCTION: _PASSED,
    DirtyMark.FLOWING: _PASSED,
}
"""The answer by mark and by the use as written, where the other table has none."""


class ModulePlan(msgspec.Struct):
    """The plan of one module: which of its new statements run, by index, and the marks of its
    names."""

    edit: ModuleEdit
    #: Statements that run.
    run: set[int] = set()
    #: Statements that run as well, but only so that others can call what they define.
    twin: set[int] = set()
    #: Containers with definitions of `twin` in them.
    shadowed: set[str] = set()
    #: Kept instances that running statements may look at.
    disguised: set[str] = set()
    marks: dict[str, DirtyMark] = {}
    #: For each statement that runs, the names that it reads and that force it to.
    forced_by: dict[int, set[str]] = {}

    @property
    def is_staged(self) -> bool:
        """Whether code of the trial must see the module as it will be, because that differs from
        the live module.
        """
        return bool(self.run or self.twin or self.shadowed or self.disguised or self.edit.gone)


class EditPlan(msgspec.Struct, frozen=True):
    """The plan of an edit: a plan for each module, by name. The modules are in the order in which
    their statements run.
    """

    modules: dict[str, ModulePlan]
