"""Members of an Enum: they stay the same objects while their class takes new code."""

from __future__ import annotations

import enum
from typing import Any

from monarch_reload.kinds import is_a
from monarch_reload.undo_log import Attribute, Flip


def keep_live_members(live: Any, staged: Any) -> None:
    """In the staged Enum, replace each member that equals a live member by the live member, because
    other objects may refer to the live members.
    """
    kept: dict[int, Any] = {}
    if issubclass(staged, enum.Flag) and _values(live) != _values(staged):
        return  # a live member combines only with members that its class knows
    for name, member in staged._member_map_.items():
        before = live._member_map_.get(name)
        if before is not None and (before._name_, before._value_) == (
            member._name_,
            member._value_,
        ):
            kept[id(member)] = before
    for name, value in list(staged.__dict__.items()):
        table = type(value) is dict and any(id(item) in kept for item in value.values())
        if table:
            value.update({key: kept.get(id(item), item) for key, item in value.items()})
        elif id(value) in kept:
            type.__setattr__(staged, name, kept[id(value)])
        elif id(getattr(value, "member", None)) in kept:
            value.member = kept[id(value.member)]


def _values(cls: Any) -> dict[str, Any]:
    return {name: member._value_ for name, member in cls._member_map_.items()}


def live_members(live: Any, staged: Any, flips: list[Flip]) -> dict[int, Any]:
    """Return the member to use in place of each staged member of an Enum, by the staged member's
    id. The changes that members need are added to ``flips``.

    It is the live member of the same name, or the staged member if no live member has the name. The
    live member of an Enum of ints or strs cannot take another value, so the staged member is used
    then too.
    """
    chosen: dict[int, Any] = {}
    for name, member in staged._member_map_.items():
        if id(member) in chosen:
            continue  # an alias
        before = live._member_map_.get(name)
        plain = staged._member_type_ is object
        if (
            before is not None
            and before._name_ == name
            and (plain or before._value_ == member._value_)
        ):
            chosen[id(member)] = before
            for attribute, value in vars(member).items():
                if attribute != "__objclass__" and vars(before).get(attribute) != value:
                    flips.append(Attribute(before, attribute, value))
        else:
            chosen[id(member)] = member
            flips.append(Attribute(member, "__class__", live))
            flips.append(Attribute(member, "__objclass__", live))
    return chosen


def with_live_members(value: Any, members: dict[int, Any]) -> Any:
    """Return the value of an Enum class's attribute with each staged member replaced. ``members``
    has the replacements by the staged member's id. A dict of members is copied, and its values are
    replaced.
    """
    if id(value) in members:
        return members[id(value)]
    if type(value) is dict:
        return {key: members.get(id(item), item) for key, item in value.items()}
    if is_a(getattr(value, "member", None), enum.Enum):
        value.member = members.get(id(value.member), value.member)
    return value
