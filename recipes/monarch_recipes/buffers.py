"""The buffers of a model, which no gradient trains: BatchNorm's statistics, for one.

The rule: after each step those of floating point are the mean over all ranks, and over all replica
groups that took part. Others, as counters, stay as they are, which is the same everywhere.
"""

from __future__ import annotations

import torch
from torch import nn


class Buffers:
    """The buffers that a checkpoint of the model has, if any."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        saved = model.state_dict()
        self._names = [name for name, _ in model.named_buffers() if name in saved]

    def now(self) -> dict[str, torch.Tensor]:
        """The present buffers by name; code may have put others in their places."""
        if not self._names:
            return {}
        found = dict(self._model.named_buffers())
        return {name: found[name] for name in self._names}

    def copies(self) -> dict[str, torch.Tensor]:
        """Copies of all buffers, for `restore`."""
        return {name: tensor.clone() for name, tensor in self.now().items()}

    def restore(self, copies: dict[str, torch.Tensor]) -> None:
        """Put the copied values back in place."""
        for name, tensor in self.now().items():
            tensor.copy_(copies[name])

    def packed(self) -> torch.Tensor:
        """Returns the values to average as one row, shape (n,), float64: the mean of equal numbers
        is exact."""
        rows = [tensor.detach().double().reshape(-1) for tensor in self._averaged()]
        return torch.cat(rows) if rows else torch.zeros(0, dtype=torch.float64)

    def unpack(self, row: torch.Tensor) -> None:
        """Take over what `packed` has become."""
        averaged = self._averaged()
        parts = row.split([tensor.numel() for tensor in averaged]) if averaged else ()
        for tensor, part in zip(averaged, parts, strict=True):
            tensor.copy_(part.view_as(tensor))

    def _averaged(self) -> list[torch.Tensor]:
        return [tensor for tensor in self.now().values() if tensor.is_floating_point()]
