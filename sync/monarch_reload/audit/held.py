"""Tells whether an object is in use by more than the reload itself, from reference counts.

The objects of a trial are dead after it, but exist until Python's collector runs. An old object
that is still in use is recognised by counting: if it has more references than the known objects
have to it, others refer to it, perhaps a native object that does not show its references.
"""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import (
    CellType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

from monarch_reload.kinds import is_a

_FOLLOWED = frozenset({
    dict, list, tuple, set, frozenset, CellType, FunctionType, MethodType, MappingProxyType,
    GetSetDescriptorType, MemberDescriptorType, property, classmethod, staticmethod,
    functools.partial, functools.partialmethod, functools.cached_property,
})  # fmt: skip
# The changes of a commit, kept for its undo.
_OURS = ("monarch_reload.undo_log", "monarch_reload.live.", "monarch_reload.trial.held_")
_MOST = 50_000


def held_by_others(
    things: Sequence[Any], around: Sequence[Any], ours: Iterable[Any], namespaces: Collection[int]
) -> list[bool]:
    """Return a list with a bool for each of ``things``: whether an object that is not in ``ours``
    refers to it.

    ``around`` are objects that may be dead along with the things, such as their instances.
    ``namespaces`` are the ids of modules' own dicts: the dicts count as alive, and are not
    searched.
    """
    ours = [*ours, things, around]
    graph = _References([ours, *ours, *things, *around], set(map(id, things)), namespaces)
    alive = graph.alive({id(ours), *map(id, ours)})
    return [id(thing) in alive for thing in things]


class _References:
    """Some objects, and the references between them. The objects to which functions and classes
    among them refer are added, and so on.
    """

    def __init__(
        self, pending: list[Any], candidates: Collection[int], namespaces: Collection[int]
    ) -> None:
        self._candidates, self._namespaces = candidates, namespaces
        self._nodes: dict[int, Any] = {}
        self._edges: dict[int, list[int]] = {}
        while pending:
            self._add(pending.pop(), pending)

    def _add(self, node: Any, pending: list[Any]) -> None:
        if id(node) in self._nodes or len(self._nodes) > _MOST:
            return
        self._nodes[id(node)] = node
        parts = gc.get_referents(node)
        self._edges[id(node)] = [id(part) for part in parts]
        pending += [part for part in parts if self._is_followed(part)]
        if id(node) in self._candidates:
            # Objects that a class owns: a validator, a serializer, a descriptor of an enum.
            dicts = [part for part in parts if type(part) is dict]
            pending += [value for held in dicts for value in held.values() if _is_kept(value)]

    def _is_followed(self, part: Any) -> bool:
        if id(part) in self._nodes:
            return False
        if issubclass(type(part), type):
            return id(part) in self._candidates
        is_known = type(part) in _FOLLOWED or type(part).__module__.startswith(_OURS)
        return is_known and id(part) not in self._namespaces

    def alive(self, ours: Collection[int]) -> set[int]:
        """Return the ids of the objects in this graph that are in use. Such an object has a
        reference from outside the graph, or from an object in use.

        ``ours`` are the ids of objects that do not count as users.
        """
        num_known: dict[int, int] = {}
        for targets in self._edges.values():
            for target in targets:
                num_known[target] = num_known.get(target, 0) + 1
        roots = [
            key
            for key, count in _counts(self._nodes).items()
            if key not in ours and count > num_known.get(key, 0)
        ]
        alive: set[int] = set()
        while roots:
            key = roots.pop()
            if key not in alive and key not in ours:
                alive.add(key)
                roots += [target for target in self._edges[key] if target in self._nodes]
        return alive


def _is_kept(value: Any) -> bool:
    """Return whether an object may refer to others, and is neither a class nor a module."""
    return not issubclass(type(value), (type, ModuleType)) and gc.is_tracked(value)


def notes() -> set[type]:
    """Return the reloader's own classes that keep notes: their instances may refer to old code. An
    instance may still exist although nothing uses it.
    """
    classes: set[type] = set()
    for name, module in sys.modules.copy().items():
        if name.startswith("monarch_reload.") and not name.startswith(_NO_NOTES):
            classes |= {value for value in vars(module).values() if is_a(value, type)}
    return {cls for cls in classes if cls.__module__.startswith("monarch_reload.")}


_NO_NOTES = ("monarch_reload.source.", "monarch_reload.audit.")


def _counts(nodes: Mapping[int, Any]) -> dict[int, int]:
    """Return the number of references to each object of ``nodes``, by its id. References by
    ``nodes`` itself and by this call are not counted.
    """
    return {key: sys.getrefcount(node) - _OWN for key, node in nodes.items()}


_OWN = 0
_OWN = _counts({0: object()})[0]
