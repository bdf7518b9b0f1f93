"""The changes that recipes make to an optimizer in each step."""

from __future__ import annotations

import math

import torch
from torch import nn


def set_rates(
    optimizer: torch.optim.Optimizer, learning_rate: float, weight_decay: float | None = None
) -> None:
    """Set the rates from the next step on; without a weight decay, the old one stays.

    A parameter group's `lr_scale` and `weight_decay_scale` multiply them; an optimizer without
    weight decay gets none. A schedule may return a numpy number.
    """
    for group in optimizer.param_groups:
        group["lr"] = float(learning_rate * group.get("lr_scale", 1.0))
        if weight_decay is not None and "weight_decay" in group:
            group["weight_decay"] = float(weight_decay * group.get("weight_decay_scale", 1.0))


def scale_gradient(model: nn.Module, factor: float) -> None:
    """Multiply all gradients in place; a factor of 1 costs nothing and changes no bit."""
    if factor != 1.0:
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(factor)


def clip_gradient(model: nn.Module, limit: float | None) -> float:
    """Scale the whole gradient down to a norm of `limit`, if there is one. The norm before."""
    largest = math.inf if limit is None else limit
    return float(nn.utils.clip_grad_norm_(model.parameters(), largest))
