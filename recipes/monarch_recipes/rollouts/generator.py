"""A generator: completions of problems by the newest policy, in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from monarch.actor import Actor, context, endpoint
from monarch.rdma import SharedStateDict
from monarch_recipes.rollouts.groups import Sample, SampleGroup
from monarch_recipes.rollouts.policy import BEGIN, Policy, decode, encode
from monarch_recipes.rollouts.problems import load_problems, prompt
from monarch_recipes.rollouts.sampling import SampledTokens, SampleRequest, sample
from monarch_recipes.task import own_part, part, tell_of_lost_parts
from monarch_reload import ReloadReport

_SEEDS = 1 << 62


class SamplingEngine(Protocol):
    """What samples: the recipe's own, or vLLM (`vllm_engine.py`). A task's ``build_engine`` returns
    one."""

    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors into which new weights are fetched, by the names of the trainer's."""

    def loaded(self) -> None:
        """New weights have been fetched into them."""

    def generate(
        self, requests: Sequence[SampleRequest], *, temperature: float, max_tokens: int
    ) -> list[SampledTokens]:
        """A completion of each request, in their order. A temperature of 0 takes the likeliest."""


class PolicyEngine:
    """Samples from a ``Policy`` with a KV cache."""

    def __init__(self, policy: Policy, num_slots: int) -> None:
        self.policy = policy.eval()
        self.num_slots = num_slots

    def tensors(self) -> dict[str, torch.Tensor]:
        return {name: each.data for name, each in self.policy.named_parameters()}

    def loaded(self) -> None:
        """They are the policy's own."""

    def generate(
        self, requests: Sequence[SampleRequest], *, temperature: float, max_tokens: int
    ) -> list[SampledTokens]:
        made: list[SampledTokens] = sample(
            self.policy, requests,
            temperature=temperature, max_tokens=max_tokens, num_slots=self.num_slots,
        )  # fmt: skip
        return made


@dataclass(frozen=True)
class Weights:
    """The name under which the trainers publish, and the version that is wanted at least."""

    name: str
    version: int


@dataclass(frozen=True)
class GenerateRequest:
    """Problems by number; ``seed`` decides their samples, whichever generator makes them."""

    problems: tuple[int, ...]
    num_samples: int
    temperature: float
    max_tokens: int
    seed: int
    weights: Weights


@dataclass(frozen=True)
class Generated:
    """The groups of a request, and how long each part of it took."""

    groups: list[SampleGroup]
    fetch_seconds: float
    seconds: float
    ended_at: float  # on the clock of the machine


@dataclass(frozen=True)
class GeneratorSettings:
    """What a generator is made with."""

    task: str | None
    problems: str
    num_held_out: int
    data_seed: int
    num_threads: int
    config: Any  # of the recipe, for the task's `build_engine`


class Generator(Actor):
    """One member of the generators."""

    def __init__(self, settings: GeneratorSettings, engine: SamplingEngine | None) -> None:
        torch.set_num_threads(settings.num_threads)
        self.settings = settings
        load = part(settings.task, load_problems)
        self.problems = load(settings.problems, settings.num_held_out, settings.data_seed)
        own = own_part(settings.task, "build_engine")
        found = own(settings.config) if own is not None else engine
        assert found is not None, "the recipe gives an engine where the task has none"
        self.engine: SamplingEngine = found
        self.shared: SharedStateDict | None = None
        self.fetched = 0
        self.num_steps = torch.zeros(1, dtype=torch.long)  # that the policy has made

    def __reload__(self, change: ReloadReport) -> None:
        """Have the author of an edit know where a part of the task is gone."""
        tell_of_lost_parts(self.settings.task, change)

    @endpoint
    def generate(self, request: GenerateRequest) -> Generated:
        """A group of samples for each problem, with the weights that are asked for."""
        started = time.perf_counter()
        self.fetch(request.weights)
        fetched = time.perf_counter()
        task, generation = self.settings.task, context().generation
        prompts = [
            (BEGIN, *part(task, encode)(part(task, prompt)(self.problems.of(number))))
            for number in request.problems
        ]
        requests = [
            SampleRequest(tokens, _seed(request.seed, problem, number))
            for problem, tokens in zip(request.problems, prompts, strict=True)
            for number in range(request.num_samples)
        ]
        completions = iter(
            self.engine.generate(
                requests, temperature=request.temperature, max_tokens=request.max_tokens
            )
        )
        groups = [
            SampleGroup(
                problem=problem,
                prompt=tokens,
                samples=tuple(
                    Sample(one.tokens, one.log_probs, part(task, decode)(one.tokens))
                    for one in (next(completions) for _ in range(request.num_samples))
                ),
                version=int(self.num_steps),
                generation=generation,
                temperature=request.temperature,
            )
            for problem, tokens in zip(request.problems, prompts, strict=True)
        ]
        ended = time.perf_counter()
        return Generated(groups, fetched - started, ended - started, time.time())

    def fetch(self, weights: Weights) -> None:
        """Have at least this version of the weights."""
        if self.shared is None or self.shared.name != weights.name:
            self.shared, self.fetched = SharedStateDict(weights.name), 0
        if self.fetched < weights.version:
            into = {**self.engine.tensors(), "num_steps": self.num_steps}
            self.fetched = self.shared.fetch(into, version=weights.version).get()
            self.engine.loaded()


def _seed(seed: int, problem: int, number: int) -> int:
    """A seed that differs for each sample, and is the same whoever draws it."""
    return (seed * 1_000_003 + problem * 8191 + number * 131 + 7) * 2_654_435_761 % _SEEDS
