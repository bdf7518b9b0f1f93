"""The precision in which a rank computes, and the scaling that half precision needs."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from monarch_recipes.collective import check_gradient
from monarch_recipes.optimizer import clip_gradient, scale_gradient

_HALVES = (torch.float16, torch.bfloat16)


class Precision:
    """Computes in the precision `name`: "float32", or "bfloat16" or "float16" by autocast.

    Small gradients vanish in float16, so the loss is scaled up before the backward pass; a step
    whose gradient overflows is skipped. bfloat16 needs neither.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        self._device = device.type
        self._is_half = name != "float32"
        self._dtype = torch.float16 if name == "float16" else torch.bfloat16
        self._scaler = torch.amp.GradScaler(
            device.type, enabled=name == "float16", init_scale=2.0**12
        )

    def autocast(self) -> torch.autocast:
        """Return a context manager that computes in this precision. Compute the loss outside it."""
        return torch.autocast(self._device, self._dtype, enabled=self._is_half)

    @staticmethod
    def full(outputs: Any) -> Any:
        """Return the outputs with all half-precision tensors as float32, to compute the loss."""
        if isinstance(outputs, torch.Tensor):  # tree_map_only takes as long as a small layer.
            return outputs.float() if outputs.dtype in _HALVES else outputs
        return tree_map_only(torch.Tensor, Precision.full, outputs)

    def backward(self, loss: torch.Tensor) -> None:
        self._scaler.scale(loss).backward()

    def step(
        self,
        optimizer: torch.optim.Optimizer,
        model: nn.Module,
        *,
        factor: float,
        clip_norm: float | None,
        step: int,
    ) -> float:
        """Scale the gradient by `factor`, clip it, step the optimizer.

        Return the norm before clipping. Raises NonFiniteLoss, without a step, if the gradient is
        not finite. With float16 that step is skipped without an error.
        """
        self._scaler.unscale_(optimizer)
        scale_gradient(model, factor)
        norm = clip_gradient(model, clip_norm)
        if not self._scaler.is_enabled():  # The scaler itself skips such a step.
            check_gradient(norm, step)
        self._scaler.step(optimizer)
        self._scaler.update()
        return norm

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self._scaler.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a saved loss scale. Does nothing if this precision or the saved one has none."""
        if self._scaler.is_enabled() and state:
            self._scaler.load_state_dict(state)
