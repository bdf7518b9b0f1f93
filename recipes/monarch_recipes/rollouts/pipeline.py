"""Drives a batch through generators, reward actors and the buffer, from the client."""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from monarch.actor import HostMesh, ProcMesh
from monarch.errors import RemoteMemoryError
from monarch.runs import Record
from monarch.runs.recover.recovery import RanksLost
from monarch.runtime import process
from monarch_recipes.rollouts.crew import Crew, CrewCall
from monarch_recipes.rollouts.generator import (
    Generated,
    GenerateRequest,
    Generator,
    GeneratorSettings,
    SamplingEngine,
    Weights,
)
from monarch_recipes.rollouts.groups import SampleGroup
from monarch_recipes.rollouts.judging import Judged, Reward, RewardStuck
from monarch_recipes.rollouts.recorder import RolloutRecorder
from monarch_recipes.rollouts.replay import ReplayBuffer, Taken
from monarch_sync.words import counted

T = TypeVar("T")

OnRewardChange = Literal["keep", "drop", "rescore"]
_LETS_IN_SECONDS = 0.2
_LOOKS_EVERY_SECONDS = 0.002
_SPARE_SECONDS = 30.0  # for a process that is still starting


class PipelineConfig(Protocol):
    """The keys of the recipe's config that the pipeline reads."""

    @property
    def task(self) -> str | None: ...
    @property
    def problems(self) -> str: ...
    @property
    def num_held_out(self) -> int: ...
    @property
    def data_seed(self) -> int: ...
    @property
    def seed(self) -> int: ...
    @property
    def num_generators(self) -> int: ...
    @property
    def num_rewards(self) -> int: ...
    @property
    def num_threads(self) -> int: ...
    @property
    def buffer_groups(self) -> int: ...
    @property
    def max_staleness(self) -> int: ...
    @property
    def problems_per_step(self) -> int: ...
    @property
    def samples_per_problem(self) -> int: ...
    @property
    def max_tokens(self) -> int: ...
    @property
    def temperature(self) -> float: ...
    @property
    def reward_timeout_seconds(self) -> float: ...
    @property
    def on_reward_change(self) -> OnRewardChange: ...
    @property
    def num_recorded(self) -> int: ...


@dataclass(frozen=True)
class JudgedBatch:
    """A batch that was generated and judged. ``numbers`` are its numbers for the step's metrics."""

    number: int
    groups: list[SampleGroup]
    numbers: dict[str, float]


@dataclass
class _Pending:
    number: int
    asked: list[tuple[GenerateRequest, CrewCall[Generated]]]


