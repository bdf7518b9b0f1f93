"""Evaluations during the training, and the end of a run: one group saves, late ones load that.

After a step all groups have the same parameters, so one of them evaluates for all. The others do
not begin the next step before the result is known, so that all can end with the same step.

At the end no group trains any more. A group that comes late loads the last checkpoint, and its
fingerprint is compared with the others'; that also checks the checkpoint. If its host has no such
file, or another one of that name, it gets the state of a finished group.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from monarch.runs.recover.saving import shown
from monarch_recipes.best import EvaluationVerdict
from monarch_recipes.evaluation import held_out_names, means_of, told
from monarch_recipes.extras import Extras
from monarch_recipes.replicas.group import Disconnected, Group, GroupLost
from monarch_recipes.replicas.groups import Groups, GroupsError
from monarch_recipes.replicas.messages import (
    GroupsOutcome,
    RunMessage,
    StepMetrics,
    TaskError,
    Unsaved,
)
from monarch_recipes.schedule import is_due

# The finished groups wait only for a late one: half a minute for each loss, if its host is gone.
_MOST_LOSSES = 2
_STOP_SECONDS = 2.0


class Evaluations:
    """Evaluates the model while groups train: every ``evaluate_every`` steps of the live config."""

    def __init__(self, groups: Groups, config: Any) -> None:
        self.config = config
        self.by: Group | None = None  # the group that evaluates
        self._groups = groups
        self._one_at_a_time = asyncio.Lock()

    async def if_due(
        self, group: Group, hold: Callable[[TaskError], Awaitable[bool]]
    ) -> EvaluationVerdict | None:
        """Evaluate after this group's step if that is due and no other group has; else return None.

        Groups that arrive meanwhile wait. ``hold`` is called if the evaluation's code fails; it
        returns whether to try again, or raises. If the group is lost, the next group evaluates.
        """
        if not is_due(group.step, self.config.evaluate_every):
            return None
        async with self._one_at_a_time:
            while self._groups.event_log.evaluated(group.step) is None:
                try:
                    return await self.make(group)
                except TaskError as error:
                    if not await hold(error):
                        break
        return None

    async def make(self, group: Group) -> EvaluationVerdict:
        """Evaluate a group on the held-out samples, record the values, and judge them.

        Also saves the checkpoint if it is the best and ``keep_best`` is set.
        """
        groups, event_log, step = self._groups, self._groups.event_log, group.step
        extras: Extras = self.config.extras
        self.by = group
        try:
            shares = await groups.ask(group, group.trainers.evaluate.call())
        finally:
            self.by = None
        values = means_of(shares)
        history = [*event_log.history, {**values, "step": float(step)}]
        first = group.trainers.slice(ranks=0)
        verdict: EvaluationVerdict = (await groups.ask(group, first.judge.call(history, extras)))[0]
        event_log.history = history
        named = held_out_names(values)
        if named:
            event_log.news.send(StepMetrics(step, event_log.num_steps, named))
        if verdict.is_best and extras.keep_best:
            try:
                path = (await groups.ask(group, first.save.call(history, True)))[0]
            except Unsaved as error:
                groups.tell_unsaved(group, error)
            else:
                text = f"the best so far: {shown(path)}"
                event_log.tell("best", text, step=step, path=str(path), group=group.number)
        return verdict


async def save_the_end(groups: Groups, last_step: int) -> Path | None:
    """Save a checkpoint by one of the finished groups whose parameters are those of the majority.

    Return None if all groups died meanwhile. Raises GroupsError if it cannot be saved.
    """
    book = groups.event_log.fingerprints
    while True:
        for group in groups.all:
            await _compare(groups, group, last_step)
        finished = [group for group in groups.all if group.has_finished]
        if not finished:
            return None
        saver = groups.all[book.reference(last_step)] if book.of(last_step) else finished[0]
        try:
            return await groups.save(saver)
        except Unsaved as error:
            raise GroupsError(groups.tell_unsaved(saver, error)) from None
        except (GroupLost, Disconnected) as lost:
            await groups.lose(saver, str(lost))


async def conclude(
    groups: Groups, evaluations: Evaluations, last_step: int, checkpoint: Path, is_stopping: bool
) -> GroupsOutcome:
    """End a run: restart late groups, evaluate, report, and return the outcome.

    If the run was stopped, late groups are left out. Raises GroupsError if the groups' parameters
    differ after the last step.
    """
    event_log = groups.event_log
    if not is_stopping:
        late = (
            group
            for group in groups.all
            if not group.is_given_up and (not group.has_finished or group.accused_of is not None)
        )
        await asyncio.gather(*(_adopt(groups, group, checkpoint) for group in late))
    held_out: dict[str, float] = {}
    with contextlib.suppress(asyncio.TimeoutError):  # A person waits for the end of the run.
        seconds = _STOP_SECONDS if is_stopping else None
        held_out = await asyncio.wait_for(_evaluate(groups, evaluations, last_step), seconds)
    named = held_out_names(held_out)
    fingerprints = event_log.fingerprints.of(last_step)
    report = event_log.recovery.report(time.monotonic())
    are_equal = len(set(fingerprints.values())) == 1
    event_log.tell(
        "stopped" if is_stopping else "finished",
        f"{len(fingerprints)} of {len(groups.all)} groups are at step {last_step}, "
        f"{'with identical parameters' if are_equal else 'with DIFFERENT parameters'}; "
        f"{told(named)}; saved {shown(checkpoint)}",
        step=last_step,
        fingerprints=fingerprints,
        **named,
        checkpoint=str(checkpoint),
        details="\n".join(report.lines()),
        **report.data(),
    )
    for line in report.lines():
        event_log.news.send(RunMessage(line))
    if not are_equal:
        raise GroupsError(
            f"the groups ended with different parameters: {fingerprints}; they agreed until "
            f"step {event_log.fingerprints.agreed_step}"
        )
    return GroupsOutcome(last_step, held_out, checkpoint, fingerprints, report)


async def _compare(groups: Groups, group: Group, last_step: int) -> None:
    """Compare a finished group's fingerprint at the last step, unless the step itself did that.

    It did not if the run ended earlier than was planned when the step began.
    """
    event_log = groups.event_log
    if not group.has_finished or group.number in event_log.fingerprints.of(last_step):
        return
    try:
        digests = await groups.ask(group, group.trainers.fingerprint.call())
        groups.accuse(event_log.compare(group.number, last_step, digests))
    except (GroupLost, Disconnected) as lost:
        await groups.lose(group, str(lost))


async def _adopt(groups: Groups, group: Group, checkpoint: Path) -> None:
    """Give a late group the state of the finished groups.

    A group without processes is restarted for it. It is given up if it is lost too often.
    """
    event_log = groups.event_log
    if group.accused_of is not None:
        await groups.lose(group, group.accused_of)
    num_losses = 0
    while num_losses < _MOST_LOSSES:
        try:
            if group.trainers is not None:
                await groups.set_up(group, checkpoint)
            elif await groups.may_restart(group):
                await groups.start(group)
            else:
                return
            source = await _take_over(groups, group, checkpoint)
            digests = await groups.ask(group, group.trainers.fingerprint.call())
            break
        except (GroupLost, Disconnected) as lost:
            num_losses += 1
            await groups.lose(group, str(lost))
    else:
        group.is_given_up = True
        text = f"{group.name} is given up: the others have finished, and it does not come back"
        event_log.tell("given_up", text, group=group.number)
        return
    group.step, group.has_finished, group.is_training = groups.saved_step, True, False
    event_log.compare(group.number, group.step, digests)
    event_log.recovery.committed(group.name, group.step, 0, time.monotonic())
    event_log.tell(
        "adopted",
        f"{group.name} came when the others had finished: it did not train, and has taken over "
        f"{source}",
        group=group.number,
        step=group.step,
    )


async def _take_over(groups: Groups, group: Group, checkpoint: Path) -> str:
    """Let a group that was set up late have the finished state; return a text about its source.

    If its host has its own disk, it may not have the ``checkpoint``, so that the group has loaded
    something else. Then it gets the state of a finished group. Raises GroupLost if no finished
    group is left.
    """
    book, step = groups.event_log.fingerprints, groups.saved_step
    digests, right = set(await groups.ask(group, group.trainers.fingerprint.call())), book.of(step)
    agreed = book.reference(step) if right else None
    is_whole = group.step == step and len(digests) == 1
    if is_whole and (agreed is None or digests == {right[agreed]}):
        return str(shown(checkpoint))
    finished = [other for other in groups.all if other.has_finished and other is not group]
    if not finished:
        raise GroupLost(
            f"its host does not have {shown(checkpoint)}, and no finished group is left"
        )
    source = next((other for other in finished if other.number == agreed), finished[0])
    await groups.ask(group, group.trainers.take_over.call(source.trainers))
    return f"the state of {source.name}, as its host does not have {shown(checkpoint)}"


async def _evaluate(groups: Groups, evaluations: Evaluations, last_step: int) -> dict[str, float]:
    """Return the held-out values after the last step, evaluated by the first group that can.

    Returns {} if no group can.
    """
    event_log = groups.event_log
    for group in groups.all:
        if event_log.evaluated(last_step) is not None:
            break
        if not group.has_finished or group.trainers is None:
            continue
        with contextlib.suppress(GroupLost, Disconnected):
            await evaluations.make(group)
    return event_log.evaluated(last_step) or {}
