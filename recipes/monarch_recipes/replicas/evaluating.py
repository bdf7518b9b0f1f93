"""Evaluations while groups train: one group looks, and all go by what comes of it.

Groups have the same parameters after a step, so what one finds is good for all. Nobody begins the
next step before it is known, so that all end in the same one where there will be no better.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from monarch.runs.saving import shown
from monarch_recipes.best import Verdict
from monarch_recipes.evaluation import held_out_names, means_of
from monarch_recipes.extras import Extras
from monarch_recipes.replicas.chronicle import Chronicle
from monarch_recipes.replicas.crew import Crew
from monarch_recipes.replicas.group import Group
from monarch_recipes.replicas.messages import Metrics, TaskError, Unsaved
from monarch_recipes.schedule import is_due

__all__ = ["Evaluations"]


class Evaluations:
    """``every`` and ``extras`` are live keys of the run's config."""

    def __init__(self, crew: Crew, chronicle: Chronicle, every: int, extras: Extras) -> None:
        self.every = every
        self.extras = extras
        self._crew = crew
        self._chronicle = chronicle
        self._one_at_a_time = asyncio.Lock()

    async def if_due(
        self, group: Group, hold: Callable[[TaskError], Awaitable[bool]]
    ) -> Verdict | None:
        """Evaluate after this group's step, if nobody has; whoever comes meanwhile waits here.

        ``hold`` is called where the code for it fails, and says whether to try again; or raises.
        A group that is lost leaves it to the next one.
        """
        if not is_due(group.step, self.every):
            return None
        async with self._one_at_a_time:
            while self._chronicle.evaluated(group.step) is None:
                try:
                    return await self.make(group)
                except TaskError as error:
                    if not await hold(error):
                        break
        return None

    async def make(self, group: Group) -> Verdict:
        """What a group finds on the held-out samples is told, and remembered; the best is kept."""
        crew, chronicle, step = self._crew, self._chronicle, group.step
        values = await self.values(group)
        history = [*chronicle.history, {**values, "step": float(step)}]
        first = group.trainers.slice(ranks=0)
        verdict: Verdict = (await crew.ask(group, first.judge.call(history, self.extras)))[0]
        chronicle.history = history
        named = held_out_names(values)
        if named:
            chronicle.news.send(Metrics(step, chronicle.num_steps, named))
        if verdict.is_best and self.extras.keep_best:
            try:
                path = (await crew.ask(group, first.save.call(history, True)))[0]
            except Unsaved as error:
                crew.tell_unsaved(group, error)
            else:
                text = f"the best so far: {shown(path)}"
                chronicle.tell("best", text, step=step, path=str(path), group=group.number)
        return verdict

    async def values(self, group: Group) -> dict[str, float]:
        """Loss and metrics on the held-out samples, of which each rank looks at its share."""
        return means_of(await self._crew.ask(group, group.trainers.evaluate.call()))
