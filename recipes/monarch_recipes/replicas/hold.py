"""The hold of a run: new code has failed, and all groups wait for newer code.

The failed step is not committed; it is made again with the newer code.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from monarch.actor import Port
from monarch.config import settings
from monarch.runs.hold.hold_report import HoldReport
from monarch.runs.record.edits import Edits, Failure
from monarch.runs.record.slowness import HOLD, TIMES_MORE, Patience
from monarch.runtime import process
from monarch_recipes.replicas.group import Group, GroupLost
from monarch_recipes.replicas.messages import GroupStep, Holds, RunEvent, TaskError
from monarch_sync.words import took

SETUP, STEP, EVALUATION = "setup", "step", "evaluation"  # activities
_LOOK_SECONDS = 0.05
_ASK_SECONDS = 0.5


class GroupsHold:
    """The hold of one run: decides when it begins and ends.

    Events are sent to ``news``. ``report`` knows whether a person watches the run.
    """

    def __init__(self, config: Any, edits: Edits, report: HoldReport, news: Port[Any]) -> None:
        #: With the present values of the live keys.
        self.config = config
        self.edits = edits
        #: Why all groups wait for newer code; None if they do not.
        self.failure: Failure | None = None
        #: Whether a person wants the present step held.
        self.is_given_up = False
        #: Whether groups do not share each step.
        self.is_local: bool = config.algorithm != "ddp"
        self._report = report
        self._news = news
        #: Whether no step was committed since the last hold.
        self._has_held = False
        #: A person's factor on the time that the config gives the present step.
        self._factor = 1.0
        #: Whether it was reported that the present step takes long.
        self._is_slow_reported = False

    async def begin_after_error(
        self, activity: str, doing: str, error: TaskError, *, is_anew: bool = False
    ) -> None:
        """Begin the hold after an error of the task's code: all groups wait for newer code.

        Raises the error instead if an edit cannot help: the code is no newer than at the run's
        start, and no person is there to fix it. ``is_anew`` means that the group is restarted after
        the fix.
        """
        generation = process.current().generation
        if error.no_edit_helps:
            raise error
        is_edited = self.edits.is_edited(generation)
        if not is_edited and not await self._may_be_fixed(activity, error):
            raise error
        good = max(self.edits.good_before(activity, generation), error.good_generation or 0)
        if is_anew:
            state = "the group is started again after the fix, and the others wait"
        elif self.is_local:
            state = "all groups wait, and what one has made of it by itself is made again"
        else:
            state = "nothing of it was committed, and all groups wait"
        text = f"{error.reason} ({error.where})"
        failure = self._failure_of(activity, doing, text, good, error.file, error.line)
        self._begin(failure, state, begins_anew=is_anew)

    async def _may_be_fixed(self, activity: str, error: TaskError) -> bool:
        """Return whether a person may fix code that was not edited in this run."""
        if self.failure is not None:
            return True  # Another group has already failed with this code.
        if not error.is_of_code or self.edits.has_gone_well(activity):
            return False
        return self.edits.policy == "hold" and await asyncio.to_thread(self._report.is_watched)

    def begin_after_loss(
        self, group: Group, lost: GroupLost, *, are_left: bool, goes_on_from: str
    ) -> None:
        """Begin the hold after the loss of a group, if new code is the likely cause.

        That is so if the group hangs on new code, or dies in the same step again. A first death may
        be chance. ``are_left`` means that other groups train; if not, all restart from
        ``goes_on_from``, a text.
        """
        edits, generation = self.edits, process.current().generation
        doing = f"step {group.step + 1}"
        is_again = edits.is_lost_again(STEP, f"{doing} of {group.name}", generation)
        if not is_again and not (lost.details and edits.is_new(STEP, generation)):
            return
        if are_left:
            state = f"{group.name} is ended; after the fix it heals from the others, which wait"
        else:
            state = f"no group is left: after the fix all go on from {goes_on_from}"
        text, good = f"{group.name} was lost: {lost}", edits.good_before(STEP, generation)
        self._begin(self._failure_of(STEP, doing, text, good), state, in_place=are_left)

    @property
    def is_on_trial(self) -> bool:
        """Whether no step has succeeded with the present code yet."""
        return self.edits.is_new(STEP, process.current().generation)

    def patience(self) -> Patience | None:
        """Return how long a step may take on new code.

        Returns None if a step has succeeded with this code.
        """
        agent = process.current()
        generation = agent.generation
        if not self.is_on_trial:
            return None
        return self.edits.patience(
            STEP,
            generation,
            self.config.step_timeout_seconds * self._factor,
            least=self._edit_patience_seconds * self._factor,
            mend_waits=agent.code_states.coming > generation,
        )

    @property
    def _edit_patience_seconds(self) -> float:
        seconds: float | None = self.config.edit_patience_seconds
        return settings().edit_patience_seconds if seconds is None else seconds

    def slow(self, text: str) -> None:
        """Report that a step on new code takes long, and how a person can answer."""
        text += "; it goes on. k holds it, + gives it more time"
        if not self._is_slow_reported:
            text += (
                ", here or in a `monarch sync --watch`; elsewhere `monarch runs hold` and "
                "`monarch runs wait`. It is told after edit_patience_seconds = "
                f"{self._edit_patience_seconds:g}, or ten times what is usual"
            )
        self._is_slow_reported = True
        self._news.send(RunEvent("slow", text, {"answers": True}))

    def answer_slow(self, answer: str) -> None:
        """Act on a person's answer about a slow step: interrupt it, or give it more time."""
        patience = self.patience()
        if patience is None:
            return  # The step has ended.
        if answer == HOLD:
            self.is_given_up = True
            return
        self._factor *= TIMES_MORE
        patience = self.patience() or patience
        text = (
            f"a step has {took(patience.stuck)} to make progress, and {took(patience.most)} in all"
        )
        self._news.send(RunEvent("slow", text))

    def _end_answers(self) -> None:
        self._factor, self.is_given_up, self._is_slow_reported = 1.0, False, False

    async def mended(
        self, unless: Callable[[], bool], ask: Callable[[], Awaitable[object]] | None = None
    ) -> None:
        """Wait until newer code ends the hold, or until ``unless`` returns true.

        ``ask`` is called every half second; it raises if waiting is of no use.
        """
        asked_at = time.monotonic()
        while (failure := self.failure) is not None and not unless():
            if process.current().generation > failure.generation:
                self.failure = None
                return
            await asyncio.sleep(_LOOK_SECONDS)
            if ask is not None and time.monotonic() - asked_at > _ASK_SECONDS:
                await ask()
                asked_at = time.monotonic()

    def step_went_well(self, result: GroupStep, seconds: float) -> None:
        """Note that a group committed a step. If the run has held, report the end of the hold."""
        self.edits.went_well(STEP, result.generation, seconds)
        self._end_answers()
        if self._has_held and self.failure is None:
            self._has_held = False
            self._news.send(Holds(f"step {result.step}", result.generation))

    def _failure_of(
        self, activity: str, doing: str, error: str, good: int, file: str = "", line: int = 0
    ) -> Failure:
        edits, generation = self.edits, process.current().generation
        return Failure(
            doing=doing,
            error=error,
            generation=generation,
            good=good,
            ranks=(),
            file=file,
            line=line,
            is_first=edits.is_new(activity, generation),
            older=edits.older(generation),
        )

    def _begin(
        self, failure: Failure, state: str, *, in_place: bool = True, begins_anew: bool = False
    ) -> None:
        if self.failure is not None:
            return  # Another group has begun the hold.
        self.failure = failure
        self._end_answers()
        self._has_held = True
        self._news.send(
            Holds(
                failure.doing,
                failure.generation,
                failure=failure,
                state=state,
                in_place=in_place,
                begins_anew=begins_anew,
            )
        )
