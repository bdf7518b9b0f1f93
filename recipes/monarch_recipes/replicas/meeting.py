"""Whom a group waits for, worked out from the state that all groups are in at this moment.

A group waits twice before it makes a step: once its model is built (``awaited_to_join``), and once
the lighthouse knows it (``awaited_to_step``). Where no group trains, all begin together, as a group
that went ahead would learn from its own share of the batches only. Where others train, a group that
is started again is not waited for, and waits for nobody who is away.

Nothing remembers who has arrived. A group that dies, comes back or is given up changes its own
state alone, and the next look of each that waits sees it: no group can wait for an arrival that was
before, or for one that will not be.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol


class GroupState(Protocol):
    """The state of one group. ``joined`` is the number of the lighthouse that knows it; ``None``
    before it has joined one."""

    @property
    def number(self) -> int: ...
    @property
    def is_given_up(self) -> bool: ...
    @property
    def is_set_up(self) -> bool: ...
    @property
    def joined(self) -> int | None: ...
    @property
    def is_training(self) -> bool: ...
    @property
    def has_finished(self) -> bool: ...


def awaited_to_join(groups: Sequence[GroupState]) -> list[int]:
    """The groups that one whose model is built waits for."""
    if _is_under_way(groups):
        return []
    return [one.number for one in groups if not one.is_given_up and not one.is_set_up]


def awaited_to_step(groups: Sequence[GroupState], lighthouse: int) -> list[int]:
    """The groups that one that this lighthouse knows waits for: with all that train, where the
    lighthouse is new to them, too."""
    if _is_under_way(groups):
        expected: Iterable[GroupState] = (one for one in groups if one.is_training)
    else:
        expected = (one for one in groups if not one.is_given_up)
    return [one.number for one in expected if one.joined != lighthouse]


def num_met(groups: Sequence[GroupState], lighthouse: int) -> int:
    """How many groups are about to make the next step, as far as is known."""
    there = (one for one in groups if one.joined == lighthouse and not one.has_finished)
    return max(1, sum(1 for _ in there))


def _is_under_way(groups: Sequence[GroupState]) -> bool:
    return any(one.is_training or one.has_finished for one in groups)
