"""Drives a batch through generators, reward actors and the buffer, from the client.

Each ``config`` is the recipe's `RLConfig`, or that of a user's copy of the recipe.
"""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monarch.actor import Actor, HostMesh
from monarch.errors import RemoteMemoryError
from monarch.runs import Record
from monarch.runs.recover.recovery import RanksLost
from monarch.runtime import process
from monarch_recipes.rollouts.crew import Crew, CrewCall
from monarch_recipes.rollouts.generator import (
    Generated,
    GenerateRequest,
    Generator,
    SamplingEngine,
    Weights,
)
from monarch_recipes.rollouts.groups import SampleGroup
from monarch_recipes.rollouts.judging import Judged, Reward, RewardStuck
from monarch_recipes.rollouts.recorder import RolloutRecorder
from monarch_recipes.rollouts.replay import ReplayBuffer, Taken
from monarch_sync.words import counted

_Asked = list[tuple[GenerateRequest, CrewCall[Generated]]]
"""Requests to generators, each with its pending answer."""

_LETS_IN_SECONDS = 0.2
_LOOKS_EVERY_SECONDS = 0.002
_SPARE_SECONDS = 30.0  # for a process that is still starting


@dataclass(frozen=True)
class JudgedBatch:
    """A batch that was generated and judged. ``numbers`` are its metrics for the step, by name."""

    number: int
    groups: list[SampleGroup]
    numbers: dict[str, float]


