"""All objects that the garbage collector knows, listed while no other thread runs.

A list of them adds a reference to each object. A tuple that another thread is filling could not be
finished then (``SystemError: Objects/tupleobject.c``), and objects that a step frees would stay. So
the list is made, searched and dropped within one call into C, during which no other thread runs.
Nor may the collector run: its finalizers and ``gc.callbacks`` let other threads run.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain, compress, repeat
from operator import not_
from typing import Any

# `hash` runs code of metaclasses, and `id` raises an audit event: both may let other threads run.
_address = object.__hash__


_looking = threading.RLock()


@contextmanager
def collector_paused() -> Iterator[None]:
    """Disable the garbage collector in this block."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def _no_collections() -> Iterator[None]:
    # Up to Python 3.11, making any container may start the collector.
    with _looking, collector_paused():
        yield


def objects_of(kinds: Collection[type]) -> list[Any]:
    """Return all objects whose type is exactly one of these."""
    if not kinds:
        return []
    # No variable refers to the list that is iterated over: it is freed when the call ends.
    with _no_collections():
        return list(_of_types(frozenset(map(_address, kinds)), None))


def with_subclasses(cls: type) -> list[type]:
    """Return the class and all classes that derive from it, frozen ones included."""
    classes: dict[int, type] = {}
    pending = [cls]
    while pending:
        derived = pending.pop()
        if id(derived) not in classes:
            classes[id(derived)] = derived
            pending += type.__subclasses__(derived)
    return list(classes.values())


def are_all_seen(things: Iterable[Any]) -> bool:
    """Return whether the garbage collector knows all of these objects. No object may occur twice in
    ``things``."""
    wanted = frozenset(map(_address, things))
    with _no_collections():
        seen = map(_address, chain.from_iterable(_lists(None)))
        # `sum` goes to the end. A search that stops midway, as `wanted <= ...`, keeps the list.
        return sum(map(wanted.__contains__, seen)) == len(wanted)


def held_objects(generation: int | None, holders: Iterable[Any]) -> dict[int, Any]:
    """Return the objects in a generation of the garbage collector (None: in all), by id.

    A tuple is left out if neither another object nor an object in ``holders`` refers to it, because
    another thread may still be constructing it.
    """
    tuple_type = frozenset({_address(tuple)})
    with _no_collections():
        tuples = frozenset(map(_address, _of_types(tuple_type, generation)))
        others = list(_of_types(tuple_type, generation, not_))
    objects = {id(thing): thing for thing in others}
    pending = [*others, *holders]
    while pending:
        parts = chain.from_iterable(map(gc.get_referents, pending))
        held = {
            id(part): part for part in parts if type(part) is tuple and _address(part) in tuples
        }
        pending = [part for part in held.values() if id(part) not in objects]
        objects.update(held)
    return objects


def _of_types(types: frozenset[int], generation: int | None, which: Any = bool) -> Iterator[Any]:
    # Not `tee`: it is made before the list, so it is in the list and refers to it, as a cycle.
    twice = chain.from_iterable(map(repeat, _lists(generation), (2,)))
    addresses = map(partial(map, _address), map(partial(map, type), twice))
    are_of_types = map(partial(map, types.__contains__), addresses)
    return chain.from_iterable(map(compress, twice, map(partial(map, which), are_of_types)))


def _lists(generation: int | None) -> Iterator[list[Any]]:
    """Yield one list, of all objects in a generation (None: of all generations). The list is made
    only when the iterator is advanced."""
    return map(gc.get_objects, (generation,))
