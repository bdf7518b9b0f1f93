"""Operators that torch's dispatcher holds by name: making one anew frees the one that runs.

Whoever still holds the old one, or keeps it because the reload was refused, would call freed
memory. Its functions take new bodies in place; everything else is for a new process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from monarch_reload.plan.dirty_marks import ModulePlan

_MADE_BY = "torch._library.custom_ops"


def leave_out(plan: ModulePlan, live: Mapping[str, Any]) -> dict[str, str]:
    """Take the makers of such operators out of the plan; the result says why, by name."""
    refused = {}
    for index in plan.run | plan.twin:
        for name in plan.edit.new[index].binds & live.keys():
            if type(live[name]).__module__ == _MADE_BY:
                refused[name] = "an operator of torch cannot be defined a second time"
                plan.run.discard(index)
                plan.twin.discard(index)
    return refused
