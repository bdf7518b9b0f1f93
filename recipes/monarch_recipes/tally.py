"""Means that are right however a batch is shared: sums and weights, added up over micro-batches,
ranks and replica groups, and divided once at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any, TypeAlias

import torch

MASKED = -100  # the label that torch's cross entropy leaves out

_NUMBERS = (torch.Tensor, float, Real)

Number: TypeAlias = torch.Tensor | float
Weighted: TypeAlias = Number | tuple[Number, Number]
"""A mean over samples, or a sum and its weight, as of the tokens that count."""


def sum_and_weight(value: Weighted, num_samples: int) -> tuple[Any, Any]:
    """A mean is that of `num_samples`. Raises TypeError where there is no number, and ValueError
    where there is more than one."""
    parts = value if isinstance(value, tuple) else (value,)
    if len(parts) > 2 or not all(isinstance(one, _NUMBERS) for one in parts):
        is_missing = "; is a `return` missing?" if value is None else ""
        raise TypeError(
            "expected a mean over the samples, or (sum, weight); this is "
            f"{'None' if value is None else f'a {type(value).__name__}'}{is_missing}"
        )
    total, weight = parts if len(parts) == 2 else (parts[0] * num_samples, num_samples)
    for name, one in ("a mean or a sum", total), ("a weight", weight):
        if isinstance(one, torch.Tensor) and one.numel() != 1:
            raise ValueError(
                f"expected {name}, which is one number; this is a tensor of shape "
                f"{tuple(one.shape)}. Return a mean over the samples, or (sum, weight)"
            )
    return total, weight


class Tally:
    """The measures by name, in the order in which the names first came."""

    def __init__(self) -> None:
        self._totals: dict[str, list[Number]] = {}

    def add(self, name: str, value: Weighted, num_samples: int) -> None:
        """Add a value with its weight. Nothing is waited for: tensors stay where they are until
        `packed`."""
        total = self._totals.setdefault(name, [0.0, 0.0])
        for place, one in enumerate(sum_and_weight(value, num_samples)):
            total[place] += one.detach().double() if isinstance(one, torch.Tensor) else one

    def measure(
        self,
        metrics: Callable[[Any, Any], Mapping[str, Weighted]],
        outputs: Any,
        labels: Any,
        num_samples: int,
    ) -> None:
        """Add what ``metrics`` makes of a batch."""
        with torch.no_grad():
            for name, value in metrics(outputs, labels).items():
                self.add(name, value, num_samples)

    def sums(self) -> dict[str, tuple[float, float]]:
        """Sum and weight by name."""
        return {name: (float(one[0]), float(one[1])) for name, one in self._totals.items()}

    def packed(self, device: torch.device, *others: Number) -> torch.Tensor:
        """Sum and weight of each name, then `others`, as float64: what must be added up over all
        ranks that share a batch, each of which has measured the same names."""
        numbers = [one for total in self._totals.values() for one in total]
        return torch.stack(
            [
                torch.as_tensor(one, dtype=torch.float64, device=device).reshape(())
                for one in (*numbers, *others)
            ]
        )

    def means(self, packed: Sequence[float]) -> dict[str, float]:
        """Out of the sums over all; nan where nothing has a weight."""
        pairs = zip(packed[0 : 2 * len(self._totals) : 2], packed[1::2], strict=False)
        return {
            name: total / weight if weight else float("nan")
            for name, (total, weight) in zip(self._totals, pairs, strict=True)
        }


def accuracy(outputs: Any, labels: Any) -> dict[str, Weighted]:
    """The share of right answers, where there are classes: logits (N, C) and integer labels (N,).
    Masked labels do not count. Nothing for other tasks."""
    if not (isinstance(outputs, torch.Tensor) and isinstance(labels, torch.Tensor)):
        return {}
    if labels.is_floating_point() or outputs.ndim != 2 or labels.shape != outputs.shape[:1]:
        return {}
    counts = labels != MASKED
    return {"accuracy": ((outputs.argmax(1) == labels)[counts].sum(), counts.sum())}
