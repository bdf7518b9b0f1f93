"""A moving average of the weights (EMA), which is saved with the run, and evaluated.

    cd examples/tasks && monarch run ddp task=averaged

Model, data and loss are the recipe's own.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from monarch_recipes.ddp import DDPConfig


def build_extra_state(config: DDPConfig, model: nn.Module) -> dict[str, Any]:
    """Return the objects to save with the model, by name.

    Checkpoints contain their ``state_dict``; ``load_state_dict`` restores them.
    """
    return {"ema": AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))}


def after_step(model: nn.Module, extra: dict[str, Any]) -> None:
    """Update the average. Each rank calls this after the optimizer's step."""
    extra["ema"].update_parameters(model)


def model_to_evaluate(model: nn.Module, extra: dict[str, Any]) -> nn.Module:
    """Return the model that is evaluated on the held-out samples."""
    ema: nn.Module = extra["ema"]
    return ema
