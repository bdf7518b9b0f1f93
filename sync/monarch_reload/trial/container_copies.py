"""Copies of containers with staged definitions, for statements that look into them before the
commit.

A table refers to the live functions, which take their new code only at the commit. Code that calls
an entry to compute a value gets a copy with staged twins in their place.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from types import MethodType
from typing import Any

from monarch_reload.live.differences import Difference
from monarch_reload.source.statements import Statement

_COPIED = frozenset({dict, OrderedDict, defaultdict, list, set, deque})
_CONTAINERS = _COPIED | {tuple, frozenset}
_DEEPEST = 3

Namespaces = Mapping[str, dict[str, Any]]


class ContainerCopies:
    """Shows staged code copies of containers, in which staged definitions replace live definitions.

    ``names`` are the names of the containers, by module; ``read_late`` are names that functions
    read when they are called. ``twins`` are the staged definitions, by the ids of the live
    definitions. ``as_one_of`` takes a live instance and a staged class, and returns an instance of
    that class with the same state, or the instance unchanged.
    """

    def __init__(
        self,
        names: Mapping[str, set[str]],
        read_late: AbstractSet[str],
        as_one_of: Callable[[Any, type], Any],
    ) -> None:
        self._names = names
        self._read_late = read_late
        self._as_one_of = as_one_of
        self.twins: dict[int, Any] = {}
        self.cast: list[tuple[Any, Any]] = []  # shadows, each with the live container

    @contextlib.contextmanager
    def in_place(self, namespaces: Namespaces, statement: Statement) -> Iterator[None]:
        """While a statement runs in this block, put the copies in the places of the containers."""
        # Decorators register; they do not look at the entries.
        looks = bool(statement.names.items) or not statement.is_function
        read = {part for name, _ in statement.names.eager for part in name.split(".")}
        wanted = (read | self._read_late) if looks and self.twins else set()
        shown: dict[int, tuple[Any, Any, Any]] = {}
        replaced: list[tuple[dict[str, Any], str, Any]] = []
        for module, names in self._names.items():
            for name in names & wanted:
                live = vars(sys.modules[module]).get(name)
                if namespaces[module].get(name) is not live:
                    continue
                if id(live) not in shown:
                    copy = self._copy(live)
                    shown[id(live)] = live, copy, copy.copy() if type(copy) in _COPIED else None
                shadow = shown[id(live)][1]
                if shadow is not live:
                    namespaces[module][name] = shadow
                    replaced.append((namespaces[module], name, live))
        self.cast += [(shadow, live) for live, shadow, _ in shown.values() if shadow is not live]
        try:
            yield
        finally:
            for namespace, name, live in replaced:
                if namespace.get(name) is shown[id(live)][1]:
                    namespace[name] = live
            for live, shadow, before in shown.values():
                changed = None if before is None else Difference.between(before, shadow)
                if changed is not None and shadow is not live:
                    changed.apply(live)

    def _copy(self, value: Any, depth: int = 0) -> Any:
        """Return a copy of the value in which staged definitions replace live ones.

        Returns the value itself if nothing in it is replaced.
        """
        kind = type(value)
        if id(value) in self.twins:
            return self.twins[id(value)]
        if kind is functools.partial:
            function = self._copy(value.func, depth + 1)
            if function is value.func:
                return value
            return functools.partial(function, *value.args, **value.keywords)
        if kind is MethodType:
            owner = self._copy(value.__self__, depth)
            return value if owner is value.__self__ else getattr(owner, value.__func__.__name__)
        if id(kind) in self.twins and depth:
            return self._as_one_of(value, self.twins[id(kind)])
        if kind not in _CONTAINERS or depth > _DEEPEST:
            return value
        if isinstance(value, dict):
            pairs = {key: self._copy(part, depth + 1) for key, part in list(value.items())}
            if all(pairs[key] is value.get(key) for key in pairs):
                return value
            copy = value.copy()
            copy.update(pairs)
            return copy
        parts = list(value)
        copies = [self._copy(part, depth + 1) for part in parts]
        return value if all(map(operator.is_, parts, copies)) else kind(copies)
