"""The changes that staged code makes to registries: they are undone, and kept for the commit.

Changes that other threads make meanwhile stay. They are told apart by a look at the registry before
and after each statement.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from types import FunctionType
from typing import Any, Protocol

from msgspec.structs import replace

from monarch_reload.live.differences import Difference, insert, is_same
from monarch_reload.live.registries import Registry, change, parts_of_entry, take_out, without
from monarch_reload.undo_log import Action, contents_of

Lookup = Callable[[Any], Any]


class Whose(Enum):
    """Which code changed a container: staged code, running code, or either of them, if that is not
    clear.
    """

    OURS = "staged code"
    OTHERS = "running code"
    UNCLEAR = "either: others may have run while the statement did"


class WatchedObject(Protocol):
    """An object that may change while staged code runs. `look` returns the changes since the last
    look."""

    def look(self) -> Any: ...

    def note(self, difference: Any, whose: Whose) -> None: ...


class Snapshot:
    """A container as it was before staged code ran, and the changes that running code has made to
    it since."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.content: Any = registry.container
        self._before: Any = registry.container.copy()
        self._seen: Any = self._before
        self._by_others: list[tuple[Difference, Whose]] = []

    @property
    def has_news(self) -> bool:
        return self._seen is not self._before

    def parts(self) -> Iterator[Any]:
        """Yield the objects in the registry's entries."""
        held = self._before.values() if isinstance(self._before, dict) else self._before
        for entry in held:
            yield from parts_of_entry(entry)

    def look(self) -> Difference | None:
        """Return the changes since the last look; None if there are none."""
        if is_same(self._seen, self.content):
            return None
        content = self.content.copy()
        difference = Difference.between(self._seen, content)
        self._seen = content
        return difference

    def note(self, difference: Difference | None, whose: Whose) -> None:
        if whose is Whose.OURS and self._registry.is_of_others:
            whose = Whose.UNCLEAR  # a connection's queue, or a table of threads
        if difference is not None and whose is not Whose.OURS:
            self._by_others.append((difference, whose))

    def withdraw(self, ids: Collection[int]) -> Withdrawn | None:
        """Remove the entries of some definitions (by their ids) from the registry. Return the
        removed entries, which can be put back; None if the registry has no entry of these
        definitions.
        """
        if not self._registry.names(ids):
            return None
        before = self._registry.container.copy()
        take_out(self._registry.container, ids)
        self._registry.refresh()
        return Withdrawn(self._registry, before, ids)

    def take_out(self, is_made_here: Callable[[Any], bool]) -> HeldBack | None:
        """Undo the changes of staged code to the container; return an object that can repeat them.

        Changes that other code made stay. If it is unclear which code made a change, new
        definitions count as staged code's, and everything else as other code's, which must not be
        lost.
        """
        self.note(self.look(), Whose.OTHERS)
        if self._seen is self._before:
            return None
        without = self._before.copy()
        for difference, whose in self._by_others:
            unclear = whose is Whose.UNCLEAR
            (difference.without(is_made_here) if unclear else difference).apply(without)
        ours = Difference.between(without, self._seen)
        back = Difference.between(self._seen, without)
        if ours is None or back is None:
            return None
        back.apply(self._registry.container)
        self._registry.refresh()
        return HeldBack(self._registry, ours)


class Withdrawn:
    """Entries that are removed from a registry while a statement runs again."""

    def __init__(self, registry: Registry, before: Any, ids: Collection[int]) -> None:
        self._registry, self._before = registry, before
        # From the copy, as other threads may have changed the container meanwhile.
        self._rest = before.copy()
        take_out(self._rest, ids)

    def put_back(self) -> None:
        """Put the entries back, unless new entries have taken their places."""
        container, before = self._registry.container, self._before
        if len(container) == len(self._rest):
            if (back := Difference.between(self._rest, before)) is not None:
                back.apply(container)
        elif isinstance(container, list) and len(container) == len(before):
            added = iter(container[len(self._rest) :])
            rest = {id(thing) for thing in self._rest}
            container[:] = [thing if id(thing) in rest else next(added) for thing in before]
        self._registry.refresh()


