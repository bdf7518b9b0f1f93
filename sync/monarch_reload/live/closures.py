"""Functions that edited functions made earlier, wherever they are held."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any, TypeGuard

from monarch_reload.live.patch import same_behaviour
from monarch_reload.source.source import ModuleSource
from monarch_reload.undo_log import Attribute, Flip

# Functions too, up to Python 3.11 all of them, which run where they are made: no other object holds
# them.
_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")


def follow_edited_makers(flips: Iterable[Flip], sources: Iterable[ModuleSource]) -> list[Attribute]:
    """New code for the living closures of every function that gets new code.

    Values that a closure holds stay. One that takes other names from its maker now, or more or
    fewer arguments, keeps the old code: the values, or the defaults, are not there. The search
    looks at every object, and happens only where the code of an inner function differs, and more
    hold that than its maker and the `sources` that run.
    """
    owners = [(flip.owner, flip.value) for flip in flips if _is_of_code(flip)]
    pairs = [pair for owner, code in owners for pair in pairs_of(owner.__code__, code)]
    heirs = {id(pair[0]): pair for pair in pairs if pair[0].co_name not in _COMPREHENSIONS}
    # Two modules may have been loaded from one file.
    known = {id(source): source.codes for source in sources if "codes" in vars(source)}
    if all(
        _num_holders(pair) <= _NUM_HOLDERS + sum(codes.has(pair[0]) for codes in known.values())
        for pair in heirs.values()
    ):
        return []
    taken = {id(owner) for owner, _ in owners}
    return [
        Attribute(holder, "__code__", heirs[id(holder.__code__)][1])
        for holder in gc.get_referrers(*(old for old, _ in heirs.values()))
        if type(holder) is FunctionType and id(holder) not in taken and id(holder.__code__) in heirs
    ]


def _is_of_code(flip: Flip) -> TypeGuard[Attribute]:
    return isinstance(flip, Attribute) and flip.name == "__code__"


def _num_holders(pair: tuple[CodeType, Any]) -> int:
    return sys.getrefcount(pair[0])


_MAKER = compile("lambda: 0", "", "eval")
# Of a code object that nothing holds but the code that it is in, and the pair.
_NUM_HOLDERS = _num_holders((_MAKER.co_consts[0], None))


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
