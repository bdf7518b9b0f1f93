"""A rank's state as a new process gets it: from the host's memory, with all tensors on the CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map_only

import tests.recipes.titan_support  # noqa: F401
from monarch_recipes.titan import shards


def optimizer_on(device: str, step_on: str) -> tuple[torch.nn.Parameter, torch.optim.Optimizer]:
    """An optimizer that has made a step, as far as its state shows."""
    parameter = torch.nn.Parameter(torch.zeros(3, device=device))
    optimizer = torch.optim.AdamW([parameter])
    optimizer.state[parameter] = {
        "step": torch.ones((), device=step_on),
        "exp_avg": torch.ones(3, device=device),
        "name": "a",
    }
    return parameter, optimizer


def in_host_memory(state: Any) -> Any:
    return tree_map_only(torch.Tensor, lambda one: torch.ones(one.shape), state)


def test_counters_of_steps_come_back_to_the_device_on_which_they_were() -> None:
    """Fused optimizers have them on the GPU; `meta` stands for it."""
    for step_on in ("meta", "cpu"):
        _, earlier = optimizer_on("meta", step_on)
        state = in_host_memory(shards._state_of(earlier))
        parameter, optimizer = optimizer_on("meta", "cpu")
        shards._put_into(optimizer, state)
        values = optimizer.state[parameter]
        assert values["step"].device.type == step_on
        assert values["exp_avg"].device.type == "meta"
        assert values["name"] == "a"


def test_what_is_put_back_shares_no_memory_with_the_copy() -> None:
    _, earlier = optimizer_on("cpu", "cpu")
    state = in_host_memory(shards._state_of(earlier))
    parameter, optimizer = optimizer_on("cpu", "cpu")
    shards._put_into(optimizer, state)
    optimizer.state[parameter]["step"].add_(1)
    optimizer.state[parameter]["exp_avg"].add_(1)
    parameter, optimizer = optimizer_on("cpu", "cpu")
    shards._put_into(optimizer, state)
    assert float(optimizer.state[parameter]["step"]) == 1
    assert optimizer.state[parameter]["exp_avg"].tolist() == [1, 1, 1]
