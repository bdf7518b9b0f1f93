"""Moves code to other lines without making another code object.

All lines of a code object count from its first line, which Python offers no way to change. The
collector, torch's compiler and suspended frames refer to the object itself, so the number is
written into its memory. Its position is found once for this version of Python; if it is not found,
nothing is moved in place.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from ctypes import c_int, sizeof
from dataclasses import dataclass
from types import CodeType

_PROBES = 0x2BADCAFE, 0x1F00D5ED


@dataclass(frozen=True, eq=False)
class LineShift:
    """A flip that moves `code`, and all code inside it, down by ``distance`` lines."""

    code: CodeType
    distance: int

    def apply(self) -> Callable[[], None]:
        _shift(self.code, self.distance)
        return lambda: _shift(self.code, -self.distance)


def lines_moved(old: CodeType, new: CodeType) -> int | None:
    """Return by how many lines `new` is below `old`, if they are the same in all else; None if they
    are not, or if lines cannot be moved in place."""
    distance = new.co_firstlineno - old.co_firstlineno
    return distance if _offset() is not None and _is_alike(old, new, distance) else None


def _is_alike(old: CodeType, new: CodeType, distance: int) -> bool:
    return (
        new.co_firstlineno - old.co_firstlineno == distance
        and old.co_filename == new.co_filename
        and _qualname(old) == _qualname(new)
        and old.co_linetable == new.co_linetable
        and len(old.co_consts) == len(new.co_consts)
        and all(
            _is_alike(old_part, new_part, distance)
            for old_part, new_part in zip(old.co_consts, new.co_consts, strict=True)
            if isinstance(old_part, CodeType) and isinstance(new_part, CodeType)
        )
        and _without_lines(old) == _without_lines(new)
    )


def _qualname(code: CodeType) -> str:
    return str(getattr(code, "co_qualname", ""))  # not in Python 3.10


def _without_lines(code: CodeType) -> CodeType:
    inner = tuple(
        _without_lines(constant) if isinstance(constant, CodeType) else constant
        for constant in code.co_consts
    )
    return code.replace(co_firstlineno=1, co_consts=inner)


def _shift(code: CodeType, distance: int) -> None:
    offset = _offset()
    assert offset is not None
    for inner in _all_in(code):
        _number_at(inner, offset).value += distance


def _all_in(code: CodeType) -> Iterator[CodeType]:
    yield code
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _all_in(one)


def _number_at(code: CodeType, offset: int) -> c_int:
    return c_int.from_address(id(code) + offset)


@functools.cache
def _offset() -> int | None:
    """Return the offset of the first line's number inside a code object; None if it is not
    found."""
    code = _offset.__wrapped__.__code__
    first, second = (code.replace(co_firstlineno=line) for line in _PROBES)
    offsets = [
        offset
        for offset in range(object.__basicsize__, CodeType.__basicsize__, sizeof(c_int))
        if _number_at(first, offset).value == _PROBES[0]
        and _number_at(second, offset).value == _PROBES[1]
    ]
    if len(offsets) != 1:
        return None
    _number_at(first, offsets[0]).value = 7
    return offsets[0] if first.co_firstlineno == 7 else None
