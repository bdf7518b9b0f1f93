"""Demonstrations of the task as sequences, for the supervised phase."""

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
    """Sequences to imitate, of the problems of these numbers, padded on the right; and which of
    their tokens count."""
    rows = []
    for number in numbers:
        problem = problems.of(number)
        shown = part(task, demonstration)(problem, random.Random(number))
        asked = [BEGIN, *part(task, encode)(part(task, prompt)(problem))]
        rows.append((len(asked), [*asked, *part(task, encode)(shown), END]))
    longest = max(len(row) for _, row in rows)
    tokens = torch.tensor([row + [0] * (longest - len(row)) for _, row in rows])
    starts = torch.tensor([start for start, _ in rows])
    ends = torch.tensor([len(row) for _, row in rows])
    places = torch.arange(1, longest)
    return tokens, (places >= starts[:, None]) & (places < ends[:, None])
