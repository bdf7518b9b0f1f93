"""Values that pass from one thread of a proc to another: between streams, and to and from actors.

A slot has a ticket, which the controller gave out. One side puts, the other takes, in either order of
time; the taker waits. Taking empties it.
"""

from __future__ import annotations

import threading
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
_lock = threading.Lock()


def _slot(ticket: int) -> _Slot:
    with _lock:
        return _slots.setdefault(ticket, _Slot())


def put(ticket: int, value: Any) -> None:
    slot = _slot(ticket)
    slot.value = value
    slot.filled.set()


def take(ticket: int) -> Any:
    """The value; waits until it is there."""
    slot = _slot(ticket)
    slot.filled.wait()
    with _lock:
        _slots.pop(ticket, None)
    return slot.value


def put_if_awaited(ticket: int, value: Any) -> None:
    """Fill a slot unless it has been; for who knows that nobody else will."""
    slot = _slot(ticket)
    if not slot.filled.is_set():
        put(ticket, value)
