"""Turns the task's demonstrations into token sequences for the supervised phase."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from monarch_recipes.rollouts.policy import BEGIN, END, encode
from monarch_recipes.rollouts.problems import Problems, demonstration, prompt
from monarch_recipes.task import part


def demonstrations(
    task: str | None, problems: Problems, numbers: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Return the tokens (N, T) of demonstrations of these problems, and a mask (N, T - 1).

    Sequences are padded on the right. The mask marks the tokens to imitate, not the prompt, each at
    the position before it.
    """
    rows = []
    for number in numbers:
        problem = problems.of(number)
        text = part(task, demonstration)(problem, random.Random(number))
        start = [BEGIN, *part(task, encode)(part(task, prompt)(problem))]
        rows.append((len(start), [*start, *part(task, encode)(text), END]))
    longest = max(len(row) for _, row in rows)
    tokens = torch.tensor([row + [0] * (longest - len(row)) for _, row in rows])
    starts = torch.tensor([start for start, _ in rows])
    ends = torch.tensor([len(row) for _, row in rows])
    positions = torch.arange(1, longest)
    return tokens, (positions >= starts[:, None]) & (positions < ends[:, None])
