"""A change of generation that is under way in a process."""

from __future__ import annotations

from collections.abc import Sequence

from monarch.runtime.workspace.reload_plan import ReloadPlan
from monarch.runtime.workspace.turnovers.procs_asked import Asked
from monarch.runtime.workspace.turnovers.stand import Stand
from monarch.runtime.workspace.turnovers.telling import Telling
from monarch.wire.address import ProcAddress, Uid

__all__ = ["Turn"]


class Turn:
    """``asker`` is who pushes, if it is not us.

    ``targets`` are the procs that change with us: those that we own, where it is ``None``.
    ``exempt`` are actors here that push, and so wait for the change. ``prepared`` were asked to get
    ready, of whom those in ``preparing`` have not been heard; ``replaced`` are those that give way
    to new ones. ``stand`` is the fence that was cast last, and ``num_lifted`` the last that was
    given up. ``told`` is what was said of its waiting.
    """

    def __init__(self, plan: ReloadPlan, asker: Uid, targets: Sequence[ProcAddress] | None) -> None:
        self.plan = plan
        self.generation = plan.generation
        self.asker = asker
        self.targets = targets
        self.exempt: frozenset[Uid] = frozenset()
        self.step = "prepare"
        self.prepared: set[Uid] = set()
        self.preparing: list[Asked] = []
        self.replaced: dict[Uid, ProcAddress] = {}
        self.telling: Telling | None = None
        self.told: set[str] = set()
        self.stand: Stand | None = None
        self.num_lifted = 0
