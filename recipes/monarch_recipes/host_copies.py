"""Replicas go on from copies in the memory of their hosts, which ranks before them have left.

Any rank's whole copy is enough, as all have the same weights; each rank's random state is its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from monarch.actor import context
from monarch.runs.run_memory import HostCopies
from monarch.runs.state_memory import CopyPlace
from monarch_recipes.checkpoint import Checkpoint, CheckpointError, check_model, check_optimizer
from monarch_recipes.collective import from_all_ranks

_CALLED = Path("the copy in the host's memory")


@dataclass(frozen=True)
class RankCopy:
    """What this rank has of its own: ``state`` where its copy is whole, and its random state where
    that is there."""

    state: dict[str, Any] | None = None
    random_state: dict[str, torch.Tensor] | None = None


@dataclass(frozen=True)
class CopySource:
    """The first rank whose copy is whole, and what is not among the tensors of its state;
    ``is_to_be_taken_from``: some ranks have none."""

    rank: int
    scaler: dict[str, Any]
    history: list[dict[str, float]]
    is_to_be_taken_from: bool


def read_copy(copies: HostCopies, rank: int) -> RankCopy:
    """What is there for a rank; less than ``copies`` say where it is gone, or not right."""
    whole, small = _read(copies.whole.get(rank)), None
    if whole is None:
        small = _read(copies.small.get(rank))
    both = whole or small
    # As the rank's own: the memory is written over by its next copy.
    own: Any = None if both is None else _own(both["random_state"])
    if whole is not None:
        # A model copies what it is given; an optimizer keeps it.
        whole = {**whole, "optimizer": _own(whole["optimizer"]), "scaler": _own(whole["scaler"])}
    return RankCopy(whole, own)


def first_that_fits(
    mine: RankCopy, model: nn.Module, optimizer: torch.optim.Optimizer
) -> CopySource | None:
    """Where all ranks go on from, ``None`` where no rank has a whole copy. To be called by all;
    raises CheckpointMisfit on all of them where a copy is of another model or optimizer."""
    found: Any = None
    if mine.state is not None:
        state = mine.state
        try:
            copy, generation = Checkpoint(state["step"], _CALLED, state), context().generation
            check_model(copy, model, generation=generation)
            check_optimizer(copy, optimizer, generation=generation)
            found = state["scaler"], state["history"]
        except CheckpointError as error:
            error.__traceback__ = None
            found = error
    by_rank = from_all_ranks(found)
    there = [rank for rank, one in enumerate(by_rank) if one is not None]
    if not there:
        return None
    for rank in there:
        if isinstance(by_rank[rank], CheckpointError):
            raise by_rank[rank]
    scaler, history = by_rank[there[0]]
    return CopySource(there[0], scaler, history, len(there) < len(by_rank))


def _read(place: CopyPlace | None) -> Any:
    try:
        return None if place is None else place.read()
    except (OSError, ValueError):
        return None


def _own(value: Any) -> Any:
    return tree_map_only(torch.Tensor, lambda one: one.clone(), value)
