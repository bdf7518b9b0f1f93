"""A group that was made anew takes the old one's place, wherever Python objects hold it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")
from monarch_recipes.groups import put_in_place


class Group:
    """A stand-in for a process group."""


class Holder:
    def __init__(self, group: Group) -> None:
        self.group = group
        self.name = "dp"


class Slotted:
    __slots__ = ("group", "other")

    def __init__(self, group: Group) -> None:
        self.group = group


def closure(group: Group) -> Callable[[], Group]:
    return lambda: group


def test_all_holders_get_the_new_one() -> None:
    old, new = [Group(), Group()], [Group(), Group()]
    first, second = old
    holder, slotted, inner = Holder(first), Slotted(second), closure(first)
    names = {"0": first, "1": second}
    in_order: list[Any] = [1, second, first]
    ranks = {first: (0, 1), second: (0,)}
    del first, second
    assert put_in_place(old, new) == []
    assert (holder.group, holder.name, slotted.group, inner()) == (new[0], "dp", new[1], new[0])
    assert names == {"0": new[0], "1": new[1]}
    assert in_order == [1, new[1], new[0]]
    assert list(ranks.items()) == [(new[0], (0, 1)), (new[1], (0,))]


def test_what_cannot_be_changed_is_told() -> None:
    old, new = [Group()], [Group()]
    held = functools.partial(print, old[0])
    assert put_in_place(old, new) == ["a tuple"]
    assert held.args[0] is old[0]
