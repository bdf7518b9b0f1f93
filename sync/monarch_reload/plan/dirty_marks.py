"""What an edit does to a name, which uses of it must run again, and what a plan holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from monarch_reload.plan.graph import ModuleEdit
from monarch_reload.source.names import Use


class DirtyMark(IntEnum):
    """What an edit did to a name; the higher one wins."""

    KEPT = 1  # kept instance of a class some of whose members behave differently
    INSTANCE = 2  # kept instance of a class whose attributes differ
    METHODS = 3  # class: only methods behave differently
    CALLING = 4  # function: it calls what was patched in place
    FUNCTION = 5  # function: patched in place
    FLOWING = 6  # function: its result depends on a changed value
    SHAPE = 7  # class: attributes, bases or fields differ, patched in place
    VALUE = 8  # bound to something else, or gone


RUNS_AGAIN: Mapping[DirtyMark, frozenset[Use]] = {
    # But for the members that differ, and for data: see `Propagation.forcing`.
    DirtyMark.KEPT: frozenset(),
    DirtyMark.CALLING: frozenset(),
    # Not USED: an optimizer made of `model.parameters()` has state of its own.
    DirtyMark.INSTANCE: frozenset({Use.INSIDE}),
    DirtyMark.METHODS: frozenset({Use.USED, Use.REGISTERS}),
    # Not REGISTERS, where it runs its new body in place: what was registered with it stays.
    DirtyMark.FUNCTION: frozenset({Use.CALLED, Use.USED}),
    DirtyMark.FLOWING: frozenset({Use.CALLED, Use.USED, Use.REGISTERS}),
    DirtyMark.SHAPE: frozenset({Use.USED, Use.REGISTERS, Use.INSIDE, Use.BASE, Use.PASSED}),
    DirtyMark.VALUE: frozenset(Use),
}


@dataclass
class ModulePlan:
    edit: ModuleEdit
    run: set[int] = field(default_factory=set)
    twin: set[int] = field(default_factory=set)  # run too, but only for others to call
    shadowed: set[str] = field(default_factory=set)  # containers of what is twinned
    disguised: set[str] = field(default_factory=set)  # kept instances that what runs may look at
    marks: dict[str, DirtyMark] = field(default_factory=dict)
    forced_by: dict[int, set[str]] = field(default_factory=dict)  # names read, for what runs

    @property
    def is_staged(self) -> bool:
        """Whether staged code sees something else of the module than what is live."""
        return bool(self.run or self.twin or self.shadowed or self.disguised or self.edit.gone)


@dataclass(frozen=True)
class EditPlan:
    """Modules in the order in which their statements run."""

    modules: dict[str, ModulePlan]
