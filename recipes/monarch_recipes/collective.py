"""Functions that all ranks of a process group call together, with the same result or error."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._pytree import tree_map_only

from monarch.actor import context
from monarch.errors import MonarchError
from monarch_recipes.buffers import Buffers
from monarch_recipes.checkpoint import (
    Checkpoint,
    CheckpointError,
    check_model,
    check_weights,
    find_checkpoint,
    load_weights,
)
from monarch_sync.words import some

T = TypeVar("T")

_NUM_SAMPLES_TOLD = 8


class NonFiniteLoss(MonarchError):
    """The loss or gradient is not finite, or the samples weigh 0. The step changed nothing."""


def sum_over_ranks(totals: torch.Tensor, step: int, indices: Sequence[int]) -> list[float]:
    """Return the sums over ranks of ``totals``, shape (n,): the loss, its weight, then other
    numbers.

    Raises NonFiniteLoss on all ranks if the loss of a rank is not finite; the error names the
    samples of the first such rank, from its `indices`. Also raises it if the weights add up to 0.
    """
    by_rank = [torch.zeros_like(totals) for _ in range(dist.get_world_size())]
    dist.all_gather(by_rank, totals)
    bad = [rank for rank, row in enumerate(by_rank) if not row[0].isfinite()]
    if bad:
        # Every rank raises the whole message, since the client may hear any of them first.
        culprits = [list(indices)]
        dist.broadcast_object_list(culprits, src=bad[0])
        raise NonFiniteLoss(
            f"the loss is {float(by_rank[bad[0]][0])} in step {step}, "
            f"on {'rank' if len(bad) == 1 else 'ranks'} {', '.join(map(str, bad))}; the samples of "
            f"rank {bad[0]} were " + some([str(index) for index in culprits[0]], _NUM_SAMPLES_TOLD)
        )
    sums: list[float] = torch.stack(by_rank).sum(0).tolist()
    check_weight(sums[1], step)
    return sums


def check_weight(weight: float, step: int) -> None:
    """Raise NonFiniteLoss if a step's loss has weight 0, for example if every label is masked."""
    if not weight > 0:
        raise NonFiniteLoss(
            f"the loss of step {step} has a weight of {weight:g}, as where every label of a batch "
            "is masked; there is nothing to learn from it"
        )


def average_buffers(buffers: Buffers) -> None:
    """Average the floating-point buffers over all ranks."""
    row = buffers.packed()
    if row.numel():
        dist.all_reduce(row)
        buffers.unpack(row / dist.get_world_size())


def check_gradient(norm: float, step: int) -> None:
    """Raise NonFiniteLoss if the norm of the gradient is not finite."""
    if not math.isfinite(norm):
        raise NonFiniteLoss(f"the gradient is {norm} in step {step}")


def from_rank_0(find: Callable[[], T], expected: type[Exception]) -> T:
    """Call ``find`` on rank 0, and return its result on all ranks.

    If it raises an error of the type `expected`, all ranks raise it.
    """
    results: list[Any] = [None]
    if dist.get_rank() == 0:
        try:
            results = [find()]
        except expected as error:
            # The causes may not be picklable.
            error.__cause__ = error.__context__ = None
            results = [error]
    dist.broadcast_object_list(results)
    if isinstance(results[0], expected):
        raise results[0]
    result: T = results[0]
    return result


def find_checkpoint_for_all(
    wanted: str, folder: Path, model: nn.Module, keys: Sequence[str]
) -> tuple[Checkpoint | None, tuple[str, ...]]:
    """Return the checkpoint to resume from, or None, and the errors of newer unusable checkpoints.

    See `find_checkpoint` for ``wanted``. The checkpoint must pass `check_model`, with `keys`. Only
    rank 0 reads files. If `find_checkpoint` raises CheckpointError there, all ranks raise it.
    """

    def find() -> tuple[Checkpoint | None, tuple[str, ...]]:
        skipped: list[str] = []
        fits = functools.partial(
            check_model, model=model, keys=keys, generation=context().generation
        )
        checkpoint = find_checkpoint(wanted, folder, fits, skipped.append)
        return checkpoint, tuple(skipped)

    return from_rank_0(find, CheckpointError)


def load_weights_for_all(path: Path, model: nn.Module) -> None:
    """Load the weights in a file into the model of every rank. Only rank 0 reads the file.

    Raises CheckpointError on all ranks if the file cannot be read or is of another model.
    """

    def find() -> dict[str, torch.Tensor]:
        weights = load_weights(path)
        check_weights(path, weights, model)
        return weights

    model.load_state_dict(from_rank_0(find, CheckpointError))


def from_all_ranks(mine: T) -> list[T]:
    """Return the values that all ranks passed, ordered by rank."""
    by_rank: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(by_rank, mine)
    return by_rank


def take_from(rank: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Copy the parameters, the buffers and the optimizer's state of ``rank`` to all ranks.

    All ranks must call it. Tensors are copied in place if this rank has one of the same shape and
    type.
    """
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), src=rank)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for parameter in parameters:
        dist.broadcast(parameter.detach(), src=rank)
    # Sent as objects, since ranks may have different entries, of different types.
    mine = [_sent(optimizer.state.get(parameter, {})) for parameter in parameters]
    theirs: list[Any] = [mine]
    dist.broadcast_object_list(theirs, src=rank)
    if dist.get_rank() == rank:
        return
    for parameter, state in zip(parameters, theirs[0], strict=True):
        old_state = optimizer.state.pop(parameter, {})
        if state:
            optimizer.state[parameter] = {
                key: _taken(value, old_state.get(key), parameter.device)
                for key, value in state.items()
            }


@dataclass(frozen=True)
class _Sent:
    """A tensor that is sent to another rank, by way of the CPU.

    The other rank may have no device with the number of this one.
    """

    tensor: torch.Tensor
    is_on_cpu: bool


def _sent(state: Any) -> Any:
    return tree_map_only(
        torch.Tensor, lambda each: _Sent(each.detach().cpu(), each.device.type == "cpu"), state
    )


def _taken(value: Any, old: Any, device: torch.device) -> Any:
    """Return a value that another rank sent, with its GPU tensors on ``device``.

    A tensor is copied into ``old``, which is then returned, if ``old`` has its shape and type.
    """
    fits = isinstance(value, _Sent) and isinstance(old, torch.Tensor)
    if fits and (old.shape, old.dtype) == (value.tensor.shape, value.tensor.dtype):
        with torch.no_grad():
            return old.copy_(value.tensor)
    return tree_map_only(
        _Sent, lambda sent: sent.tensor if sent.is_on_cpu else sent.tensor.to(device), value
    )
