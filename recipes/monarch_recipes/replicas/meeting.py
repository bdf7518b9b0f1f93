"""Computes which groups a group waits for, from the present state of all groups.

A group waits twice before it makes a step: once its model is built (``awaited_to_join``), and once
it is known to the lighthouse (``awaited_to_step``). If no group trains, all begin together, because
a group that began alone would learn from its own share of the batches only. If others train, nobody
waits for a restarted group, and it waits for no absent group.

Arrivals are not remembered. A group that dies, comes back or is given up changes only its own
state, and each waiting group sees that when it computes this again. So no group waits for an
arrival that is over, or that never comes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol


class GroupState(Protocol):
    """The state of one group.

    ``joined`` is the number of the lighthouse that knows it; None before it has joined one.
    """

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
    """Return the numbers of the groups that a group waits for when its model is built."""
    if _is_under_way(groups):
        return []
    return [one.number for one in groups if not one.is_given_up and not one.is_set_up]


def awaited_to_step(groups: Sequence[GroupState], lighthouse: int) -> list[int]:
    """Return the numbers of the groups that a group waits for when ``lighthouse`` knows it.

    These are the other training groups if some train, and else all groups that are not given up, as
    long as this lighthouse does not know them.
    """
    if _is_under_way(groups):
        expected: Iterable[GroupState] = (one for one in groups if one.is_training)
    else:
        expected = (one for one in groups if not one.is_given_up)
    return [one.number for one in expected if one.joined != lighthouse]


def num_met(groups: Sequence[GroupState], lighthouse: int) -> int:
    """Return how many groups are about to make the next step, as far as is known; at least 1."""
    there = (one for one in groups if one.joined == lighthouse and not one.has_finished)
    return max(1, sum(1 for _ in there))


def _is_under_way(groups: Sequence[GroupState]) -> bool:
    return any(one.is_training or one.has_finished for one in groups)
