"""Moves code to other lines without making another code object.

All lines of a code object count from its first line, which Python offers no way to change. The
collector, torch's compiler and suspended frames refer to the object itself, so the number is
written into its memory. Its position is found once for this version of Python; if it is not found,
nothing is moved in place.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from ctypes import c_int, sizeof
from dataclasses import dataclass
from types import CodeType

from monarch_reload.source.codes import inner_codes, moved_code, qualname_of

_PROBES = 0x2BADCAFE, 0x1F00D5ED


@dataclass(frozen=True, eq=False)
class LineShift:
    """A change that moves ``code``, and all code inside it, down by ``distance`` lines."""

    code: CodeType
    distance: int

    def apply(self) -> Callable[[], None]:
        _shift(self.code, self.distance)
        return lambda: _shift(self.code, -self.distance)


def lines_moved(old: CodeType, new: CodeType) -> int | None:
    """Return how many lines ``new`` is below ``old``. None if anything but the lines differs, or if
    this Python does not allow to change the lines of a code object.
    """
    distance = new.co_firstlineno - old.co_firstlineno
    if _offset() is None or moved_code(old, distance) != new:
        return None
    pairs = zip((old, *inner_codes(old)), (new, *inner_codes(new)), strict=True)
    is_same = all(_not_compared(before) == _not_compared(after) for before, after in pairs)
    return distance if is_same else None


def _not_compared(code: CodeType) -> tuple[str, str, bytes]:
    """Return the attributes of a code object that `==` leaves out."""
    return code.co_filename, qualname_of(code), code.co_linetable


def _shift(code: CodeType, distance: int) -> None:
    offset = _offset()
    assert offset is not None
    for inner in (code, *inner_codes(code)):
        _number_at(inner, offset).value += distance


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