class HeldBack:
    """The change that staged code made to a live container. It was undone, and is repeated at the
    commit."""

    def __init__(self, registry: Registry, difference: Difference) -> None:
        self.registry, self._difference = registry, difference
        put = difference.put
        # Kept apart, because `settle` puts live definitions into the tuples before the commit.
        values = put.values() if isinstance(put, dict) else put
        self._parts = {id(value): (value, parts_of_entry(value)) for value in values}
        self._inner = [part for value in values if type(value) in (list, set) for part in value]

    def renewed(self, live_of: Lookup) -> set[int]:
        """Return the ids of the live definitions that staged code registered again, in this
        container or in a container inside it. ``live_of`` returns the live object for a staged
        object.
        """
        renewed = {id(live_of(part)) for part in self._inner if live_of(part) is not part}
        return renewed.union(*(self._renewed(value, live_of) for value, _ in self._parts.values()))

    def _renewed(self, value: Any, live_of: Lookup) -> set[int]:
        """Return the ids of the live definitions that the entry ``value`` of the container
        registers again. ``live_of`` returns the live object for a staged object.
        """
        live = [(part, live_of(part)) for part in self._parts[id(value)][1]]
        return {id(after) for part, after in live if after is not part}

    def flip(self, live_of: Lookup, before_of: Lookup) -> Action:
        """Return an action that repeats the change, with live objects in place of staged objects.

        ``live_of`` returns the live object for a staged object. ``before_of`` returns the object
        whose name a new object takes: the new object also takes its place in the container.
        """
        kind = type(self.registry.container)
        is_dict, is_set = issubclass(kind, dict), issubclass(kind, set)
        in_line = self._repeat_in_set if is_set else self._repeat_in_list
        repeat = self._repeat_in_dict if is_dict else in_line
        return Action(
            lambda: change(self.registry, lambda container: repeat(container, live_of, before_of))
        )

    def _repeat_in_dict(self, container: Any, live_of: Lookup, before_of: Lookup) -> None:
        put = self._difference.put
        for key in self._difference.gone:
            container.pop(key, None)
        keys = _places_of_parts(container.items())
        for key, value in put.items():
            if key not in container:
                # Registered under another name now.
                again = {*self._renewed(value, live_of), id(before_of(live_of(value)))}
                for old in {k for definition_id in again for k in keys.get(definition_id, ())}:
                    if old not in put:
                        container.pop(old, None)
            container[live_of(key)] = live_of(value)

    def _repeat_in_set(self, container: Any, live_of: Lookup, before_of: Lookup) -> None:
        container -= self._difference.gone
        by_id = {id(entry): entry for entry in container}
        for value in map(live_of, self._difference.put):
            if id(before_of(value)) in by_id:
                container.discard(by_id[id(before_of(value))])
            container.add(value)

    def _repeat_in_list(self, container: Any, live_of: Lookup, before_of: Lookup) -> None:
        put = self._difference.put
        if self._difference.gone:
            replace(self._difference, put=[live_of(value) for value in put]).apply(container)
            return
        # Registering an object again adds nothing.
        taken: set[int] = set()
        added: list[Any] = []
        counts = Counter(map(id, container))
        wholes = defaultdict(list)
        for index, entry in enumerate(container):
            wholes[id(entry)].append(index)
        parts = _places_of_parts(enumerate(container))
        closures = defaultdict(list)
        for entry in container:
            closures[_definition_of(entry)].append(entry)
        for staged in put:
            value, renewed = live_of(staged), self._renewed(staged, live_of)
            indexes = {index for definition_id in renewed for index in parts.get(definition_id, ())}
            indexes = indexes.union(wholes.get(id(before_of(value)), ())) - taken
            if indexes:
                index = min(indexes)
                taken.add(index)
                counts[id(container[index])] -= 1
                container[index] = value
                counts[id(value)] += 1
            alike = closures[_definition_of(value)] if type(value) is FunctionType else ()
            if not counts[id(value)] and not any(_is_made_again(value, other) for other in alike):
                added.append(value)
                counts[id(value)] += 1
                closures[_definition_of(value)].append(value)
        insert(container, added, None if self._difference.at_end else self._difference.start)


def _places_of_parts(entries: Iterable[tuple[Any, Any]]) -> Mapping[int, Sequence[Any]]:
    """Return the places in a container at which each object occurs, by the object's id. Parts of a
    tuple count as objects."""
    places = defaultdict(list)
    for place, entry in entries:
        for part in parts_of_entry(entry):
            places[id(part)].append(place)
    return places


def _definition_of(value: Any) -> Hashable:
    return (value.__module__, value.__qualname__) if type(value) is FunctionType else None


def _is_made_again(value: Any, existing: Any) -> bool:
    """Return whether two closures were made by one function, and have the same values in their
    closure variables.
    """
    if type(value) is not FunctionType or type(existing) is not FunctionType:
        return False
    if (value.__module__, value.__qualname__) != (existing.__module__, existing.__qualname__):
        return False
    if value.__closure__ is None or existing.__closure__ is None or not value.__closure__:
        return False
    cells = zip(value.__closure__, existing.__closure__, strict=False)
    return len(value.__closure__) == len(existing.__closure__) and all(
        contents_of(one) is contents_of(other) for one, other in cells
    )


def left_behind(
    candidates: Iterable[Registry], held_back: Collection[HeldBack], live_of: Lookup
) -> Iterator[Action]:
    """Yield actions that remove a definition's entry from one part of a registry after it was
    registered again in another, as when ``@on("end")`` is edited to ``@on("start")``."""
    renewed: dict[int, set[int]] = {}
    by_container: dict[int, set[int]] = {}
    for held in held_back:
        ids = by_container[id(held.registry.container)] = held.renewed(live_of)
        renewed.setdefault(held.registry.family, set()).update(ids)
    for registry in candidates if any(renewed.values()) else ():
        in_place = by_container.get(id(registry.container), set())
        stale = renewed.get(registry.family, set()) - in_place
        if registry.outer is not None and stale and registry.names(stale):
            yield without(registry, stale)
