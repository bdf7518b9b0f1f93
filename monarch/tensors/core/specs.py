"""Arguments as data: the rest of a call when its tensors and numbers are taken out.

A spec is a tuple that begins with a letter:

    ("t", n)            the n-th tensor
    ("o", n)            the n-th tensor, or None in a proc that has none
    ("s", n)            the n-th number
    ("l", [spec...])    a list; "u": a tuple
    ("n", cls, [...])   a named tuple, or another container that is made of its items
    ("d", [(k, spec)])  a dict
    ("c", value)        the value itself
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from monarch.tensors.core.keys import CONTAINERS, NumberList

Spec = tuple[Any, ...]


class CallSpec(NamedTuple):
    """A call's arguments as specs, its numbers of inputs and scalars, and where its results are."""

    args: list[Spec]
    kwargs: list[tuple[str, Spec]]
    num_in: int
    num_scalars: int
    #: The path to each result in the value that the call returns; ``None`` for an input itself.
    paths: list[tuple[Any, ...] | None]


class SpecMaker:
    """Takes the arguments of one call apart, in the order in which ``Flattener`` does.

    ``kinds`` are the classes of tensors, and ``numbers`` is the parameter of ``Flattener.flatten``.
    """

    def __init__(self, kinds: type | tuple[type, ...], numbers: frozenset[Any]) -> None:
        self.tensors: list[Any] = []
        self.scalars: list[Any] = []
        self._kinds = kinds
        self._numbers = numbers

    def arguments(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[list[Spec], list[tuple[str, Spec]]]:
        return (
            [self._argument(n, value) for n, value in enumerate(args)],
            [(name, self._argument(name, value)) for name, value in kwargs.items()],
        )

    def _argument(self, where: Any, value: Any) -> Spec:
        if type(value) in (int, float) and where in self._numbers:
            self.scalars.append(value)
            return ("s", len(self.scalars) - 1)
        if type(value) is list and NumberList(where) in self._numbers:
            return ("l", [self._number(item) for item in value])
        return self.spec(value)

    def _number(self, value: Any) -> Spec:
        if type(value) not in (int, float):
            return self.spec(value)
        self.scalars.append(value)
        return ("s", len(self.scalars) - 1)

    def spec(self, value: Any) -> Spec:
        if isinstance(value, self._kinds):
            self.tensors.append(value)
            return ("t", len(self.tensors) - 1)
        if type(value) in (list, tuple):
            return ("l" if type(value) is list else "u", [self.spec(item) for item in value])
        if isinstance(value, tuple):
            return ("n", type(value), [self.spec(item) for item in value])
        if type(value) is dict:
            return ("d", [(key, self.spec(item)) for key, item in value.items()])
        if type(value) in CONTAINERS:
            items, rebuild = CONTAINERS[type(value)]
            return ("n", rebuild, [self.spec(item) for item in items(value)])
        return ("c", value)


def take_apart(value: Any, kinds: type | tuple[type, ...]) -> tuple[Spec, list[Any]]:
    """Return the spec of a value, and the tensors in it: its parts of the classes ``kinds``."""
    maker = SpecMaker(kinds, frozenset())
    return maker.spec(value), maker.tensors


def fill(spec: Spec, tensors: Sequence[Any], scalars: Sequence[Any] = ()) -> Any:
    """Build the value of ``spec``, with these tensors and numbers in it."""
    kind = spec[0]
    if kind in ("t", "o"):
        return tensors[spec[1]]
    if kind == "s":
        return scalars[spec[1]]
    if kind == "l":
        return [fill(item, tensors, scalars) for item in spec[1]]
    if kind == "u":
        return tuple(fill(item, tensors, scalars) for item in spec[1])
    if kind == "n":
        return _named(spec[1], [fill(item, tensors, scalars) for item in spec[2]])
    if kind == "d":
        return {key: fill(item, tensors, scalars) for key, item in spec[1]}
    return spec[1]


def paths(spec: Spec) -> list[tuple[Any, ...]]:
    """Return the path to each tensor in the value of ``spec``, as indexes and keys."""
    kind = spec[0]
    if kind == "t":
        return [()]
    if kind == "d":
        return [(key, *path) for key, item in spec[1] for path in paths(item)]
    if kind in ("l", "u", "n"):
        return [(n, *path) for n, item in enumerate(spec[-1]) for path in paths(item)]
    return []


def _named(kind: Any, items: list[Any]) -> Any:
    # torch.return_types take one sequence, named tuples their items.
    return kind(*items) if hasattr(kind, "_fields") else kind(items)
