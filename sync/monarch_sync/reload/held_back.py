"""What staged code does to registries: taken out again, and kept for the commit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from types import FunctionType
from typing import Any

from .flips import MISSING, Action, contents_of
from .registries import Registry, changed, names, parts_of_entry, refill, take_out, without


class Snapshot:
    """What a container holds before staged code runs."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._before: Any = registry.container.copy()
        self._withdrawn: list[Withdrawn] = []

    def withdraw(self, ids: Collection[int]) -> Withdrawn | None:
        """Take out what is registered of definitions (by their ids), if something is."""
        container = self._registry.container
        before = container.copy()
        take_out(container, ids)
        self._registry.refresh()
        if len(container) == len(before):
            return None
        self._withdrawn.append(Withdrawn(self._registry, before))
        return self._withdrawn[-1]

    def take_out(self, is_made_here: Callable[[Any], bool]) -> HeldBack | None:
        """Put the container back as it was; the result can repeat what happened to it.

        Where it may be the state of running code, only new definitions are taken out: what else
        changed meanwhile is that code's doing.
        """
        container, before = self._registry.container, self._before
        if self._registry.is_state and not self._withdrawn:
            return self._take_out_definitions(is_made_here)
        self._registry.refresh()
        if isinstance(container, dict):
            gone = [key for key in before if key not in container]
            put = {
                key: value
                for key, value in container.items()
                if before.get(key, MISSING) is not value
            }
            for key in put:
                if key in before:
                    container[key] = before[key]
                else:
                    del container[key]
            container.update({key: before[key] for key in gone})
            if list(container) != list(before):
                refill(container, before)
            return HeldBack(self._registry, put, gone) if put or gone else None
        if isinstance(container, set):
            added, removed = container - before, before - container
            container -= added
            container |= removed
            return HeldBack(self._registry, added, removed) if added or removed else None
        if len(container) == len(before) and all(map(_is, container, before)):
            return None
        after = container[:]
        container[:] = before
        if len(after) > len(before) and all(map(_is, after, before)):
            return HeldBack(self._registry, after[len(before) :], [])
        return HeldBack(self._registry, after, before)

    def _take_out_definitions(self, is_made_here: Callable[[Any], bool]) -> HeldBack | None:
        container, before = self._registry.container, self._before
        if isinstance(container, dict):
            put = {
                key: value
                for key, value in dict(container).items()
                if before.get(key, MISSING) is not value and is_made_here(value)
            }
            for key in put:
                if key in before:
                    container[key] = before[key]
                else:
                    del container[key]
            return HeldBack(self._registry, put, []) if put else None
        known = {id(entry) for entry in before}
        added = [e for e in list(container) if id(e) not in known and is_made_here(e)]
        for entry in added:
            if isinstance(container, set):
                container.discard(entry)
            else:
                del container[next(i for i, one in enumerate(container) if one is entry)]
        kind = set if isinstance(container, set) else list
        return HeldBack(self._registry, kind(added), kind()) if added else None


class Withdrawn:
    """Entries that were taken out of a registry for the time in which a statement runs again."""

    def __init__(self, registry: Registry, before: Any) -> None:
        self._registry, self._before = registry, before
        self._rest = len(registry.container)

    def put_back(self) -> None:
        """Unless something came in their place."""
        container, before = self._registry.container, self._before
        if len(container) == self._rest:
            refill(container, before)
        elif isinstance(container, list) and len(container) == len(before):
            added = iter(container[self._rest :])
            rest = {id(thing) for thing in container[: self._rest]}
            container[:] = [thing if id(thing) in rest else next(added) for thing in before]
        self._registry.refresh()


class HeldBack:
    """Something that staged code did to a live container."""

    def __init__(self, registry: Registry, put: Any, removed: Any) -> None:
        self._registry, self.put, self._removed = registry, put, removed
        # Tuples are told of live definitions in place, before the commit.
        values = put.values() if isinstance(put, dict) else put
        self._parts = {id(value): (value, parts_of_entry(value)) for value in values}
        self._inner = [part for value in values if type(value) in (list, set) for part in value]

    @property
    def registry(self) -> Registry:
        return self._registry

    def renewed(self, live_of: Callable[[Any], Any]) -> set[int]:
        """The live definitions, by their ids, that were registered again, here or inside."""
        found = {id(live_of(part)) for part in self._inner if live_of(part) is not part}
        return found.union(*(self._renewed(value, live_of) for value, _ in self._parts.values()))

    def _renewed(self, value: Any, live_of: Callable[[Any], Any]) -> set[int]:
        """The live definitions, by their ids, that the value registers again."""
        live = [(part, live_of(part)) for part in self._parts[id(value)][1]]
        return {id(after) for part, after in live if after is not part}

    def flip(self, live_of: Callable[[Any], Any], before_of: Callable[[Any], Any]) -> Action:
        """Repeats it on the container, with live objects instead of their staged twins.

        What takes the name of an object that is registered takes its place, too.
        """

        def do() -> Any:
            container = self._registry.container
            before = container.copy()
            if isinstance(container, dict):
                for key in self._removed:
                    container.pop(key, None)
                for key, value in self.put.items():
                    if key not in container:
                        # Registered under another name now.
                        renewed = self._renewed(value, live_of)
                        for old in [k for k, v in container.items() if names(v, renewed)]:
                            if old not in self.put:
                                del container[old]
                    container[live_of(key)] = live_of(value)
            elif isinstance(container, set):
                container -= self._removed
                for value in map(live_of, self.put):
                    container -= {c for c in container if c is before_of(value)}
                    container.add(value)
            elif self._removed:
                container[:] = [live_of(value) for value in self.put]
            else:
                # Registering again what is registered already adds nothing.
                taken: set[int] = set()
                for staged in self.put:
                    value, renewed = live_of(staged), self._renewed(staged, live_of)
                    places = [
                        place
                        for place, known in enumerate(container)
                        if place not in taken
                        and (known is before_of(value) or names(known, renewed))
                    ]
                    for place in places[:1]:
                        taken.add(place)
                        container[place] = value
                    if not any(value is c or _is_made_again(value, c) for c in container):
                        container.append(value)
            return changed(self._registry, before)

        return Action(do)


def _is_made_again(value: Any, known: Any) -> bool:
    """Whether a closure is what its maker made before, of the same things."""
    if type(value) is not FunctionType or type(known) is not FunctionType:
        return False
    if (value.__module__, value.__qualname__) != (known.__module__, known.__qualname__):
        return False
    if value.__closure__ is None or known.__closure__ is None or not value.__closure__:
        return False
    cells = zip(value.__closure__, known.__closure__, strict=False)
    return len(value.__closure__) == len(known.__closure__) and all(
        contents_of(one) is contents_of(other) for one, other in cells
    )


def _is(one: Any, other: Any) -> bool:
    return one is other


def left_behind(
    known: Iterable[Registry], held_back: Collection[HeldBack], live_of: Callable[[Any], Any]
) -> Iterator[Action]:
    """What was registered again in another part of a registry, `@on("start")` for `@on("end")`."""
    renewed: dict[int, set[int]] = {}
    here: dict[int, set[int]] = {}
    for held in held_back:
        here[id(held.registry.container)] = held.renewed(live_of)
        renewed.setdefault(held.registry.family, set()).update(here[id(held.registry.container)])
    for registry in known if any(renewed.values()) else ():
        stale = renewed.get(registry.family, set()) - here.get(id(registry.container), set())
        if registry.outer is not None and stale and registry.names(stale):
            yield without(registry, stale)
