"""Values that pass from one thread of a proc to another: between streams, and to and from actors.

A slot has a ticket, which the controller gave out. One side puts, the other takes, in either order
of time; the taker waits. Taking empties it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any


class Poison:
    """Stands where a value would be, had nothing failed."""

    __slots__ = ()


POISON = Poison()


class Poisoned(Exception):
    """An operation was given what had failed before."""


def refuse_poison(*values: Any) -> None:
    """Raise ``Poisoned`` where one of ``values`` has failed before."""
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
"""The latest tickets that are done with: who gives up on one may come late."""
_MOST_TAKEN = 4096
_lock = threading.Lock()


def put(ticket: int, value: Any) -> None:
    """Fill a slot. Of two that do, the first counts."""
    with _lock:
        if ticket in _taken:
            return
        slot = _slots.setdefault(ticket, _Slot())
        if not slot.filled.is_set():
            slot.value = value
            slot.filled.set()


def take(ticket: int) -> Any:
    """The value; waits until it is there."""
    with _lock:
        slot = _slots.setdefault(ticket, _Slot())
    slot.filled.wait()
    with _lock:
        _slots.pop(ticket, None)
        if ticket > 0:  # Those of recordings come again.
            _taken[ticket] = None
        if len(_taken) > _MOST_TAKEN:
            _taken.popitem(last=False)
    return slot.value
