"""The end of a run: one saves, those that are late take it over, and the sum is drawn.

Nobody trains any more. Who comes late gets the checkpoint, and is compared with the rest like
anybody else; so it also proves that the checkpoint is good.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path

from monarch.runs.saving import shown
from monarch_recipes.evaluation import held_out_names, told
from monarch_recipes.replicas.chronicle import Chronicle
from monarch_recipes.replicas.crew import Crew, GroupsError
from monarch_recipes.replicas.evaluating import Evaluations
from monarch_recipes.replicas.group import Disconnected, Group, GroupLost
from monarch_recipes.replicas.messages import Message, Outcome, Unsaved

__all__ = ["conclude", "save_the_end"]


async def save_the_end(crew: Crew, chronicle: Chronicle, last_step: int) -> Path | None:
    """A checkpoint by one of the most groups that agree; ``None`` when all died meanwhile."""
    book = chronicle.fingerprints
    while True:
        for group in crew.groups:
            await _compare(crew, chronicle, group, last_step)
        finished = [group for group in crew.groups if group.has_finished]
        if not finished:
            return None
        saver = crew.groups[book.reference(last_step)] if book.of(last_step) else finished[0]
        try:
            return await crew.save(saver)
        except Unsaved as error:
            raise GroupsError(crew.tell_unsaved(saver, error)) from None
        except (GroupLost, Disconnected) as lost:
            await crew.lose(saver, str(lost))


async def conclude(
    crew: Crew,
    chronicle: Chronicle,
    evaluations: Evaluations,
    last_step: int,
    checkpoint: Path,
    is_stopping: bool,
) -> Outcome:
    """Bring the late to the end, unless the run was stopped; evaluate; tell what came of it."""
    if not is_stopping:
        late = (group for group in crew.groups if _is_late(group))
        await asyncio.gather(*(_adopt(crew, chronicle, group, checkpoint) for group in late))
    held_out = await _evaluate(crew, chronicle, evaluations, last_step)
    named = held_out_names(held_out)
    fingerprints = chronicle.fingerprints.of(last_step)
    report = chronicle.recovery.report(time.monotonic())
    are_equal = len(set(fingerprints.values())) == 1
    chronicle.tell(
        "stopped" if is_stopping else "finished",
        f"{len(fingerprints)} of {len(crew.groups)} groups are at step {last_step}, "
        f"{'with identical parameters' if are_equal else 'with DIFFERENT parameters'}; "
        f"{told(named)}; saved {shown(checkpoint)}",
        step=last_step, fingerprints=fingerprints, **named,
        checkpoint=str(checkpoint), details="\n".join(report.lines()), **report.data(),
    )  # fmt: skip
    for line in report.lines():
        chronicle.news.send(Message(line))
    if not are_equal:
        raise GroupsError(
            f"the groups ended with different parameters: {fingerprints}; they agreed until "
            f"step {chronicle.fingerprints.agreed_step}"
        )
    return Outcome(last_step, held_out, checkpoint, fingerprints, report)


async def _compare(crew: Crew, chronicle: Chronicle, group: Group, last_step: int) -> None:
    """Where the run ends sooner than was known in its last step, nobody was compared there."""
    if not group.has_finished or group.number in chronicle.fingerprints.of(last_step):
        return
    try:
        digests = await crew.ask(group, group.trainers.fingerprint.call())
        crew.accuse(chronicle.compare(group.number, last_step, digests))
    except (GroupLost, Disconnected) as lost:
        await crew.lose(group, str(lost))


def _is_late(group: Group) -> bool:
    return not group.is_given_up and (not group.has_finished or group.accused_of is not None)


async def _adopt(crew: Crew, chronicle: Chronicle, group: Group, checkpoint: Path) -> None:
    """A late group takes over what the others have arrived at."""
    if group.accused_of is not None:
        await crew.lose(group, group.accused_of)
    while True:
        try:
            if group.trainers is not None:
                await crew.ask(group, group.trainers.setup.call(checkpoint))
            elif await crew.may_restart(group):
                await crew.start(group)
            else:
                return
            digests = await crew.ask(group, group.trainers.fingerprint.call())
            break
        except (GroupLost, Disconnected) as lost:
            await crew.lose(group, str(lost))
    group.step, group.has_finished, group.is_training = crew.saved_step, True, False
    chronicle.compare(group.number, group.step, digests)
    chronicle.recovery.committed(group.name, group.step, 0, time.monotonic())
    chronicle.tell(
        "adopted",
        f"{group.name} came when the others had finished: it did not train, and has taken over "
        f"{shown(checkpoint)}",
        group=group.number, step=group.step,
    )  # fmt: skip


async def _evaluate(
    crew: Crew, chronicle: Chronicle, evaluations: Evaluations, last_step: int
) -> dict[str, float]:
    """Loss and metrics on the held-out samples, by the first group that can tell."""
    for group in crew.groups:
        if chronicle.evaluated(last_step) is not None:
            break
        if not group.has_finished or group.trainers is None:
            continue
        with contextlib.suppress(GroupLost, Disconnected):
            await evaluations.make(group)
    return chronicle.evaluated(last_step) or {}
