"""The requests of a push to the owner of the procs on its hosts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from monarch.errors import MonarchError
from monarch.runtime.promise import Promise
from monarch.runtime.workspace.reload_plan import AuditOutcome, ReloadOutcome, ReloadPlan
from monarch.wire.address import Uid


class OwnerLost(MonarchError):
    """The owner is gone."""


class Owner(Protocol):
    """Takes its processes through a change of generation, step by step. Calls block.

    Until ``patch`` nothing has changed for any process, and from ``halt`` to ``go`` no actor runs
    anything; so the files change while no code runs, and no rank runs the new code before all have
    it. ``revert`` ends a change from any step.
    """

    def prepare(self, plan: ReloadPlan) -> ReloadOutcome:
        """Get the new code ready beside the old."""
        ...

    def fence(
        self, generation: int, attempt: int, seconds: float, *, is_held: bool = False
    ) -> ReloadOutcome:
        """Wait until every actor is done with what its owner has sent it so far.

        Late where not all have come so far, ``seconds`` after the fence has begun to hold a process
        up: then it is to be given up. ``is_held``: it does so from the beginning.
        """
        ...

    def lift(self, generation: int, attempt: int, seconds: float) -> ReloadOutcome:
        """Let all go on as before the fence, and the halt, of that attempt.

        Late where not all have come past the fence in ``seconds``.
        """
        ...

    def halt(self, generation: int, seconds: float) -> ReloadOutcome:
        """Stop every actor between two messages; late where one is busy for too long."""
        ...

    def patch(self, generation: int, behind: Sequence[Uid] = ()) -> ReloadOutcome:
        """Change the code of all processes, and tell their actors.

        ``behind``: hosts that could not show their files. The programs on them go on as before.
        """
        ...

    def go(self, generation: int) -> ReloadOutcome:
        """Let all processes run it, and replace those that cannot; says what went wrong with
        that."""
        ...

    def inquire(self, generation: int) -> ReloadOutcome:
        """How far it is: ``has_gone`` where it runs the new code, late where it was never halted.

        From then on it obeys neither the author, which has died, nor an earlier successor.
        """
        ...

    def audit(self, generation: int) -> Promise[AuditOutcome]:
        """What still runs old code after the switch; does not wait for it."""
        ...

    def revert(self, generation: int) -> None:
        """Goes back to what ran before, and lets all run that."""
        ...
