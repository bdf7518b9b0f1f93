"""The facts of torch operators that the dispatcher needs, worked out once for each operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from monarch.tensors.core.keys import NumberList

ITEM: Any = torch.ops.aten._local_scalar_dense.default
LIFT: Any = torch.ops.aten.lift_fresh.default
_LOCAL_ONLY = ("aten::set_", "aten::_local_scalar_dense")
# A number in the place of a tensor, as in `t * 0.5`, arrives as the number it was written as.
_NUMBERS = frozenset(("number", "Optional[number]", "float", "Optional[float]", "Tensor"))


class OperatorFacts:
    """The facts of one operator's schema: which arguments are numbers, which are written to."""

    __slots__ = (
        "changes_shape",
        "func",
        "is_local",
        "is_random",
        "may_be_local",
        "name",
        "numbers",
        "second_is_number",
        "written",
    )

    def __init__(self, func: Any) -> None:
        self.func = func
        self.name = str(func)
        schema = func._schema
        arguments = schema.arguments
        # Optimizers mark their steps for the profiler; that is for this process.
        self.is_local = schema.name.startswith("profiler::")
        # Of plain local tensors: unpickling a value, reading one.
        self.may_be_local = schema.name in _LOCAL_ONLY
        self.changes_shape = torch.Tag.inplace_view in func.tags
        self.is_random = torch.Tag.nondeterministic_seeded in func.tags
        numbers: list[tuple[Any, Any]] = [
            (n, argument.name)
            for n, argument in enumerate(arguments)
            if str(argument.type) in _NUMBERS
        ]
        lists = [
            (NumberList(n), NumberList(argument.name))
            for n, argument in enumerate(arguments)
            if str(argument.type) == "List[number]"
        ]
        self.numbers: frozenset[Any] = frozenset(part for pair in numbers + lists for part in pair)
        self.second_is_number = 1 in self.numbers
        self.written = tuple(
            (n, argument.name)
            for n, argument in enumerate(arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        )

    def written_tensors(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the arguments that the operator writes to: version counters do not move inside
        dispatch."""
        found: list[Any] = []
        for n, name in self.written:
            value = args[n] if n < len(args) else kwargs.get(name)
            if isinstance(value, (list, tuple)):
                found += value
            elif value is not None:
                found.append(value)
        return found


_facts: dict[Any, OperatorFacts] = {}


def facts_of(func: Any) -> OperatorFacts:
    found = _facts.get(func)
    if found is None:
        found = _facts[func] = OperatorFacts(func)
    return found
