"""Tells the changes that staged code makes to live objects from those that other threads make.

It looks at all containers and attributes of ours before and after each statement. In the end it
undoes the changes of staged code, and keeps them for the commit.
"""

from __future__ import annotations

import ast
import contextlib
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from types import ModuleType
from typing import Any

from monarch_reload.live.differences import Glance
from monarch_reload.live.holders import holders
from monarch_reload.live.registries import Registry, registries
from monarch_reload.live.targets import Target, targets_of
from monarch_reload.thread_switches import Moment, Turns
from monarch_reload.trial.held_attributes import HeldAttribute, ObjectAttributes, may_be_set
from monarch_reload.trial.held_back import HeldBack, Snapshot, WatchedObject, Whose, Withdrawn


class SideEffects:
    """Watches live objects while a plan runs. ``loggers`` gets each logger that staged code
    changes."""

    def __init__(
        self, ours: Iterable[tuple[str, ModuleType]], loggers: Mapping[Any, Snapshot]
    ) -> None:
        self._turns = Turns()
        self._looked: Moment | None = self._turns.moment()
        held = list(holders(ours))
        self._loggers = loggers
        self._targets: dict[Hashable, Target] = {}
        self._snapshots = [Snapshot(r) for r in (*registries(held), Registry(sys.path))]
        self._attributes = [ObjectAttributes(holder) for holder in held if may_be_set(holder)]
        watched: list[Snapshot | ObjectAttributes] = [*self._snapshots, *self._attributes]
        parts = (watched[at : at + _AT_A_GLANCE] for at in range(0, len(watched), _AT_A_GLANCE))
        self._glances = [(Glance(watched.content for watched in part), part) for part in parts]

    @contextlib.contextmanager
    def looking(self, targets: Iterable[Target]) -> Iterator[None]:
        """Watch for changes of live objects while a statement runs in this block. ``targets`` are
        the attributes and items that it may assign to."""
        if self._turns.freshen() or not self._is_undisturbed(0):
            self._looked = self._turns.moment()
            for thing in self._changed():
                thing.note(thing.look(), Whose.OTHERS)
        started = time.perf_counter()
        try:
            yield
        finally:
            seconds, moment = time.perf_counter() - started, self._turns.moment()
            for target in targets:
                target.was_assigned()
            watched = (*self._changed(), *self._loggers.values())
            looks = [(thing, thing.look()) for thing in watched]
            undisturbed = self._is_undisturbed(seconds)
            self._looked = moment
            for thing, difference in looks:
                thing.note(difference, Whose.OURS if undisturbed else Whose.UNCLEAR)

    def targets_of(self, node: ast.stmt, namespace: dict[str, Any]) -> Iterator[Target]:
        """Yield targets for the attributes and items of live objects that an assignment statement
        will overwrite.
        """
        for part in targets_of(node):
            target = Target.find(part, namespace)
            if target is not None:
                yield self._targets.setdefault(target.place, target)

    def no_more_statements(self) -> None:
        """Drop the references to other threads' frames after the last statement, so that they do
        not count as objects that staged code made."""
        self._looked = None

    def withdraw(self, ids: Collection[int]) -> list[Withdrawn]:
        """Remove the entries of some definitions (by their ids) from all registries. Return the
        removed entries, which can be put back.
        """
        if not ids:
            return []
        snapshots = {id(s): s for part in ids for s in self._holding.get(part, ())}
        snapshots.update((id(s), s) for s in self._snapshots if s.has_news)
        return [withdrawn for s in snapshots.values() if (withdrawn := s.withdraw(ids)) is not None]

    @cached_property
    def _holding(self) -> Mapping[int, Sequence[Snapshot]]:
        """For each object, by its id: the registries that had it before staged code ran."""
        by_part = defaultdict(list)
        for snapshot in self._snapshots:
            for part in snapshot.parts():
                by_part[id(part)].append(snapshot)
        return by_part

    def take_out(
        self, is_definition: Callable[[Any], bool]
    ) -> tuple[list[Target | HeldAttribute], list[HeldBack]]:
        """Undo the changes that staged code has made to live objects. Return the changes, so that
        the commit can repeat them.
        """
        stores: list[Target | HeldAttribute] = [
            target for target in self._targets.values() if target.take_out()
        ]
        changed = set(map(id, self._changed()))
        for attributes in self._attributes:
            if id(attributes) in changed or attributes.has_news:
                stores += attributes.take_out(is_definition)
        held_back = []
        snapshots = [s for s in self._snapshots if id(s) in changed or s.has_news]
        for snapshot in (*snapshots, *self._loggers.values()):
            self._turns.freshen()
            held = snapshot.take_out(is_definition)
            if held is not None:
                held_back.append(held)
        return stores, held_back

    def _is_undisturbed(self, seconds: float) -> bool:
        return self._looked is not None and self._turns.undisturbed_since(self._looked, seconds)

    def _changed(self) -> Sequence[WatchedObject]:
        """Return the watched objects that may have changed: all objects of each group in which a
        quick look found a change."""
        return [thing for glance, part in self._glances if glance.has_changed() for thing in part]


_AT_A_GLANCE = 64
