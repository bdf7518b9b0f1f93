"""A push, from its author to the owners of procs: all prepare, and then each switches."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Protocol

from monarch.core.code_switch.proposal import NOBODY, AskOwner, BringBack, Proposal, Request
from monarch.core.code_switch.table import ProposalState, SwitchEvent, Vote
from monarch.errors import MonarchError
from monarch.runtime.promise import Promise
from monarch.runtime.workspace.code_switch.host_files import FilesHere
from monarch.runtime.workspace.reload_plan import AuditOutcome, ReloadOutcome, ReloadPlan, Switched
from monarch.wire.address import Uid
from monarch.wire.message import SwitchOrder


class OwnerLost(MonarchError):
    """Raised by a call to an ``Owner`` whose process is down; its procs are lost with it."""


class Owner(Protocol):
    """The processes of one owner, which a push takes to its generation together with their hosts'
    files. Calls block.
    """

    @property
    def uid(self) -> Uid: ...

    def prepare(self, plan: ReloadPlan) -> ReloadOutcome:
        """Prepare the new code beside the old."""
        ...

    def switch(
        self, plan: ReloadPlan, own_files: FilesHere
    ) -> tuple[Switched, BaseException | None]:
        """Halt all processes, change files and code, and let all continue. If one of them cannot
        change, all go back to the old files and code.

        Returns the result, and an error that was raised in this process meanwhile (Ctrl-C), or
        None. ``own_files`` are files of the author, for an owner that is the author itself.
        """
        ...

    def call_off(self, generation: int) -> None:
        """Drop the prepared code."""
        ...

    def audit(self, generation: int) -> Promise[AuditOutcome]:
        """Return a promise of the outcome of the audit after the switch to ``generation``. The
        audit searches for old code that still runs. This method does not wait for it.
        """
        ...


class Purpose(FilesHere):
    """What a push does besides changing the owners' code: what else changes, and who is notified.
    This base class changes nothing else and notifies nobody.
    """

    def prepared(self, outcome: ReloadOutcome) -> SwitchEvent:
        """Called when all owners have prepared.

        Returns ``SwitchEvent.ALL``, or ``UNCHANGED`` if there is nothing to switch to.
        """
        return SwitchEvent.ALL

    def refused(self, outcome: ReloadOutcome) -> None:
        """Called when a party has refused, after which all go back to the state before the push."""

    def switched(self, owner: Uid, switched: Switched) -> None:
        """Called when an owner has switched, or has gone back to the old code."""

    def show_unowned(self) -> Vote:
        """Have hosts on which nothing runs show the new files; return ``NO`` if that failed."""
        return Vote.YES

    def undo_unowned(self) -> None:
        """Have hosts on which nothing runs go back to the files from before the push. If they have
        not shown the new files yet, they only drop them.
        """

    def lost(self, owner: Uid) -> None:
        """Called when an owner is lost, with its procs: its hosts must restore their files."""

    def bring_back(self, owner: Uid) -> None:
        """Have an owner that has switched go back to the old code, because another owner could not
        switch.
        """


class Proposing:
    """One push. The owners are asked one after the other, on the calling thread.

    If an exception is raised during the push, it is kept as ``error``, and the push is finished all
    the same. ``outcome`` is the owners' combined answer to preparing, or the last refusal.
    """

    def __init__(self, owners: Sequence[Owner], plan: ReloadPlan, purpose: Purpose) -> None:
        self._owners = owners
        self._plan = plan
        self._purpose = purpose
        self._machine = Proposal(len(owners))
        self.outcome = ReloadOutcome()
        self.error: BaseException | None = None

    def run(self) -> bool:
        """Push; return whether all have switched. Blocks."""
        machine, request = self._machine, self._machine.begin()
        while request is not None:
            try:
                request = self._carry_out(request)
            except BaseException as error:
                self.error = self.error or error
                request = self._go_on(error)
        return machine.state is ProposalState.SWITCHED

    def _go_on(self, error: BaseException) -> Request | None:
        machine = self._machine
        if machine.state is ProposalState.CALLING_OFF:
            return machine.voted(Vote.NO)
        if isinstance(error, OwnerLost):
            return machine.voted(Vote.GONE)
        return machine.interrupted() if machine.switching is None else machine.voted(Vote.NO)

    def _carry_out(self, request: Request) -> Request | None:
        machine, purpose = self._machine, self._purpose
        if isinstance(request, BringBack):
            purpose.bring_back(self._owners[request.owner].uid)
        elif request.owner == NOBODY:
            if request.order is SwitchOrder.SHOW_FILES:
                return machine.voted(purpose.show_unowned())
            purpose.undo_unowned()
        else:
            return self._ask(self._owners[request.owner], request)
        return machine.voted(Vote.YES)

    def _ask(self, owner: Owner, request: AskOwner) -> Request | None:
        machine, purpose, plan = self._machine, self._purpose, self._plan
        if request.order is SwitchOrder.PREPARE:
            outcome = owner.prepare(plan)
            self.outcome.add(outcome)
            if not machine.is_last:
                return machine.voted(outcome.vote)
            if self.outcome.refused:
                purpose.refused(self.outcome)
            elif not self.outcome.busy:
                verdict = purpose.prepared(self.outcome)
                if verdict is SwitchEvent.UNCHANGED:
                    return machine.unchanged()
                if verdict is SwitchEvent.NO:
                    return machine.refused()
        elif request.order is SwitchOrder.SWITCH:
            switched, error = owner.switch(plan, purpose)
            purpose.switched(owner.uid, switched)
            if error is not None:
                self.error = self.error or error
                machine.interrupted()
            if not switched.is_done:
                self.outcome = switched.outcome
                purpose.refused(self.outcome)
            return machine.voted(Vote.YES if switched.is_done else Vote.NO)
        elif request.order is SwitchOrder.REVERT:
            with contextlib.suppress(MonarchError):
                owner.call_off(plan.generation)
            return machine.voted(Vote.YES)
        else:
            purpose.lost(owner.uid)
            return machine.voted(Vote.YES)
        return machine.voted(outcome.vote)
