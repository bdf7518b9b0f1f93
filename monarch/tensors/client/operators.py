"""The facts of torch operators that the dispatcher needs, computed once for each operator."""

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
    """What the dispatcher must know of a torch operator, read once from the operator's schema."""

    def __init__(self, func: Any) -> None:
        self.func = func
        self.name = str(func)
        schema = func._schema
        #: Whether it always runs in this process: optimizers mark their steps for the profiler.
        self.is_local = schema.name.startswith("profiler::")
        #: Whether it runs in this process unless a tensor is distributed: unpickling and reading.
        self.may_be_local = schema.name in _LOCAL_ONLY
        #: Whether it changes the shape of its first argument in place.
        self.changes_shape = torch.Tag.inplace_view in func.tags
        #: Whether its result is random.
        self.is_random = torch.Tag.nondeterministic_seeded in func.tags
        numbers: set[Any] = set()
        written = []
        for n, argument in enumerate(schema.arguments):
            kind = str(argument.type)
            if kind in _NUMBERS:
                numbers |= {n, argument.name}
            elif kind == "List[number]":
                numbers |= {NumberList(n), NumberList(argument.name)}
            if argument.alias_info is not None and argument.alias_info.is_write:
                written.append((n, argument.name))
        #: The numbers among the arguments, as ``Flattener.flatten`` takes them.
        self.numbers = frozenset(numbers)
        self.second_is_number = 1 in numbers
        #: The positions and names of the arguments that it writes to.
        self.written = tuple(written)

    def written_tensors(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the arguments that the operator writes to, according to its schema."""
        tensors: list[Any] = []
        for n, name in self.written:
            value = args[n] if n < len(args) else kwargs.get(name)
            if isinstance(value, (list, tuple)):
                tensors += value
            elif value is not None:
                tensors.append(value)
        return tensors


_facts: dict[Any, OperatorFacts] = {}  # by operator


def facts_of(func: Any) -> OperatorFacts:
    """Return the facts of an operator, which are computed at the first call."""
    facts = _facts.get(func)  # No `functools.cache`: torch's compiler warns where it meets one.
    if facts is None:
        facts = _facts[func] = OperatorFacts(func)
    return facts