class Pipeline:
    """The generators, the reward actors and the buffer.

    They keep running if trainers are restarted. ``engine`` samples in the generators, unless the
    task has its own ``build_engine``.
    """

    def __init__(
        self,
        config: Any,
        engine: SamplingEngine | None,
        hosts: HostMesh,
        record: Record,
        *,
        preload: Sequence[str],
    ) -> None:
        self._record = record
        self._recorder = RolloutRecorder(record.folder)
        #: The batches in progress, the oldest first: their numbers and their requests.
        self._pending: deque[tuple[int, _Asked]] = deque()
        self._reward_code = ""  # the digest of the code that judged the last batch

        def crew(name: str, num: int, actor: type[Actor], *args: Any) -> Crew:
            return Crew(hosts, name, num, actor, args, record=record, preload=preload)

        data = config.task, config.problems, config.num_held_out, config.data_seed
        file = Path(record.folder).absolute() / "buffer.json"
        self.generators = crew("generator", config.num_generators, Generator, config, engine)
        self.rewards = crew("reward", config.num_rewards, Reward, *data)
        self.buffer = crew("buffer", 1, ReplayBuffer, config.buffer_groups, file)

    def close(self) -> None:
        """End the processes of the generators, the reward actors and the buffer."""
        for crew in (self.generators, self.rewards, self.buffer):
            crew.close()

    def begin_anew(self, hosts: HostMesh, state: dict[str, Any] | None) -> None:
        """Forget the batches in progress, and load the buffer's ``state`` of a checkpoint.

        If ``state`` is None, the buffer is emptied. Actors that died with their host are restarted
        on ``hosts``.
        """
        for crew in (self.generators, self.rewards, self.buffer):
            crew.move(hosts)
        self._pending.clear()
        self.buffer.ask(0, "load", state).get()

    def begin(self, up_to: int, next_batch: int, config: Any, weights: Weights) -> None:
        """Ask the generators for all batches up to number ``up_to`` that are not begun yet.

        If no batch is begun, the first one is ``next_batch``.
        """
        first = self._pending[-1][0] + 1 if self._pending else next_batch
        for number in range(first, up_to + 1):
            start = number * config.problems_per_step
            request = GenerateRequest(
                tuple(range(start, start + config.problems_per_step)),
                num_samples=config.samples_per_problem,
                temperature=config.temperature,
                max_tokens=config.max_tokens,
                seed=config.seed + 7919 * number,
                weights=weights,
            )
            self._pending.append((number, self._ask_generators(request)))

    def collect(self) -> tuple[list[SampleGroup], dict[str, float]]:
        """Wait for the oldest batch in progress. Return its groups, and numbers for metrics."""
        began = time.perf_counter()
        _, requests = self._pending.popleft()
        answers = self._generated(requests)
        groups = [group for answer in answers for group in answer.groups]
        num_tokens = sum(group.num_tokens for group in groups)
        seconds = max(answer.seconds for answer in answers)
        return groups, {
            "generator_wait_seconds": time.perf_counter() - began,
            "generate_seconds": seconds,
            "fetch_seconds": max(answer.fetch_seconds for answer in answers),
            "generated_tokens_per_second": num_tokens / max(seconds, 1e-9),
        }

    def let_edit_in(self) -> None:
        """Wait for an edit that is being pushed, for 0.2 s at most. Call it while no actor is busy.

        An edit must wait for the end of a running step or batch. So without this wait, it would
        often take effect one batch later.
        """
        agent, deadline = process.current(), time.monotonic() + _LETS_IN_SECONDS
        while agent.code_states.coming > agent.generation and time.monotonic() < deadline:
            time.sleep(_LOOKS_EVERY_SECONDS)

    def judge(
        self, number: int, groups: Sequence[SampleGroup], config: Any, step: int
    ) -> JudgedBatch:
        """Return the batch with its rewards.

        Raises RewardFailed. Before any error is raised, the groups that the same code has judged
        are removed from the buffer.
        """
        began = time.perf_counter()
        try:
            judged, solved = self._judged(groups, config)
        except Exception:
            generation = process.current().generation
            num_dropped = self.buffer.ask(0, "drop_judged_by", generation).get()
            if num_dropped:
                text = f"{counted(num_dropped, 'group')} judged by generation {generation} dropped"
                self._record.event("dropped", text, step=step)
            raise
        self._note_reward_code(judged[0], config, step)
        rewards = [reward for group in judged for reward in group.rewards]
        self._recorder.add(step, judged, solved, config.num_recorded)
        numbers = {
            "reward": sum(rewards) / len(rewards),
            "solved": sum(map(sum, solved)) / len(rewards),
            "judge_seconds": time.perf_counter() - began,
        }
        return JudgedBatch(number, judged, numbers)

    def keep(self, batch: JudgedBatch) -> dict[str, float]:
        """Add the groups with different rewards to the buffer. Return numbers for the metrics.

        These are the number of such groups, and of groups that the full buffer dropped.
        """
        groups = [group for group in batch.groups if group.is_informative]
        num_dropped = self.buffer.ask(0, "add", batch.number, groups).get()
        return {"informative_groups": len(groups), "overflowed_groups": num_dropped}

    def take(self, step: int, config: Any) -> Taken:
        """Take groups out of the buffer to learn from, after the policy has made ``step`` steps."""
        taken: Taken = self.buffer.ask(
            0, "take", step, config.problems_per_step, config.max_staleness
        ).get()
        return taken

    def evaluate(self, config: Any, weights: Weights) -> float:
        """Return the share of the held-out problems that the policy's likeliest completions
        solve.
        """
        request = GenerateRequest(
            tuple(range(-config.num_held_out, 0)),
            num_samples=1,
            temperature=0.0,
            max_tokens=config.max_tokens,
            seed=0,
            weights=weights,
        )
        answers = self._generated(self._ask_generators(request))
        groups = [group for answer in answers for group in answer.groups]
        _, solved = self._judged(groups, config)
        return sum(map(sum, solved)) / len(solved)

    def _ask_generators(self, request: GenerateRequest) -> _Asked:
        """Ask each generator for its share of the problems."""
        num = len(self.generators)
        requests = []
        for number in range(num):
            share = dataclasses.replace(request, problems=request.problems[number::num])
            if share.problems:
                requests.append((share, self.generators.ask(number, "generate", share)))
        return requests

    def _generated(self, requests: _Asked) -> list[Generated]:
        """Return all answers, made by code of the same generation.

        If the code changed between the requests, those of the older generation are made again.
        Raises RanksLost if the trainers died with the weights.
        """
        try:
            answers = [call.get() for _, call in requests]
            while len(generations := {_generation_of(answer) for answer in answers}) > 1:
                newest = max(generations)
                repeated = {
                    number: self.generators.ask(call.number, "generate", request)
                    for number, (request, call) in enumerate(requests)
                    if _generation_of(answers[number]) < newest
                }
                for number, repeated_call in repeated.items():
                    answers[number] = repeated_call.get()
        except RemoteMemoryError as error:
            raise RanksLost("died", f"the trainers' weights are gone: {error}") from error
        return answers

    def _judged(
        self, groups: Sequence[SampleGroup], config: Any
    ) -> tuple[list[SampleGroup], list[list[bool]]]:
        """Return all groups with their rewards, and whether each of their samples is right.

        If the reward's code changes meanwhile, all are judged again, so that one code judges all.
        """
        num = min(len(self.rewards), len(groups))
        while True:
            calls = []
            for number in range(num):
                share = groups[number::num]
                texts = [[sample.text for sample in group.samples] for group in share]
                problems = [group.problem for group in share]
                seconds = config.reward_timeout_seconds
                calls.append(self.rewards.ask(number, "judge", problems, texts, seconds))
            answers = [self._answer(call, config) for call in calls]
            if len({answer.code for answer in answers}) <= 1:
                break
        judged: list[SampleGroup] = []
        solved: list[list[bool]] = []
        for index, group in enumerate(groups):
            answer, row = answers[index % num], index // num
            judged.append(group.judged(answer.rewards[row], answer.generation, answer.code))
            solved.append(answer.solved[row])
        return judged, solved

    def _answer(self, call: CrewCall[Judged], config: Any) -> Judged:
        """Return a reward actor's answer.

        If none comes in time, replace the actor and raise RewardStuck. That happens if the reward
        function blocks its whole process, for example in a loop in C.
        """
        # The actor itself limits the time of each completion; this is for one that is blocked.
        seconds = config.reward_timeout_seconds * 2 + _SPARE_SECONDS
        try:
            return call.get(timeout=seconds)
        except TimeoutError:
            text = f"a reward actor has not answered within {seconds:g} s"
            self.rewards.replace(call.number, text)
            raise RewardStuck(text) from None

    def _note_reward_code(self, first: SampleGroup, config: Any, step: int) -> None:
        """If the reward's code changed, treat the waiting groups as ``on_reward_change`` says."""
        old_code, self._reward_code = self._reward_code, first.reward_code
        if old_code in ("", first.reward_code):
            return
        waiting: list[SampleGroup] = self.buffer.ask(0, "waiting").get()
        policy = config.on_reward_change
        if policy == "drop":
            self.buffer.ask(0, "replace", []).get()
        elif policy == "rescore" and waiting:
            judged, _ = self._judged(waiting, config)
            informative = [group for group in judged if group.is_informative]
            self.buffer.ask(0, "replace", informative).get()
        text = f"the reward has changed from step {step}: {policy}"
        if waiting:
            text += f", {counted(len(waiting), 'group')} that waited"
        self._record.event(
            "reward",
            text,
            step=step,
            policy=policy,
            generation=first.reward_generation,
            num_waiting=len(waiting),
            code=first.reward_code,
        )


def _generation_of(answer: Generated) -> int:
    return answer.groups[0].generation
