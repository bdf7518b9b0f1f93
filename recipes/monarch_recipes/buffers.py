"""Averages a model's buffers over ranks. No gradient trains these, such as BatchNorm's statistics.

After each step, floating-point buffers become their mean over all ranks and over all replica groups
that took part. Other buffers, such as counters, are not averaged.
"""

from __future__ import annotations

import torch
from torch import nn


class Buffers:
    """The buffers of a model that are saved in its checkpoints."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        saved = model.state_dict()
        self._names = [name for name, _ in model.named_buffers() if name in saved]

    def now(self) -> dict[str, torch.Tensor]:
        """Return the model's present buffers by name. Code may have replaced the tensors."""
        if not self._names:
            return {}
        buffers = dict(self._model.named_buffers())
        return {name: buffers[name] for name in self._names}

    def copies(self) -> dict[str, torch.Tensor]:
        """Return copies of all buffers by name, for `restore`."""
        return {name: tensor.clone() for name, tensor in self.now().items()}

    def restore(self, copies: dict[str, torch.Tensor]) -> None:
        """Copy the values of ``copies`` back into the buffers."""
        for name, tensor in self.now().items():
            tensor.copy_(copies[name])

    def packed(self) -> torch.Tensor:
        """Return the values of all floating-point buffers in one tensor, shape (n,), float64.

        In float64 the mean of equal float32 values is exact.
        """
        rows = [tensor.detach().double().reshape(-1) for tensor in self._averaged()]
        return torch.cat(rows) if rows else torch.zeros(0, dtype=torch.float64)

    def unpack(self, row: torch.Tensor) -> None:
        """Copy the values of ``row``, which has the layout of `packed`, into the buffers."""
        averaged = self._averaged()
        parts = row.split([tensor.numel() for tensor in averaged]) if averaged else ()
        for tensor, part in zip(averaged, parts, strict=True):
            tensor.copy_(part.view_as(tensor))

    def _averaged(self) -> list[torch.Tensor]:
        return [tensor for tensor in self.now().values() if tensor.is_floating_point()]
