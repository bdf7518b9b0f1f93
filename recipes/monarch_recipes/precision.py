"""In how many bits a rank computes, and what half precision needs besides."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from monarch_recipes.collective import check_gradient
from monarch_recipes.optimizer import clip_gradient

__all__ = ["Precision"]


class Precision:
    """`name` is "float32", "bfloat16" or "float16"; the latter two by autocast.

    float16 has too little range for small gradients, which are scaled therefore; a step whose
    gradient overflows is left out. bfloat16 needs none of that.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        self._device = device.type
        self._is_half = name != "float32"
        self._dtype = torch.float16 if name == "float16" else torch.bfloat16
        self._scaler = torch.amp.GradScaler(
            device.type, enabled=name == "float16", init_scale=2.0**12
        )

    def autocast(self) -> torch.autocast:
        """A block that computes in it. The loss is better computed outside."""
        return torch.autocast(self._device, self._dtype, enabled=self._is_half)

    def backward(self, loss: torch.Tensor) -> None:
        self._scaler.scale(loss).backward()

    def step(
        self, optimizer: torch.optim.Optimizer, model: nn.Module, clip_norm: float | None, step: int
    ) -> float:
        """Clip the gradient, and go down along it. Its norm before; NonFiniteLoss if that is none,
        with nothing learned."""
        self._scaler.unscale_(optimizer)
        norm = clip_gradient(model, clip_norm)
        if not self._scaler.is_enabled():  # It leaves such a step out by itself.
            check_gradient(norm, step)
        self._scaler.step(optimizer)
        self._scaler.update()
        return norm

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self._scaler.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Of another precision too, as far as that has something to go on with."""
        if self._scaler.is_enabled() and state:
            self._scaler.load_state_dict(state)