class Pipeline:
    """The generators, the reward actors and the buffer.

    They keep running if trainers are restarted. ``engine`` samples in the generators, unless the
    task has its own ``build_engine``.
    """

    def __init__(
        self, config: PipelineConfig, engine: SamplingEngine | None, hosts: HostMesh,
        record: Record, *, preload: Sequence[str],
    ) -> None:  # fmt: skip
        self.record = record
        self._recorder = RolloutRecorder(record.folder)
        self._pending: deque[_Pending] = deque()
        self._reward_code = ""
        data = config.task, config.problems, config.num_held_out, config.data_seed
        settings = GeneratorSettings(*data, config.num_threads, config)
        file = Path(record.folder).absolute() / "buffer.json"
        capacity = config.buffer_groups

        def generator(procs: ProcMesh) -> Any:
            return procs.spawn("generator", Generator, settings, engine)

        def reward(procs: ProcMesh) -> Any:
            return procs.spawn("reward", Reward, *data)

        def buffer(procs: ProcMesh) -> Any:
            return procs.spawn("buffer", ReplayBuffer, capacity, file)

        self.generators = Crew(
            hosts, "generator", config.num_generators, generator, record, preload=preload
        )
        self.rewards = Crew(hosts, "reward", config.num_rewards, reward, record, preload=preload)
        self.buffer = Crew(hosts, "buffer", 1, buffer, record, preload=preload)

    def close(self) -> None:
        """End the processes of the generators, the reward actors and the buffer."""
        for crew in (self.generators, self.rewards, self.buffer):
            crew.close()

    def begin_anew(self, hosts: HostMesh, state: dict[str, Any] | None) -> None:
        """Load the buffer of a checkpoint, or empty it for None. Forget the batches in progress.

        Actors that died with their host are restarted on ``hosts``.
        """
        for crew in (self.generators, self.rewards, self.buffer):
            crew.move(hosts)
        self._pending.clear()
        self.buffer.ask(0, "load", state).get()

    def buffer_state(self) -> dict[str, Any]:
        """Return the state of the buffer, for a checkpoint."""
        state: dict[str, Any] = self.buffer.ask(0, "state").get()
        return state

    def begin(self, up_to: int, next_batch: int, config: PipelineConfig, weights: Weights) -> None:
        """Ask the generators for all batches up to number ``up_to`` that are not begun yet.

        If no batch is begun, the first one is ``next_batch``.
        """
        first = self._pending[-1].number + 1 if self._pending else next_batch
        for number in range(first, up_to + 1):
            start = number * config.problems_per_step
            problems = range(start, start + config.problems_per_step)
            request = self._request(problems, config, weights, seed=config.seed + 7919 * number)
            self._pending.append(_Pending(number, self._ask_generators(request)))

    def collect(self) -> tuple[int, list[SampleGroup], dict[str, float]]:
        """Wait for the oldest batch in progress.

        Return its number, its groups, and numbers for metrics.
        """
        began = time.perf_counter()
        pending = self._pending.popleft()
        answers = self._generated(pending.asked)
        groups = [group for answer in answers for group in answer.groups]
        num_tokens = sum(group.num_tokens for group in groups)
        seconds = max(answer.seconds for answer in answers)
        return (
            pending.number,
            groups,
            {
                "generator_wait_seconds": time.perf_counter() - began,
                "generate_seconds": seconds,
                "fetch_seconds": max(answer.fetch_seconds for answer in answers),
                "generated_tokens_per_second": num_tokens / max(seconds, 1e-9),
            },
        )

    def let_edit_in(self) -> None:
        """Wait for an edit that is being pushed, for 0.2 s at most. Call it while no actor is busy.

        An edit must wait for the end of a running step or batch. So without this wait, it would
        often take effect one batch later.
        """
        here, began = process.current(), time.monotonic()
        while (
            here.code_states.coming > here.generation
            and time.monotonic() - began < _LETS_IN_SECONDS
        ):
            time.sleep(_LOOKS_EVERY_SECONDS)

    def judge(
        self, number: int, groups: Sequence[SampleGroup], config: PipelineConfig, step: int
    ) -> JudgedBatch:
        """Return the batch with its rewards.

        Raises RewardFailed; then it also removes from the buffer what the same code has judged.
        """
        began = time.perf_counter()
        try:
            judged, solved = self._judged(groups, config)
        except Exception:
            generation = process.current().generation
            num_dropped = self.buffer.ask(0, "drop_judged_by", generation).get()
            if num_dropped:
                text = f"{counted(num_dropped, 'group')} judged by generation {generation} dropped"
                self.record.event("dropped", text, step=step)
            raise
        self._note_reward_code(judged[0], config, step)
        rewards = [reward for group in judged for reward in group.rewards]
        self._recorder.add(step, judged, solved, config.num_recorded)
        return JudgedBatch(number, judged, {
            "reward": sum(rewards) / len(rewards),
            "solved": sum(map(sum, solved)) / len(rewards),
            "judge_seconds": time.perf_counter() - began,
        })  # fmt: skip

    def keep(self, batch: JudgedBatch) -> dict[str, float]:
        """Add the groups with different rewards to the buffer. Return numbers for the metrics.

        These are the number of such groups, and of groups that the full buffer dropped.
        """
        groups = [group for group in batch.groups if group.is_informative]
        num_dropped = self.buffer.ask(0, "add", batch.number, groups).get()
        return {"informative_groups": len(groups), "overflowed_groups": num_dropped}

    def take(self, step: int, version: int, config: PipelineConfig) -> Taken:
        """Take the groups for a step out of the buffer, for a policy with this version."""
        taken: Taken = self.buffer.ask(
            0, "take", step, version, config.problems_per_step, config.max_staleness
        ).get()
        return taken

    def evaluate(self, config: PipelineConfig, weights: Weights) -> float:
        """Return the share of the held-out problems that the policy's likeliest completions
        solve.
        """
        problems = range(-config.num_held_out, 0)
        request = self._request(problems, config, weights, seed=0, is_greedy=True)
        answers = self._generated(self._ask_generators(request))
        groups = [group for answer in answers for group in answer.groups]
        _, solved = self._judged(groups, config)
        return sum(map(sum, solved)) / len(solved)

    def _request(
        self, problems: Sequence[int], config: PipelineConfig, weights: Weights,
        *, seed: int, is_greedy: bool = False,
    ) -> GenerateRequest:  # fmt: skip
        return GenerateRequest(
            problems=tuple(problems),
            num_samples=1 if is_greedy else config.samples_per_problem,
            temperature=0.0 if is_greedy else config.temperature,
            max_tokens=config.max_tokens,
            seed=seed,
            weights=weights,
        )

    def _ask_generators(
        self, request: GenerateRequest
    ) -> list[tuple[GenerateRequest, CrewCall[Generated]]]:
        """Ask each generator for its share of the problems."""
        num = len(self.generators)
        asked = []
        for number in range(num):
            share = dataclasses.replace(request, problems=request.problems[number::num])
            if share.problems:
                asked.append((share, self.generators.ask(number, "generate", share)))
        return asked

    def _generated(self, asked: Sequence[tuple[GenerateRequest, CrewCall[Generated]]]) -> list[Any]:
        """Return all answers, made by code of the same generation.

        If the code changed between the requests, those of the older generation are made again.
        Raises RanksLost if the trainers died with the weights.
        """
        try:
            answers = [one.get() for _, one in asked]
            while len(generations := {_generation_of(answer) for answer in answers}) > 1:
                newest = max(generations)
                again = {
                    number: self.generators.ask(one.number, "generate", request)
                    for number, (request, one) in enumerate(asked)
                    if _generation_of(answers[number]) < newest
                }
                for number, asked_again in again.items():
                    answers[number] = asked_again.get()
        except RemoteMemoryError as error:
            raise RanksLost("died", f"the trainers' weights are gone: {error}") from error
        return answers

    def _judged(
        self, groups: Sequence[SampleGroup], config: PipelineConfig
    ) -> tuple[list[SampleGroup], list[list[bool]]]:
        """Return all groups with rewards from the same code, and which of their samples are
        right.
        """
        num = len(self.rewards)
        while True:
            asked = []
            for number in range(min(num, len(groups))):
                share = groups[number::num]
                texts = [[sample.text for sample in group.samples] for group in share]
                problems = [group.problem for group in share]
                seconds = config.reward_timeout_seconds
                one = self.rewards.ask(number, "judge", problems, texts, seconds)
                asked.append((share, one))
            found: dict[int, tuple[SampleGroup, list[bool]]] = {}
            answers = [self._answer(one, config) for _, one in asked]
            if len({answer.code for answer in answers}) > 1:
                continue
            for number, ((share, _), answer) in enumerate(zip(asked, answers, strict=True)):
                rows = zip(share, answer.rewards, answer.solved, strict=True)
                for place, (group, rewards, solved) in enumerate(rows):
                    judged = group.judged(rewards, answer.generation, answer.code)
                    found[number + place * num] = judged, solved
            inorder = [found[place] for place in range(len(groups))]
            return [group for group, _ in inorder], [solved for _, solved in inorder]

    def _answer(self, asked: CrewCall[Judged], config: PipelineConfig) -> Judged:
        """Return a reward actor's answer, or replace the actor and raise RewardStuck if none comes.

        A reward function in a loop in C, for example, blocks its whole process.
        """
        # The actor itself limits the time of each completion; this is for one that is blocked.
        seconds = config.reward_timeout_seconds * 2 + _SPARE_SECONDS
        try:
            return asked.get(timeout=seconds)
        except TimeoutError:
            text = f"a reward actor has not answered within {seconds:g} s"
            self.rewards.replace(asked.number, text)
            raise RewardStuck(text) from None

    def _note_reward_code(self, first: SampleGroup, config: PipelineConfig, step: int) -> None:
        """If the reward's code changed, treat the waiting groups as ``on_reward_change`` says."""
        before, self._reward_code = self._reward_code, first.reward_code
        if before in ("", first.reward_code):
            return
        waiting: list[SampleGroup] = self.buffer.ask(0, "waiting").get()
        policy = config.on_reward_change
        if policy == "drop":
            self.buffer.ask(0, "replace", []).get()
        elif policy == "rescore" and waiting:
            judged, _ = self._judged(waiting, config)
            kept = [group for group in judged if group.is_informative]
            self.buffer.ask(0, "replace", kept).get()
        text = f"the reward has changed from step {step}: {policy}"
        if waiting:
            text += f", {counted(len(waiting), 'group')} that waited"
        self.record.event(
            "reward", text, step=step, policy=policy, generation=first.reward_generation,
            num_waiting=len(waiting), code=first.reward_code,
        )  # fmt: skip


def _generation_of(answer: Generated) -> int:
    return answer.groups[0].generation
