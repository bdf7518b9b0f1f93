"""Evaluates a model on the held-out samples; each rank evaluates its share of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import torch
from torch import nn

from monarch_recipes.samples import num_samples_in
from monarch_recipes.tally import Tally, Weighted

Share: TypeAlias = dict[str, tuple[float, float]]
"""The sum over a rank's samples and its weight, by name of the measure."""


def evaluate_share(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    loss: Callable[[Any, Any], Weighted],
    metrics: Callable[[Any, Any], Mapping[str, Weighted]],
    own: Callable[[nn.Module, Iterable[Any]], Mapping[str, Weighted]] | None = None,
    autocast: Callable[[], Any] = contextlib.nullcontext,
) -> Share:
    """Return the loss and the metrics over these batches, as sum and weight by name.

    If the task has its own ``own`` function, its values are returned instead. A plain number from
    it counts as a mean over the samples that it read.
    """
    tally, num_samples = Tally(), 0

    def counted() -> Iterator[Any]:
        nonlocal num_samples
        for batch in batches:
            try:
                num_samples += num_samples_in(batch[1])
            except StopIteration:  # Its labels are no tensors.
                num_samples += 1
            yield batch

    model.eval()
    with torch.no_grad(), autocast():
        if own is not None:
            for name, value in own(model, counted()).items():
                tally.add(name, value, num_samples or 1)
        else:
            for inputs, labels in batches:
                outputs = model(inputs)
                size = num_samples_in(labels)
                tally.add("loss", loss(outputs, labels), size)
                tally.measure(metrics, outputs, labels, size)
    return tally.sums()


def means_of(shares: Iterable[Share]) -> dict[str, float]:
    """Return the weighted mean of each metric over the shares of all ranks.

    Leaves out a metric that no rank has measured.
    """
    totals: dict[str, list[float]] = {}
    for share in shares:
        for name, (value, weight) in share.items():
            total = totals.setdefault(name, [0.0, 0.0])
            total[0] += value
            total[1] += weight
    return {name: total / weight for name, (total, weight) in totals.items() if weight}


def held_out_names(values: Mapping[str, float]) -> dict[str, float]:
    """Return the values with "held_out_" before each name, as a run's records have them."""
    return {f"held_out_{name}": value for name, value in values.items()}


def told(values: Mapping[str, float]) -> str:
    """Return the values as a line of text: ``held-out loss 0.0712, held-out accuracy 98.1%``."""
    parts = []
    for name, value in values.items():
        number = f"{value:.1%}" if name.endswith("accuracy") else f"{value:.4g}"
        parts.append(f"{name.replace('held_out', 'held-out').replace('_', ' ')} {number}")
    return ", ".join(parts) or "nothing was measured"
