"""Weighted means over micro-batches, ranks and replica groups.

Sums and weights are added up first and divided once at the end, so that the mean does not depend on
how a batch is split.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any, TypeAlias

import torch

MASKED = -100  # the label that torch's cross entropy leaves out

_NUMBERS = (torch.Tensor, float, Real)

Number: TypeAlias = torch.Tensor | float
Weighted: TypeAlias = Number | tuple[Number, Number]
"""A mean over samples; or a sum and its weight, such as the number of tokens that count."""


def sum_and_weight(value: Weighted, num_samples: int) -> tuple[Any, Any]:
    """Return ``value`` as (sum, weight). A plain number is a mean over `num_samples` samples.

    Raises TypeError if ``value`` is not a number or a pair of numbers, and ValueError for a tensor
    with more than one element.
    """
    parts = value if isinstance(value, tuple) else (value,)
    if len(parts) > 2 or not all(isinstance(number, _NUMBERS) for number in parts):
        is_missing = "; is a `return` missing?" if value is None else ""
        raise TypeError(
            "expected a mean over the samples, or (sum, weight); this is "
            f"{'None' if value is None else f'a {type(value).__name__}'}{is_missing}"
        )
    total, weight = parts if len(parts) == 2 else (parts[0] * num_samples, num_samples)
    for name, number in ("a mean or a sum", total), ("a weight", weight):
        if isinstance(number, torch.Tensor) and number.numel() != 1:
            raise ValueError(
                f"expected {name}, which is one number; this is a tensor of shape "
                f"{tuple(number.shape)}. Return a mean over the samples, or (sum, weight)"
            )
    return total, weight


class Tally:
    """Adds up measures by name. Names keep the order in which they were first added."""

    def __init__(self) -> None:
        self._totals: dict[str, list[Number]] = {}

    def add(self, name: str, value: Weighted, num_samples: int) -> None:
        """Add a value with its weight to the measure ``name``.

        This does not wait for a GPU: tensors are read only in `packed` or `sums`.
        """
        total = self._totals.setdefault(name, [0.0, 0.0])
        for index, number in enumerate(sum_and_weight(value, num_samples)):
            is_tensor = isinstance(number, torch.Tensor)
            total[index] += number.detach().double() if is_tensor else number

    def measure(
        self,
        metrics: Callable[[Any, Any], Mapping[str, Weighted]],
        outputs: Any,
        labels: Any,
        num_samples: int,
    ) -> None:
        """Call ``metrics`` on a batch's outputs and labels, and add the values that it returns."""
        with torch.no_grad():
            for name, value in metrics(outputs, labels).items():
                self.add(name, value, num_samples)

    def sums(self) -> dict[str, tuple[float, float]]:
        """Return the sum and the weight of each name."""
        return {
            name: (float(total), float(weight)) for name, (total, weight) in self._totals.items()
        }

    def packed(self, device: torch.device, *others: Number) -> torch.Tensor:
        """Return the sum and weight of each name, then `others`, as one float64 tensor.

        To get the totals of a batch, add up the tensors of all ranks; all must have the same names.
        """
        numbers = [*itertools.chain(*self._totals.values()), *others]
        return torch.stack(
            [
                torch.as_tensor(number, dtype=torch.float64, device=device).reshape(())
                for number in numbers
            ]
        )

    def means(self, packed: Sequence[float]) -> dict[str, float]:
        """Return the mean of each name from the sum of all ranks' `packed`.

        Nan for a weight of 0.
        """
        pairs = zip(packed[0 : 2 * len(self._totals) : 2], packed[1::2], strict=False)
        return {
            name: total / weight if weight else float("nan")
            for name, (total, weight) in zip(self._totals, pairs, strict=True)
        }


def accuracy(outputs: Any, labels: Any) -> dict[str, Weighted]:
    """Return the share of right answers for logits (N, C) and integer labels (N,).

    Labels of `MASKED` do not count. Returns {} for other outputs or labels.
    """
    if not (isinstance(outputs, torch.Tensor) and isinstance(labels, torch.Tensor)):
        return {}
    if labels.is_floating_point() or outputs.ndim != 2 or labels.shape != outputs.shape[:1]:
        return {}
    counts = labels != MASKED
    return {"accuracy": ((outputs.argmax(1) == labels)[counts].sum(), counts.sum())}
