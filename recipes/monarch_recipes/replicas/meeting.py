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

from collections.abc import Sequence

from monarch_recipes.replicas.group import Group


def awaited_to_join(groups: Sequence[Group]) -> list[int]:
    """Return the numbers of the groups that a group waits for when its model is built."""
    if _is_under_way(groups):
        return []
    return [group.number for group in groups if not group.is_given_up and not group.is_set_up]


def awaited_to_step(groups: Sequence[Group], lighthouse: int) -> list[int]:
    """Return the numbers of the groups that a group waits for when ``lighthouse`` knows it.

    These are the groups that this lighthouse does not know yet: of the training groups if some
    group trains or has finished, else of all groups that are not given up.
    """
    if _is_under_way(groups):
        expected = [group for group in groups if group.is_training]
    else:
        expected = [group for group in groups if not group.is_given_up]
    return [group.number for group in expected if group.joined != lighthouse]


def num_met(groups: Sequence[Group], lighthouse: int) -> int:
    """Return how many groups are about to make the next step, as far as is known; at least 1."""
    return max(1, sum(group.joined == lighthouse and not group.has_finished for group in groups))


def _is_under_way(groups: Sequence[Group]) -> bool:
    return any(group.is_training or group.has_finished for group in groups)
