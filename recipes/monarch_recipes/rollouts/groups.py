"""Samples in groups of the same problem, and their tensors for a training step."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from monarch_recipes.rollouts.grpo import advantages_of


@dataclass(frozen=True)
class Sample:
    """A completion: its tokens, the log-probability of each when it was sampled, text and
    reward.
    """

    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]
    text: str = ""
    reward: float = float("nan")  # until it is judged


@dataclass(frozen=True)
class SampleGroup:
    """Samples of one problem, made by one version of the policy and one generation of the code.

    ``version`` is the number of steps that the policy had learned from. ``reward_generation`` and
    ``reward_code`` identify the code that judged the samples: the workspace's generation, and the
    digest of the reward function with all that it calls. They are -1 and "" until the samples are
    judged.
    """

    problem: int
    prompt: tuple[int, ...]
    samples: tuple[Sample, ...]
    version: int
    generation: int
    temperature: float
    reward_generation: int = -1
    reward_code: str = ""

    @property
    def rewards(self) -> list[float]:
        return [sample.reward for sample in self.samples]

    @property
    def is_informative(self) -> bool:
        """Whether the rewards differ. If not, nothing can be learned from the group."""
        return advantages_of(self.rewards) is not None

    @property
    def num_tokens(self) -> int:
        return sum(len(sample.tokens) for sample in self.samples)

    def judged(self, rewards: Sequence[float], generation: int, code: str) -> SampleGroup:
        """Return the same group with rewards, and the generation and digest of the code that judged
        it.
        """
        pairs = zip(self.samples, rewards, strict=True)
        samples = tuple(dataclasses.replace(sample, reward=reward) for sample, reward in pairs)
        return dataclasses.replace(
            self, samples=samples, reward_generation=generation, reward_code=code
        )

    def plain(self) -> dict[str, Any]:
        """Return the group as numbers, texts, lists and dicts, for a file."""
        return {
            **{field.name: getattr(self, field.name) for field in dataclasses.fields(self)},
            "prompt": list(self.prompt),
            "samples": [
                [list(sample.tokens), list(sample.log_probs), sample.text, sample.reward]
                for sample in self.samples
            ],
        }

    @classmethod
    def of(cls, plain: dict[str, Any]) -> SampleGroup:
        """Return the group that ``plain`` describes; the method `plain` has made it."""
        samples = tuple(
            Sample(tuple(tokens), tuple(log_probs), text, reward)
            for tokens, log_probs, text, reward in plain["samples"]
        )
        return cls(**{**plain, "prompt": tuple(plain["prompt"]), "samples": samples})


@dataclass(frozen=True)
class Rows:
    """Samples as tensors (N, T), padded on the right. All but ``tokens`` have T - 1 positions.

    ``mask`` marks the tokens that the policy chose, each at the position before it. ``behaviour``
    has their log-probabilities under the policy that sampled them.
    """

    tokens: Tensor
    mask: Tensor
    behaviour: Tensor
    advantages: Tensor  # (N)
    temperatures: Tensor  # (N)

    def micro_batches(self, size: int) -> list[Rows]:
        """Split the rows into parts of at most ``size`` sequences."""
        parts = [getattr(self, field.name).split(size) for field in dataclasses.fields(self)]
        return [Rows(*part) for part in zip(*parts, strict=True)]


def rows_of(groups: Sequence[SampleGroup]) -> Rows:
    """Return the samples of all groups as tensors.

    A group with equal rewards gets advantages of 0.
    """
    rows: list[tuple[tuple[int, ...], Sample, float, float]] = []
    for group in groups:
        advantages = advantages_of(group.rewards) or [0.0] * len(group.samples)
        for sample, advantage in zip(group.samples, advantages, strict=True):
            rows.append((group.prompt, sample, advantage, group.temperature))
    longest = max(len(prompt) + len(sample.tokens) for prompt, sample, _, _ in rows)
    tokens = torch.zeros(len(rows), longest, dtype=torch.long)
    mask = torch.zeros(len(rows), longest - 1, dtype=torch.bool)
    behaviour = torch.zeros(len(rows), longest - 1)
    for number, (prompt, sample, _, _) in enumerate(rows):
        start, end = len(prompt), len(prompt) + len(sample.tokens)
        tokens[number, :end] = torch.tensor(prompt + sample.tokens)
        mask[number, start - 1 : end - 1] = True
        behaviour[number, start - 1 : end - 1] = torch.tensor(sample.log_probs)
    advantages = torch.tensor([row[2] for row in rows])
    temperatures = torch.tensor([row[3] for row in rows])
    return Rows(tokens, mask, behaviour, advantages, temperatures)
