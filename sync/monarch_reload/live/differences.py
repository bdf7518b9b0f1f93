"""The difference between two looks at a list, deque, dict or set. Pure.

A difference is applied entry by entry, to the present content of the container: entries that other
code changed meanwhile stay, and keep their order.
"""

from __future__ import annotations

import contextlib
import operator
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice, takewhile
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec.structs import replace

from monarch_reload.undo_log import MISSING


def is_same(one: Any, other: Any) -> bool:
    """Return whether two containers of one type have the same objects in the same order. It is
    False also if another thread changes one of them during the comparison.
    """
    try:
        if len(one) != len(other) or not all(map(operator.is_, one, other)):
            return False
        return not isinstance(one, dict) or all(map(operator.is_, one.values(), other.values()))
    except RuntimeError:
        return False  # another thread changed it meanwhile


class Glance:
    """Tells whether any of many containers has changed since the last call of ``has_changed``.

    This is much faster than comparing each. Mapping proxies may be among them, too.
    """

    def __init__(self, containers: Iterable[Any]) -> None:
        kinds: dict[type, list[Any]] = {dict: [], MappingProxyType: [], object: []}
        for container in containers:
            kinds[next(kind for kind in kinds if isinstance(container, kind))].append(container)
        dicts, proxies, others = kinds.values()
        values = *map(dict.values, dicts), *map(MappingProxyType.values, proxies)
        self._all = (*dicts, *proxies, *others, *values)
        # Empty, so that the first glance looks at all of them at one moment.
        self._seen: tuple[Any, ...] = ()

    def has_changed(self) -> bool:
        # As in `is_same`.
        try:
            is_same = sum(map(len, self._all)) == len(self._seen) and all(
                map(operator.is_, self._seen, chain.from_iterable(self._all))
            )
        except RuntimeError:
            is_same = False
        if not is_same:
            self._seen = self._content()
        return not is_same

    def _content(self) -> tuple[Any, ...]:
        while True:
            with contextlib.suppress(RuntimeError):  # another thread changed it meanwhile
                return tuple(chain.from_iterable(self._all))


def begins_with(one: Any, other: Any) -> bool:
    """Return whether the first entries of both containers are the same objects, up to the shorter
    one's length. False for sets, which have no order."""
    if isinstance(one, set) or not all(map(operator.is_, one, other)):
        return False
    return not isinstance(one, dict) or all(map(operator.is_, one.values(), other.values()))


def refill(container: Any, content: Any) -> None:
    if isinstance(container, list):
        container[:] = content
        return
    container.clear()
    if isinstance(container, dict):
        # A Counter's `update` adds.
        for key, value in content.items():
            container[key] = value
    elif isinstance(container, set):
        container.update(content)
    else:
        container.extend(content)


class Difference(msgspec.Struct, frozen=True, eq=False):
    """The difference between two states of a container: entries that are ``gone``, and entries that
    were ``put`` in.

    ``gone`` and ``put`` have the type of the container, but are lists for a deque. In a list,
    ``put`` replaces the gone entries from the index ``start`` on.
    """

    gone: Any
    put: Any
    start: int = 0
    at_end: bool = False
    order: Sequence[Any] = ()  # of the keys afterwards
    replaced: Any = None  # the earlier values of the keys in `put`

    @classmethod
    def between(cls, before: Any, after: Any) -> Difference | None:
        if is_same(before, after):
            return None
        if len(after) > len(before) and begins_with(after, before):
            num = len(before)
            if isinstance(before, dict):
                put = dict(islice(after.items(), num, None))
                return cls({}, put, order=list(after), replaced={})
            return cls([], list(islice(after, num, None)), num, True)
        if isinstance(before, dict):
            gone = {key: value for key, value in before.items() if key not in after}
            put = {k: v for k, v in after.items() if before.get(k, MISSING) is not v}
            replaced = {key: before[key] for key in put if key in before}
            return cls(gone, put, order=list(after), replaced=replaced)
        if isinstance(before, set):
            return cls(before - after, after - before) if before != after else None
        old, new = list(before), list(after)
        start = _num_same(old, new)
        tail = _num_same(old[start:][::-1], new[start:][::-1])
        end = len(old) - tail
        return cls(old[start:end], new[start : len(new) - tail], start, start == len(old))

    def without(self, is_left_out: Callable[[Any], bool]) -> Difference:
        """Return the same difference without those entries of ``put`` for which ``is_left_out`` is
        true.
        """
        if isinstance(self.put, dict):
            return replace(self, put={k: v for k, v in self.put.items() if not is_left_out(v)})
        return replace(self, put=type(self.put)(v for v in self.put if not is_left_out(v)))

    def apply(self, container: Any, over_others: bool = True) -> None:
        """Make the same change to ``container``.

        With ``over_others`` False, a dict key is left alone if its value is no longer the value
        that it had before the difference.
        """
        if isinstance(container, dict):
            for key, value in self.gone.items():
                if over_others or container.get(key) is value:
                    container.pop(key, None)
            for key, value in self.put.items():
                before = MISSING if self.replaced is None else self.replaced.get(key, MISSING)
                if over_others or container.get(key, MISSING) is before:
                    container[key] = value
            keys = list(container)
            if keys != self.order and container.keys() == set(self.order):
                refill(container, {key: container[key] for key in self.order})
        elif isinstance(container, set):
            container -= self.gone
            container |= self.put
        elif self.gone:
            self._replace(container)
        elif self.put:
            insert(container, self.put, None if self.at_end else self.start)

    def _replace(self, container: Any) -> None:
        entries, size = list(container), len(self.gone)
        starts = [
            start
            for start in range(len(entries) - size + 1)
            if entries[start] is self.gone[0]
            and all(map(operator.is_, entries[start : start + size], self.gone))
        ]
        if starts:
            nearest = min(starts, key=lambda start: abs(start - self.start))
            _set_slice(container, nearest, nearest + size, self.put)
            return
        # Other code changed the list meanwhile.
        put_ids, gone_ids = {id(entry) for entry in self.put}, {id(entry) for entry in self.gone}
        for entry in self.gone:
            if id(entry) not in put_ids:
                drop(container, entry)
        insert(container, [entry for entry in self.put if id(entry) not in gone_ids], None)


def drop(container: Any, entry: Any) -> None:
    """Remove the first occurrence of that very object from a list, if there is one."""
    for index, candidate in enumerate(list(container)):
        if candidate is entry:
            del container[index]
            return


def insert(container: Any, entries: list[Any], index: int | None) -> None:
    """Insert entries into a list at ``index``; at its end if that is None."""
    if index is None or index >= len(container):
        container.extend(entries)
    else:
        _set_slice(container, index, index, entries)


def _set_slice(container: Any, start: int, stop: int, entries: list[Any]) -> None:
    if isinstance(container, deque):
        room = container.maxlen is None or container.maxlen >= len(container) + len(entries)
        if not room:
            content = list(container)
            content[start:stop] = entries
            refill(container, content)
            return
        # Entry by entry: entries that others put at its ends meanwhile stay.
        for _ in range(stop - start):
            del container[start]
        for index, entry in enumerate(entries, start):
            container.insert(index, entry)
    else:
        container[start:stop] = entries


def _num_same(one: list[Any], other: list[Any]) -> int:
    """Return how many entries at the start of both lists are the same objects."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1], pairs))
