"""Classes that travel whole, because no other process can import them: of scripts and notebooks.

cloudpickle numbers them, so that a process that is sent one twice has one class. A new version of
a class that must take the place of an old one must first arrive beside it.
"""

from __future__ import annotations

from typing import Any

from cloudpickle import cloudpickle

from monarch.wire import payload
from monarch.wire.pickler import place_of_stray


def is_by_value(cls: type) -> bool:
    """Whether the class is sent whole; others are imported where they arrive."""
    return not cloudpickle._should_pickle_by_reference(cls) and place_of_stray(cls) is None


def dump_afresh(cls: type) -> list[bytes]:
    """The class as it is now, for ``load_afresh``."""
    with cloudpickle._DYNAMIC_CLASS_TRACKER_LOCK:
        by_class, by_id = (
            cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS,
            cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID,
        )
        known = by_class.pop(cls, None)
    number = known or cloudpickle._get_or_create_tracker_id(cls)
    by_class.pop(cls, None)
    try:
        data, buffers = payload.dump((cls, number))
        return [bytes(data), *map(bytes, buffers)]
    finally:
        with cloudpickle._DYNAMIC_CLASS_TRACKER_LOCK:
            by_id.pop(by_class.get(cls), None)
            by_class[cls] = number
            by_id[number] = cls


def load_afresh(pickled: list[bytes]) -> tuple[type, str]:
    """A class of its own, and the number by which its sender knows it."""
    data, *buffers = pickled
    cls, number = payload.load(data, buffers)
    return cls, number


class _Order:
    """A class, and arguments that were pickled before: they arrive as they were then."""

    def __init__(self, cls: type, arguments: list[bytes]) -> None:
        self._parts = cls, arguments

    def __reduce__(self) -> Any:
        return _order, self._parts


def _order(cls: type, arguments: list[bytes]) -> tuple[type, Any, Any]:
    data, *buffers = arguments
    args, kwargs = payload.load(data, buffers)
    return cls, args, kwargs


def dump_arguments(args: Any, kwargs: Any) -> list[bytes]:
    """Constructor arguments as they are now, for ``dump_order``."""
    data, buffers = payload.dump((args, kwargs))
    return [bytes(data), *map(bytes, buffers)]


def dump_order(cls: type, arguments: list[bytes]) -> payload.Payload:
    """Makes an actor: loads as the class as it is now, ``args`` and ``kwargs``.

    Loading the first order here to change it would put the class here back to what it was.
    """
    return payload.dump(_Order(cls, arguments))


def stand_for(number: str, cls: type) -> Any:
    """From now on, ``cls`` is what a class of that number arrives as; the result undoes it."""
    by_id = cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID
    before = by_id.get(number)
    by_id[number] = cls

    def undo() -> None:
        if before is None:
            by_id.pop(number, None)
        else:
            by_id[number] = before

    return undo
