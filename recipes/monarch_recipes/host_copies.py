"""Restarted ranks continue from copies of the state that earlier ranks left in their hosts' memory.

All ranks of ddp have the same weights, so one complete copy is enough for all; each rank has its
own random state. The ranks of a replica group continue from their own copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from monarch.actor import context
from monarch.runs.hold.run_memory import HostCopies
from monarch.runs.hold.state_memory import CopyPlace
from monarch_recipes.checkpoint import Checkpoint, CheckpointError, check_model, check_optimizer
from monarch_recipes.collective import from_all_ranks

_CALLED = Path("the copy in the host's memory")


@dataclass(frozen=True)
class CopySource:
    """The first rank whose copy is complete, and its values that are not model or optimizer state.

    ``is_to_be_taken_from`` is true if some ranks have no complete copy and must get this rank's.
    """

    rank: int
    scaler: dict[str, Any]
    history: list[dict[str, float]]
    data: dict[str, Any]
    is_to_be_taken_from: bool


def read_copy(
    copies: HostCopies, rank: int
) -> tuple[dict[str, Any] | None, dict[str, torch.Tensor] | None]:
    """Return the whole state of a rank and its random state, from its copies.

    What is gone or damaged is None.
    """
    whole = read_whole(copies, rank)
    if whole is not None:
        return whole, whole["random_state"]
    small = read_place(copies.small.get(rank))
    return None, None if small is None else _cloned(small["random_state"])


def read_whole(copies: HostCopies, rank: int) -> dict[str, Any] | None:
    """Return the state of a rank from its complete copy; None if there is none or it is damaged."""
    state = read_place(copies.whole.get(rank))
    if state is None:
        return None
    # The rank's next copy overwrites this memory, so tensors are cloned. Those of the model need
    # not be: a model copies their values, while an optimizer keeps the tensors.
    return {key: value if key == "model" else _cloned(value) for key, value in state.items()}


def check_fits(
    state: dict[str, Any],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    keys: Sequence[str] = (),
) -> None:
    """Raise CheckpointMisfit if a copy is of another model or optimizer, or lacks one of
    ``keys``."""
    copy, generation = Checkpoint(state["step"], _CALLED, state), context().generation
    check_model(copy, model, keys, generation=generation)
    check_optimizer(copy, optimizer, generation=generation)


def first_that_fits(
    state: dict[str, Any] | None, model: nn.Module, optimizer: torch.optim.Optimizer
) -> CopySource | None:
    """Return the copy that all ranks continue from; None if no rank has a complete copy.

    ``state`` is this rank's own, or None. All ranks must call it together. Raises CheckpointMisfit
    on all of them if a copy is of another model or optimizer.
    """
    values: Any = None
    if state is not None:
        try:
            check_fits(state, model, optimizer)
            values = state["scaler"], state["history"], state.get("data", {})
        except CheckpointError as error:
            error.__traceback__ = None
            values = error
    by_rank = from_all_ranks(values)
    ranks = [rank for rank, values in enumerate(by_rank) if values is not None]
    if not ranks:
        return None
    for rank in ranks:
        if isinstance(by_rank[rank], CheckpointError):
            raise by_rank[rank]
    scaler, history, data = by_rank[ranks[0]]
    return CopySource(ranks[0], scaler, history, data, len(ranks) < len(by_rank))


def read_place(place: CopyPlace | None) -> Any:
    """Return the state at a place in the host's memory; None if it is gone or damaged."""
    try:
        return None if place is None else place.read()
    except (OSError, ValueError):
        return None


def _cloned(value: Any) -> Any:
    return tree_map_only(torch.Tensor, torch.Tensor.clone, value)
