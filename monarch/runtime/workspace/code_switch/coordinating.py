"""Drives a code switch over all its owners: the coordinator of a two-phase commit."""

from __future__ import annotations

import contextlib
import random
import time
from collections import deque
from collections.abc import Sequence

from monarch.core.code_switch.coordinator import HOSTS, AskParty, Coordinator, Effect, Pause
from monarch.core.code_switch.table import CoordinatorState, Said, SwitchOrder, Vote
from monarch.errors import MonarchError
from monarch.runtime.workspace.code_switch.owner import Owner, OwnerLost
from monarch.runtime.workspace.reload_plan import ReloadOutcome, ReloadPlan
from monarch.wire.address import Uid


class Purpose:
    """The purpose of a switch: what changes beside the code, and which processes hear of it. This
    one is for code alone, and no other process is told."""

    def entered(self, stage: CoordinatorState) -> None:
        """The switch has come so far."""

    def prepared(self, outcome: ReloadOutcome) -> Said:
        """All have prepared: whether there is anything to switch to."""
        return Said.ALL

    def refused(self, outcome: ReloadOutcome) -> None:
        """A process has said no, and all go back."""

    def patched(self, outcome: ReloadOutcome) -> None:
        """All run it from now on."""

    def gone(self, outcome: ReloadOutcome) -> None:
        """All have been told to go on."""

    def show(self) -> Vote:
        """Have the hosts show the new files."""
        return Vote.YES

    def behind(self) -> Sequence[Uid]:
        """The hosts that could not, and are left behind."""
        return ()

    def take_back(self) -> None:
        """Have them show the old files again."""

    def drop(self) -> Vote:
        """Have them drop what they have staged. Which of them show it all the same."""
        return Vote.NO

    def inspect(self) -> Vote:
        """Which of them show it: all, some or none."""
        return Vote.NO


class Coordinating:
    """One switch. The owners are asked one after the other, on the calling thread.

    ``error`` is what was raised meanwhile: all has been brought to an end in spite of it.
    ``outcome`` is what the last step came to.
    """

    def __init__(self, owners: Sequence[Owner], plan: ReloadPlan, purpose: Purpose) -> None:
        self._owners = owners
        self._plan = plan
        self._purpose = purpose
        self._machine = Coordinator(len(owners), lambda longest: random.uniform(0, longest))
        self._state = CoordinatorState.IDLE
        self.outcome = ReloadOutcome()
        self.error: BaseException | None = None

    def run(self) -> bool:
        """Whether all have switched. Blocks."""
        return self._run(self._machine.begin())

    def recover(self) -> bool:
        """Brings a switch whose author has died to its end. Blocks."""
        return self._run(self._machine.recover())

    def _run(self, begin: Sequence[Effect]) -> bool:
        machine, effects = self._machine, deque(begin)
        while effects:
            effect = effects.popleft()
            if isinstance(effect, AskParty) and not machine.is_open(effect.number):
                continue
            try:
                self._enter()
                more = self._carry_out(effect)
            except BaseException as error:
                if self.error is None and not self._may_be_lost(error):
                    self.error = error
                more = self._go_on(effect, error)
            effects.extend(more)
        self._enter()
        return machine.state is CoordinatorState.COMMITTED

    def _may_be_lost(self, error: BaseException) -> bool:
        """A successor goes on without an owner that is lost. One that does not say how far it is,
        counts as lost."""
        is_inquiring = self._state is CoordinatorState.INQUIRING
        is_lost = isinstance(error, MonarchError if is_inquiring else OwnerLost)
        return self._machine.is_successor and is_lost

    def _enter(self) -> None:
        if self._state is not self._machine.state:
            self._state = self._machine.state
            if self._state not in (
                CoordinatorState.COMMITTED,
                CoordinatorState.UNDOING,
                CoordinatorState.REVERTING,
                CoordinatorState.ABORTED,
            ):
                self.outcome = ReloadOutcome()
            self._purpose.entered(self._state)

    def _go_on(self, effect: Effect, error: BaseException) -> Sequence[Effect]:
        """After something was raised: all go back, or, where it is decided, on."""
        machine = self._machine
        if isinstance(effect, AskParty) and self._may_be_lost(error):
            return machine.voted(effect.number, Vote.GONE)
        if isinstance(effect, AskParty) and machine.is_decided:
            if effect.party != HOSTS:
                # It may not have been told, and must be.
                with contextlib.suppress(MonarchError):
                    self._ask(self._owners[effect.party], effect)
            return machine.voted(effect.number, Vote.GONE)
        return machine.interrupted()

    def _carry_out(self, effect: Effect) -> Sequence[Effect]:
        machine = self._machine
        if isinstance(effect, Pause):
            time.sleep(effect.seconds)
            return machine.woke()
        if effect.party == HOSTS:
            return machine.voted(effect.number, self._ask_hosts(effect.order))
        said = self._ask(self._owners[effect.party], effect)
        self.outcome.add(said)
        if said.busy:
            return machine.interrupted()
        vote = Vote.NO if said.refused else Vote.LATE if said.late else Vote.YES
        vote = Vote.WENT if said.has_gone else vote
        if not machine.is_last(effect.number):
            return machine.voted(effect.number, vote)
        if self._state is CoordinatorState.PREPARING and not self.outcome.refused:
            verdict = self._purpose.prepared(self.outcome)
            if verdict is not Said.ALL:
                return machine.unchanged() if verdict is Said.UNCHANGED else machine.refused()
        effects = machine.voted(effect.number, vote)
        if machine.state is CoordinatorState.UNDOING and effect.order is not SwitchOrder.REVERT:
            self.outcome.refused = self.outcome.refused or self.outcome.late
            self._purpose.refused(self.outcome)
        elif effect.order is SwitchOrder.PATCH:
            self._purpose.patched(self.outcome)
        elif effect.order is SwitchOrder.GO:
            self._purpose.gone(self.outcome)
        return effects

    def _ask(self, owner: Owner, asked: AskParty) -> ReloadOutcome:
        order, number = asked.order, self._plan.generation
        if order is SwitchOrder.PREPARE:
            return owner.prepare(self._plan)
        if order is SwitchOrder.FENCE:
            return owner.fence(number, asked.attempt, asked.seconds, is_held=asked.is_held)
        if order is SwitchOrder.LIFT:
            return owner.lift(number, asked.attempt, asked.seconds)
        if order is SwitchOrder.HALT:
            return owner.halt(number, asked.seconds)
        if order is SwitchOrder.PATCH:
            return owner.patch(number, self._purpose.behind())
        if order is SwitchOrder.INQUIRE:
            return owner.inquire(number)
        if order is SwitchOrder.GO:
            go = owner.go
            self._machine.releases()  # After this, Ctrl-C comes too late.
            try:
                return go(number)
            except MonarchError as error:
                return ReloadOutcome(problems=[str(error)])  # It is lost, the others go on.
        with contextlib.suppress(MonarchError):
            owner.revert(number)
        return ReloadOutcome()

    def _ask_hosts(self, order: SwitchOrder) -> Vote:
        purpose = self._purpose
        if order is SwitchOrder.SHOW_FILES:
            return purpose.show()
        if order is SwitchOrder.INSPECT_FILES:
            return purpose.inspect()
        if order is SwitchOrder.DROP_FILES:
            return purpose.drop()
        purpose.take_back()
        return Vote.YES
