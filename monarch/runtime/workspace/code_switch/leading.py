"""Drives the switch of one owner: the coordinator of its own process and of its procs."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import msgspec

from monarch.core.code_switch.coordinator import HOST_ORDERS, Coordinator, Effect, Pause
from monarch.core.code_switch.table import CoordinatorState, Vote
from monarch.runtime.promise import Promise
from monarch.runtime.workspace.code_switch.host_files import HostFiles
from monarch.runtime.workspace.code_switch.open_order import Desk
from monarch.runtime.workspace.reload_plan import ReloadOutcome, ReloadPlan, Switched
from monarch.wire.message import Order, SwitchOrder
from monarch_sync.progress import progress

_NAMES = {
    CoordinatorState.FENCING: "wait",
    CoordinatorState.LIFTING: "wait",
    CoordinatorState.PAUSING: "wait",
    CoordinatorState.HALTING: "wait",
    CoordinatorState.SHOWING: "commit",
    CoordinatorState.PATCHING: "switch",
    CoordinatorState.RELEASING: "switch",
}
"""Steps of a push, as reports name them."""


class CalledOff(Exception):
    """The author has cancelled the switch."""


class Leading:
    """Drives one switch to its end, after all have prepared. Blocks.

    ``ask`` orders this process and its procs to do a step, and returns their outcome; the work is
    done at the desk that it is given. If an exception is raised during the switch, it is kept as
    ``error``, and the switch is finished all the same.
    """

    def __init__(
        self,
        ask: Callable[[Order, Desk], ReloadOutcome],
        plan: ReloadPlan,
        files: HostFiles,
        *,
        fence_seconds: float,
    ) -> None:
        self._ask = ask
        self._plan = plan
        #: The files of the push on our hosts.
        self._files = files
        self._machine = Coordinator(
            plan.generation, lambda longest: random.uniform(0, longest), fence_seconds
        )
        #: The result, filled in while the switch runs.
        self._switched = Switched()
        #: Set when the author cancels the switch.
        self._called_off: Promise[None] = Promise()
        #: Where the present order's work is done; None between orders. Under the lock.
        self._desk: Desk | None = None
        self._lock = threading.Lock()
        #: The present step, as reports name it, and when it began.
        self._step, self._mark = "", time.perf_counter()
        #: The first exception that was raised meanwhile.
        self.error: BaseException | None = None

    def call_off(self) -> None:
        """Have the switch undone, unless it is decided. From any thread; does not block."""
        self._called_off.set(None)
        with self._lock:
            if self._desk is not None and not self._machine.is_decided:
                self._desk.put(_raise_called_off)

    def run(self) -> Switched:
        """Run the switch to its end and return the result."""
        machine, switched, files = self._machine, self._switched, self._files
        following = machine.begin()
        while (effect := following) is not None:
            self._enter()
            try:
                if self._called_off.is_set and not machine.is_decided:
                    raise CalledOff
                following = self._carry_out(effect)
            except BaseException as error:
                self.error = self.error or error
                following = self._go_on(effect)
        self._enter()
        switched.is_done = machine.state is CoordinatorState.COMMITTED
        switched.replies, switched.looked = files.replies, files.looked
        switched.failed, switched.is_taken_back = files.failed, files.is_taken_back
        return switched

    def _enter(self) -> None:
        name = _NAMES.get(self._machine.state, "")
        if name == self._step:
            return
        now, seconds = time.perf_counter(), self._switched.seconds
        if self._step:
            seconds[self._step] = seconds.get(self._step, 0.0) + now - self._mark
        self._step, self._mark = name, now
        if name in ("wait", "commit"):
            progress().step = name

    def _go_on(self, effect: Effect) -> Effect | None:
        """Return what to do next after an exception; None if the switch is over.

        If the switch is decided, it is carried on. Otherwise all processes revert.
        """
        if not self._machine.is_decided:
            return self._machine.interrupted()
        if isinstance(effect, Order) and effect.kind not in HOST_ORDERS:
            # The participants may not have got the order, and must get it.
            self._give(effect)
        return self._machine.voted(Vote.YES)

    def _carry_out(self, effect: Effect) -> Effect | None:
        machine, switched = self._machine, self._switched
        if isinstance(effect, Pause):
            if self._called_off.wait(effect.seconds):
                raise CalledOff
            return machine.woke()
        if effect.kind is SwitchOrder.SHOW_FILES:
            return machine.voted(self._files.show())
        if effect.kind in HOST_ORDERS:
            is_shown = effect.kind is SwitchOrder.TAKE_BACK_FILES
            (self._files.take_back if is_shown else self._files.drop)()
            return machine.voted(Vote.YES)
        if effect.kind is SwitchOrder.PATCH:
            effect = msgspec.structs.replace(effect, behind=self._files.behind)
        outcome = self._give(effect)
        if effect.kind is SwitchOrder.GO:
            switched.outcome.problems = outcome.problems
        elif effect.kind is SwitchOrder.PATCH:
            switched.outcome = outcome
        earlier, following = machine.state, machine.voted(outcome.vote)
        if machine.state is CoordinatorState.UNDOING and earlier is not machine.state:
            outcome.refused = outcome.refused or outcome.late
            switched.outcome = outcome
        return following

    def _give(self, order: Order) -> ReloadOutcome:
        desk = Desk()
        with self._lock:
            self._desk = desk
            if order.kind is SwitchOrder.GO:
                self._machine.releases()  # After this, Ctrl-C comes too late.
        try:
            return self._ask(order, desk)
        finally:
            with self._lock:
                self._desk = None


def _raise_called_off() -> None:
    raise CalledOff
