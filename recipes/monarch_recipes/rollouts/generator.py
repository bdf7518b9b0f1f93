"""A generator: an actor that completes problems with the newest weights of the policy."""

from __future__ import annotations

import itertools
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
    """The interface of an engine that samples: the recipe's own, or vLLM (`vllm_engine.py`).

    A task's ``build_engine`` returns one.
    """

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors into which new weights are fetched, under the trainer's names."""

    def loaded(self) -> None:
        """The recipe calls this after it has fetched new weights into the tensors."""

    def generate(
        self, requests: Sequence[SampleRequest], *, temperature: float, max_tokens: int
    ) -> list[SampledTokens]:
        """Return a completion of each request, in order.

        A temperature of 0 takes the likeliest tokens.
        """


class PolicyEngine:
    """Samples from a ``Policy`` with a KV cache."""

    def __init__(self, policy: Policy, num_slots: int) -> None:
        self.policy = policy.eval()
        self.num_slots = num_slots

    def tensors(self) -> dict[str, torch.Tensor]:
        return {name: parameter.data for name, parameter in self.policy.named_parameters()}

    def loaded(self) -> None:
        """Do nothing: the tensors are the policy's own."""

    def generate(
        self, requests: Sequence[SampleRequest], *, temperature: float, max_tokens: int
    ) -> list[SampledTokens]:
        completions: list[SampledTokens] = sample(
            self.policy,
            requests,
            temperature=temperature,
            max_tokens=max_tokens,
            num_slots=self.num_slots,
        )
        return completions


@dataclass(frozen=True)
class Weights:
    """The weights to use: the name under which trainers publish, and the lowest acceptable
    version.
    """

    name: str
    version: int


@dataclass(frozen=True)
class GenerateRequest:
    """Problems to complete, by number. Samples depend on ``seed``, not on the generator."""

    problems: tuple[int, ...]
    num_samples: int
    temperature: float
    max_tokens: int
    seed: int
    weights: Weights


@dataclass(frozen=True)
class Generated:
    """The groups of a request, and the time that it took."""

    groups: list[SampleGroup]
    fetch_seconds: float
    seconds: float


class Generator(Actor):
    """One of the generators. ``engine`` samples, unless the task has its own ``build_engine``.

    ``config`` is that of the recipe.
    """

    def __init__(self, config: Any, engine: SamplingEngine | None) -> None:
        torch.set_num_threads(config.num_threads)
        self.task: str | None = config.task
        load = part(self.task, load_problems)
        self.problems = load(config.problems, config.num_held_out, config.data_seed)
        build_engine = own_part(self.task, "build_engine")
        if build_engine is not None:
            engine = build_engine(config)
        assert engine is not None, "the recipe gives an engine where the task has none"
        self.engine = engine
        self.shared: SharedStateDict | None = None  # until the first request
        self.fetched = 0  # the version of the weights that the engine has
        self.num_steps = torch.zeros(1, dtype=torch.long)  # that the policy has made

    def __reload__(self, change: ReloadReport) -> None:
        """Warn the author of an edit that removes a function of the task."""
        tell_of_lost_parts(self.task, change)

    @endpoint
    def generate(self, request: GenerateRequest) -> Generated:
        """Return a group of samples for each problem, made with the requested weights."""
        started = time.perf_counter()
        self.fetch(request.weights)
        fetched = time.perf_counter()
        task, generation = self.task, context().generation
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
                    Sample(drawn.tokens, drawn.log_probs, part(task, decode)(drawn.tokens))
                    for drawn in itertools.islice(completions, request.num_samples)
                ),
                version=int(self.num_steps),
                generation=generation,
                temperature=request.temperature,
            )
            for problem, tokens in zip(request.problems, prompts, strict=True)
        ]
        return Generated(groups, fetched - started, time.perf_counter() - started)

    def fetch(self, weights: Weights) -> None:
        """Fetch the newest weights, unless this version or a newer one was fetched already."""
        if self.shared is None or self.shared.name != weights.name:
            self.shared, self.fetched = SharedStateDict(weights.name), 0
        if self.fetched < weights.version:
            into = {**self.engine.tensors(), "num_steps": self.num_steps}
            self.fetched = self.shared.fetch(into, version=weights.version).get()
            self.engine.loaded()


def _seed(seed: int, problem: int, number: int) -> int:
    """Return a seed that differs for each sample and does not depend on the generator."""
    return (seed * 1_000_003 + problem * 8191 + number * 131 + 7) * 2_654_435_761 % _SEEDS
