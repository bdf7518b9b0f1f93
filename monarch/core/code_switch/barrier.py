"""A fence as a participant sees it: a barrier in the order of its owner's messages.

The fence is reached when the participant's own actors, and then its procs, have handled everything
that was sent before it. A fence delays others only if messages wait behind it: a process that has
reached the fence does not handle them, so their sender waits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from monarch.core.code_switch.effects import (
    Do,
    Effect,
    Look,
    Reason,
    Say,
    TellHeld,
    Work,
    answer_to,
)

_LOOK_SECONDS = 0.1


class SwitchBarrier:
    """One fence of a switch, in one process. See the module's docstring."""

    def __init__(self, attempt: int, token: int, seconds: float | None, now: float) -> None:
        #: Counts the fences of a switch, from 1.
        self.attempt = attempt
        #: Identifies the order that is answered when the fence is reached; 0 once it is answered.
        self.token = token
        #: How long the fence may delay a sender; None is without limit.
        self.seconds = seconds
        #: The number of the work that raises the fence for this process's actors; 0 before that.
        self.own_number = 0
        #: Whether all actors of this process have reached the fence.
        self.has_own_come = False
        #: The processes whose messages from us wait behind the fence.
        self.fenced: set[str] = set()
        #: The procs that have not reached the fence yet, by number.
        self.asked: dict[int, str] = {}
        #: Since when the fence delays a sender; None if it delays none.
        self.held_at: float | None = None
        #: The number of the work that forbids further spawns; 0 before that.
        self.gate = 0
        self.is_gate_closed = False
        self.is_lifted = False
        #: Whether the fence has given up waiting for processes that have not reached it.
        self.is_late = False
        #: When to check next whether the fence delays a sender.
        self.look_at = now + _LOOK_SECONDS
        #: Processes to which a message was sent behind the fence. Any thread may add to it.
        self._sent: set[str] = set()
        #: Processes all of whose actors have reached the fence.
        self._come: set[str] = set()

    @property
    def is_passed(self) -> bool:
        """Whether all processes that the fence was sent to have reached or passed it."""
        return self.has_own_come and not self.asked

    @property
    def is_awaited(self) -> bool:
        return not (self.is_lifted or self.is_late)

    @property
    def gives_up_at(self) -> float | None:
        """Return the time at which the fence gives up because it delays a process.

        ``None`` if it delays none, or if it has no time limit.
        """
        if self.seconds is None or self.held_at is None or not self.is_awaited:
            return None
        return self.held_at + self.seconds

    @property
    def why_late(self) -> Reason:
        return Reason.PROCS if self.has_own_come else Reason.ACTORS

    def answer(self, *reasons: Reason) -> list[Effect]:
        """Answer the process that ordered the fence; do nothing if that was done before."""
        token, self.token = self.token, 0
        return answer_to(token, *reasons)

    def raise_here(self, number: int, uid: str) -> Effect:
        """Raise the fence for the actors of this process, whose uid is ``uid``."""
        self.own_number = number
        if self.seconds is not None:
            self.fenced.add(uid)
        return Do(number, Work.RAISE_FENCE)

    def close_gate(self, next_number: Callable[[], int]) -> list[Effect]:
        """Forbid further spawns. Later calls do nothing."""
        if self.gate:
            return []
        self.gate = next_number()
        return [Do(self.gate, Work.CLOSE_GATE)]

    def sent(self, procs: Iterable[str]) -> bool:
        """Record a message to these procs; return whether it waits behind the fence. Any thread may
        call this.
        """
        behind = self.fenced.intersection(procs)
        self._sent |= behind
        return bool(behind & self._come)

    def came(self, proc: str) -> bool:
        """Record that all actors of the process ``proc`` have reached the fence.

        Returns whether a message to ``proc`` was sent after the fence, so that it waits there
        behind the fence.
        """
        self._come.add(proc)
        return proc in self._sent

    def hold(self, now: float) -> list[Effect]:
        """Note that the fence delays a sender from ``now`` on. Later calls are ignored.

        If the fence is part of another process's fence, the effects tell that process; otherwise
        there are none.
        """
        if self.held_at is not None:
            return []
        self.held_at = now
        return [TellHeld(self.attempt)] if self.seconds is None else []

    @property
    def wakes_at(self) -> float:
        """Return the next time at which something must be done.

        While the fence delays no sender, it is the time to check whether it does. After that, it is
        the time to give up; infinity if the fence has no time limit.
        """
        if self.held_at is None:
            return self.look_at
        return math.inf if self.gives_up_at is None else self.gives_up_at

    def tick(self, now: float) -> list[Effect]:
        if self.held_at is not None or now < self.look_at:
            return []
        self.look_at = now + _LOOK_SECONDS
        return [Look()]


class Telling:
    """Says when to tell people what a switch waits for.

    ``after`` are seconds since the first fence of the switch; later messages follow every
    ``after[-1]`` seconds.
    """

    def __init__(self, after: Sequence[float]) -> None:
        self._step = after[-1]
        self._ahead = [*after]
        self._began = math.inf

    def begin(self, now: float) -> None:
        """Note that a fence was sent at ``now``. Only the first one starts the count."""
        self._began = min(self._began, now)

    @property
    def wakes_at(self) -> float:
        return self._began + self._ahead[0]

    def tick(self, now: float) -> list[Effect]:
        if now < self.wakes_at:
            return []
        waited = self._ahead.pop(0)
        self._ahead = self._ahead or [waited + self._step]
        return [Say(waited)]
