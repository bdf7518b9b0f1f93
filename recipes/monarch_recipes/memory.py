"""Computes the memory that a training step needs on a rank, without allocating any of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only
from torch.utils.data import default_collate

from monarch_recipes.samples import Collate
from monarch_recipes.tally import Weighted, sum_and_weight

_MIB = 2**20


@dataclass(frozen=True)
class StepMemory:
    """The memory of a step in bytes, by use. The moments are Adam's: two for each parameter."""

    num_parameters: int
    weights: int
    gradients: int
    moments: int
    activations: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.moments + self.activations

    def __str__(self) -> str:
        parts = ", ".join(
            f"{name} {getattr(self, name) / _MIB:,.1f}"
            for name in ("weights", "gradients", "moments", "activations")
        )
        return f"{self.total / _MIB:,.1f} MiB ({parts}), besides Python and torch"


def memory_of_step(
    build: Callable[[], nn.Module],
    loss: Callable[[torch.Tensor, torch.Tensor], Weighted],
    sample: Any,
    num_samples: int,
    collate: Collate | None = None,
) -> StepMemory:
    """Return the memory that one micro-batch of `num_samples` samples like ``sample`` needs.

    ``sample`` is a pair (input, label), of which only the shapes matter. Activations are the
    tensors that the forward pass keeps for the backward pass; they are counted on torch's meta
    device.
    """
    batch = (collate or default_collate)([sample] * num_samples)
    inputs, labels = tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), batch)
    num_bytes: dict[int, int] = {}  # of the activations' storages, each once
    with torch.device("meta"):
        model = build().to("meta")
    of_model = {tensor.untyped_storage()._cdata for tensor in model.state_dict().values()}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in of_model:
            num_bytes[storage._cdata] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        value, _ = sum_and_weight(loss(model(inputs), labels), num_samples)
    trained = [p for p in model.parameters() if p.requires_grad]
    bytes_trained = sum(p.numel() * p.element_size() for p in trained)
    weights = sum(t.numel() * t.element_size() for t in model.state_dict().values())
    del value  # It holds the graph, and with it the counted tensors, until here.
    return StepMemory(
        num_parameters=sum(p.numel() for p in model.parameters()),
        weights=weights,
        gradients=bytes_trained,
        moments=2 * bytes_trained,
        activations=sum(num_bytes.values()),
    )
