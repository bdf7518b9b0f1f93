"""One rank's part of a training's state, as plain tensors and values.

A new process of the same rank continues from it, from the copies in its host's memory. Each rank
has its own shards and its pipeline stage, so copies of all ranks of one step are needed, and the
same layout.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from monarch.runs.hold.run_memory import HostCopies
from monarch_recipes.checkpoint import CheckpointError, random_state, set_random_state
from monarch_recipes.collective import from_all_ranks
from monarch_recipes.host_copies import read_place

from .versions.engine import Engine

_SHARD = "shard"  # the key of a tensor that is a rank's part of a DTensor
_BESIDE = "beside"  # the key of another tensor that lies on its parameter's device


def state_of_rank(engine: Engine, layout: str, generation: int) -> dict[str, Any]:
    """Return all that a new process of this rank needs. Tensors are shared, not copied."""
    return {
        "step": engine.step,
        "tokens_seen": engine.tokens_seen,
        "layout": layout,
        "generation": generation,
        "model": [
            {name: _local(value) for name, value in part.state_dict().items()}
            for part in engine.model_parts
        ],
        "optimizer": [_state_of(optimizer) for optimizer in engine.optimizers],
        "lr_scheduler": engine.schedules.state_dict(),
        "dataloader": _position_of(engine.dataloader),
        "random_state": random_state(engine.device),
    }


def read_shards(copies: HostCopies | None, rank: int, layout: str) -> dict[str, Any] | None:
    """Return this rank's state from the copies. All ranks must call this together.

    Returns None on all ranks if one of them has no copy, or one of another layout.
    """
    state = read_place(None if copies is None else copies.whole.get(rank))
    is_right = state is not None and state["layout"] == layout
    return state if all(from_all_ranks(is_right)) else None


def go_on_from(state: dict[str, Any], engine: Engine) -> None:
    """Load a state that an earlier process of this rank has left.

    Raises CheckpointError if the state is of another model.
    """
    for part, values in zip(engine.model_parts, state["model"], strict=True):
        ours = list(_tensors({key: _local(value) for key, value in part.state_dict().items()}))
        shapes = {name: tensor.shape for name, tensor in ours}
        if shapes != {name: tensor.shape for name, tensor in _tensors(values)}:
            raise CheckpointError(
                "the copy in the host's memory is of another model than the code makes now"
            )
        with torch.no_grad():
            for name, tensor in ours:
                tensor.copy_(_unpacked(values[name]))
    for optimizer, values in zip(engine.optimizers, state["optimizer"], strict=True):
        _put_into(optimizer, values)
    engine.schedules.load_state_dict(state["lr_scheduler"])
    engine.dataloader.load_state_dict(state["dataloader"])
    engine.step, engine.tokens_seen = state["step"], state["tokens_seen"]
    set_random_state({name: value.clone() for name, value in state["random_state"].items()})


def _local(value: Any) -> Any:
    if isinstance(value, DTensor):
        with torch.no_grad():
            return {_SHARD: value.to_local()}
    return value.detach() if isinstance(value, torch.Tensor) else value


def _unpacked(value: Any) -> Any:
    return value[_SHARD] if isinstance(value, dict) and value.keys() == {_SHARD} else value


def _tensors(values: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    for name, value in values.items():
        tensor = _unpacked(value)
        if isinstance(tensor, torch.Tensor):
            yield name, tensor


def _parameters_of(optimizer: torch.optim.Optimizer) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _state_of(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {
        "of_parameters": [
            {
                key: _with_device(parameter, value)
                for key, value in optimizer.state.get(parameter, {}).items()
            }
            for parameter in _parameters_of(optimizer)
        ],
        "groups": [
            {key: value for key, value in group.items() if key != "params"}
            for group in optimizer.param_groups
        ],
    }


def _with_device(parameter: torch.Tensor, value: Any) -> Any:
    """Return a value of the optimizer in a form that says where it lies.

    In the host's memory it lies on the CPU. A counter of steps must come back to its own device: a
    fused optimizer has it on the GPU, others on the CPU.
    """
    if isinstance(value, torch.Tensor) and not isinstance(value, DTensor):
        return {_BESIDE: value.detach()} if value.device == parameter.device else value.detach()
    return _local(value)


def _put_into(optimizer: torch.optim.Optimizer, values: dict[str, Any]) -> None:
    for parameter, state in zip(_parameters_of(optimizer), values["of_parameters"], strict=True):
        optimizer.state.pop(parameter, None)
        if state:
            optimizer.state[parameter] = {
                key: _made_like(parameter, value) for key, value in state.items()
            }
    for group, settings in zip(optimizer.param_groups, values["groups"], strict=True):
        group.update(settings)


def _made_like(parameter: Any, value: Any) -> Any:
    """Return a copy of a value from ``_with_device``, on the device on which it was.

    A rank's shard becomes a DTensor like the parameter.
    """
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict) and value.keys() == {_BESIDE}:
        return value[_BESIDE].to(parameter.device, copy=True)
    if not (isinstance(value, dict) and value.keys() == {_SHARD}):
        return value
    return DTensor.from_local(
        value[_SHARD].to(parameter.device, copy=True),
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def _position_of(loader: Any) -> dict[str, Any]:
    """Return the position in the data, without starting a loader that was just restored.

    Such a loader has no iterator yet; its own `state_dict` would make one, with the code as it is
    now.
    """
    waiting = getattr(loader, "next_iter_state", None)
    if getattr(loader, "_iterator", loader) is not None:
        position: dict[str, Any] = loader.state_dict()
        return position
    if waiting is None:
        return {}  # Nothing was read yet.
    loader._iterator = _ToldPosition(waiting)
    try:
        position = loader.state_dict()
    finally:
        loader._iterator = None
    return position


class _ToldPosition:
    """Replaces a loader's iterator, and returns a known state."""

    def __init__(self, state: Any) -> None:
        self._state = state

    def state_dict(self) -> Any:
        return self._state
