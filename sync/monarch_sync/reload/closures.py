"""Functions that edited functions made earlier, wherever they are held."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any

from .flips import Attribute, Flip
from .patch import same_behaviour

# Functions too, up to Python 3.11 all of them, which run where they are made: nobody holds them.
_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")


def follow_edited_makers(flips: Iterable[Flip]) -> list[Attribute]:
    """New code for the living closures of every function that gets new code.

    What a closure holds stays. One that takes other names from its maker now, or more or fewer
    arguments, keeps the old code: nobody has the values, or the defaults. The search
    looks at every object, and happens only where the code of an inner function differs.
    """
    heirs: dict[int, tuple[CodeType, CodeType]] = {}
    taken: set[int] = set()
    for flip in flips:
        if isinstance(flip, Attribute) and flip.name == "__code__":
            taken.add(id(flip.owner))
            for old, new in pairs_of(flip.owner.__code__, flip.value):
                if old.co_name not in _COMPREHENSIONS:
                    heirs[id(old)] = old, new
    if not heirs:
        return []
    return [
        Attribute(holder, "__code__", heirs[id(holder.__code__)][1])
        for holder in gc.get_referrers(*(old for old, _ in heirs.values()))
        if type(holder) is FunctionType and id(holder) not in taken and id(holder.__code__) in heirs
    ]


def pairs_of(old: CodeType, new: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """Inner functions that differ, by name; those of one name in their order."""
    if same_behaviour(old, new):
        return
    before, after = _inner(old), _inner(new)
    for name, olds in before.items():
        news = after.get(name, [])
        if len(olds) != len(news):
            continue
        for one, other in zip(olds, news, strict=True):
            if _takes(one) == _takes(other) and not same_behaviour(one, other):
                yield one, other
            yield from pairs_of(one, other)


def _takes(code: CodeType) -> tuple[Any, ...]:
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount
    return code.co_freevars, code.co_flags, counts


def _inner(code: CodeType) -> dict[str, list[CodeType]]:
    found: dict[str, list[CodeType]] = {}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found.setdefault(constant.co_name, []).append(constant)
    return found
