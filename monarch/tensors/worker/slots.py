"""Values that pass from one thread of a proc to another: between streams, and to and from actors.

The controller numbers the slots with tickets. One side puts a value, the other takes it, in either
order; the taker waits. Taking empties the slot.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any


class Poison:
    """The value of an operation that failed."""

    __slots__ = ()


POISON = Poison()


class Poisoned(Exception):
    """An operation got an input that comes from an operation that failed."""


def refuse_poison(*values: Any) -> None:
    """Raise ``Poisoned`` if one of ``values`` comes from an operation that failed."""
    for value in values:
        if type(value) is Poison:
            raise Poisoned("what this needs has failed before")


class _Slot:
    __slots__ = ("filled", "value")

    def __init__(self) -> None:
        self.filled = threading.Event()
        self.value: Any = None


_slots: dict[int, _Slot] = {}
_taken: OrderedDict[int, None] = OrderedDict()
"""The latest tickets that were taken: somebody may give up on one later."""
_MOST_TAKEN = 4096
_lock = threading.Lock()


def put(ticket: int, value: Any) -> None:
    """Fill a slot. If it is filled already, or was taken, nothing changes."""
    with _lock:
        if ticket in _taken:
            return
        slot = _slots.setdefault(ticket, _Slot())
        if not slot.filled.is_set():
            slot.value = value
            slot.filled.set()


def take(ticket: int) -> Any:
    """Wait for the slot's value, return it, and empty the slot."""
    with _lock:
        slot = _slots.setdefault(ticket, _Slot())
    slot.filled.wait()
    with _lock:
        _slots.pop(ticket, None)
        if ticket > 0:  # Recordings use their tickets again.
            _taken[ticket] = None
        if len(_taken) > _MOST_TAKEN:
            _taken.popitem(last=False)
    return slot.value
