"""Classes that are sent by value, because no other process can import them: those of scripts and
notebooks.

cloudpickle numbers them, so that a process that gets the same class twice makes it only once. A new
version that must replace such a class first has to arrive as a second class beside it.
"""

from __future__ import annotations

from typing import Any

from cloudpickle import cloudpickle

from monarch.wire import payload
from monarch.wire.pickler import place_of_stray


def is_by_value(cls: type) -> bool:
    """Return whether the class is sent by value; other classes are imported by the receiver."""
    return not cloudpickle._should_pickle_by_reference(cls) and place_of_stray(cls) is None


def dump_afresh(cls: type) -> list[bytes]:
    """Return a pickle of the present version of a class, and its buffers, for ``load_afresh``."""
    with cloudpickle._DYNAMIC_CLASS_TRACKER_LOCK:
        by_class, by_id = (
            cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS,
            cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID,
        )
        tracked = by_class.pop(cls, None)
    number = tracked or cloudpickle._get_or_create_tracker_id(cls)
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
    """Load a class as a new one beside any older version; return it with its cloudpickle number."""
    data, *buffers = pickled
    cls, number = payload.load(data, buffers)
    return cls, number


class _Order:
    """A class with pickled arguments: the class arrives as it is now, the arguments as they were
    when they were pickled."""

    def __init__(self, cls: type, arguments: list[bytes]) -> None:
        self._parts = cls, arguments

    def __reduce__(self) -> Any:
        return _order, self._parts


def _order(cls: type, arguments: list[bytes]) -> tuple[type, Any, Any]:
    data, *buffers = arguments
    args, kwargs = payload.load(data, buffers)
    return cls, args, kwargs


def dump_arguments(args: Any, kwargs: Any) -> list[bytes]:
    """Return a pickle of constructor arguments as they are now, and its buffers, for
    ``dump_order``."""
    data, buffers = payload.dump((args, kwargs))
    return [bytes(data), *map(bytes, buffers)]


def dump_order(cls: type, arguments: list[bytes]) -> payload.Payload:
    """Pickle an order to make an actor, which loads as the present class, ``args`` and ``kwargs``.

    ``arguments`` are as ``dump_arguments`` returned them. To send a newer class, pickle a new
    order: loading an earlier one here would turn the class back into its earlier version.
    """
    return payload.dump(_Order(cls, arguments))


def stand_for(number: str, cls: type) -> Any:
    """Use ``cls`` in place of the class with this cloudpickle ``number`` when a pickle arrives.

    Returns a function that undoes it.
    """
    by_id = cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID
    replaced = by_id.get(number)
    by_id[number] = cls

    def undo() -> None:
        if replaced is None:
            by_id.pop(number, None)
        else:
            by_id[number] = replaced

    return undo
