"""Attributes that staged code sets through methods: they are taken back, and kept for the commit.

`app.default(f)` sets `app.handler`, a decorator sets a global of its own module,
`__init_subclass__` sets an attribute of the base class. The source of the statement shows none of
this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from types import ModuleType
from typing import Any

from monarch_reload.kinds import is_a, own_names
from monarch_reload.live.differences import begins_with, is_same
from monarch_reload.trial.held_back import Whose
from monarch_reload.undo_log import MISSING, Action, Attribute, Item

Lookup = Callable[[Any], Any]


def may_be_set(owner: Any) -> bool:
    """Return whether the attributes of an object are watched. Of the classes, only those with a
    metaclass or a classmethod are watched, because there are too many classes.
    """
    if not is_a(owner, type):
        return True
    return type(owner) is not type or any(
        type(value) is classmethod for value in owner.__dict__.values()
    )


class ObjectAttributes:
    """The attributes of one live object before staged code runs, and the attributes that were set
    since. For each of these it is noted whether staged code or running code set it.
    """

    def __init__(self, owner: Any) -> None:
        self._owner = owner
        self.content: Mapping[str, Any] = owner.__dict__ if is_a(owner, type) else own_names(owner)
        self._before = self._seen = dict(self.content)
        self._assigned: dict[str, tuple[Any, Whose]] = {}  # by staged code, or unclear by whom

    @property
    def has_news(self) -> bool:
        return self._seen is not self._before

    def look(self) -> dict[str, Any] | None:
        """Return the attributes that were set since the last look; None if none were."""
        if is_same(self._seen, self.content):
            return None
        seen, self._seen = self._seen, dict(self.content)
        num = len(seen)
        if len(self._seen) > num and begins_with(self._seen, seen):
            return dict(islice(self._seen.items(), num, None))
        return {
            name: self._seen.get(name, MISSING)
            for name in seen.keys() | self._seen.keys()
            if seen.get(name, MISSING) is not self._seen.get(name, MISSING)
        }

    def note(self, changes: dict[str, Any] | None, whose: Whose) -> None:
        for name, value in (changes or {}).items():
            if whose is Whose.OTHERS:
                self._assigned.pop(name, None)
            elif not (name.startswith("__") or is_a(value, ModuleType)):  # set by Python itself
                self._assigned[name] = value, whose

    def take_out(self, is_made_here: Callable[[Any], bool]) -> Iterator[HeldAttribute]:
        """Undo the assignments of staged code; yield each, so that the commit can repeat it.

        If it is unclear which code made an assignment, it counts as staged code's only if its value
        is a new definition, by ``is_made_here``.
        """
        self.note(self.look(), Whose.OTHERS)
        for name, (value, whose) in self._assigned.items():
            before = self._before.get(name, MISSING)
            if value is not before and (whose is Whose.OURS or is_made_here(value)):
                held = HeldAttribute(self._owner, name, before, value)
                held.put(before)
                yield held


class HeldAttribute:
    """An attribute that staged code set, with its values before and after."""

    def __init__(self, owner: Any, name: str, before: Any, value: Any) -> None:
        self._owner, self._name, self._before, self._value = owner, name, before, value

    def put(self, value: Any) -> Callable[[], None]:
        # Without properties and `__setattr__`, which ran in the trial.
        if is_a(self._owner, type):
            return Attribute(self._owner, self._name, value).apply()
        return Item(own_names(self._owner), self._name, value).apply()

    def flip(self, live_of: Lookup) -> Action:
        return Action(lambda: self._repeat(live_of))

    def _repeat(self, live_of: Lookup) -> Callable[[], None]:
        names = self._owner.__dict__ if is_a(self._owner, type) else own_names(self._owner)
        if self._before is MISSING and self._name in names:
            return lambda: None  # a value that is made at its first use, which happened meanwhile
        return self.put(live_of(self._value))
