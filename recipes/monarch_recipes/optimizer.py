"""The changes that recipes make to an optimizer in each step."""

from __future__ import annotations

import math

import torch
from torch import nn


def set_rates(
    optimizer: torch.optim.Optimizer, learning_rate: float, weight_decay: float | None = None
) -> None:
    """Set the learning rate and the weight decay of all parameter groups, for the next step.

    A parameter group's `lr_scale` and `weight_decay_scale` multiply them. `weight_decay=None`
    leaves the weight decay as it is; so does an optimizer without one. The rates may be numpy
    numbers.
    """
    for group in optimizer.param_groups:
        group["lr"] = float(learning_rate * group.get("lr_scale", 1.0))
        if weight_decay is not None and "weight_decay" in group:
            group["weight_decay"] = float(weight_decay * group.get("weight_decay_scale", 1.0))


def scale_gradient(model: nn.Module, factor: float) -> None:
    """Multiply all gradients of the model in place. A factor of 1 leaves them untouched."""
    if factor != 1.0:
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(factor)


def clip_gradient(model: nn.Module, limit: float | None) -> float:
    """Scale the gradient of the whole model down to the norm `limit`; return its norm before.

    `limit=None` changes nothing.
    """
    largest = math.inf if limit is None else limit
    return float(nn.utils.clip_grad_norm_(model.parameters(), largest))
