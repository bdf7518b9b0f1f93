"""Exchanges between ranks: reductions, and copies from one mesh to another.

A rank whose input has failed before takes part with zeros, by the exchange's stand-in, so that the
other ranks do not wait for ever. Their results are spoiled too, as the controller knows.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from monarch.tensors.worker.slots import refuse_poison

_OPERATIONS = {
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.SUM,  # gloo has no average.
    "product": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "band": dist.ReduceOp.BAND,
    "bor": dist.ReduceOp.BOR,
    "bxor": dist.ReduceOp.BXOR,
}


class TensorLooks(NamedTuple):
    """The size, dtype and device of the tensor that a rank contributes.

    After a failure, a tensor of zeros with these is contributed in its place.
    """

    size: tuple[int, ...]
    dtype: Any
    device: str

    def zeros(self) -> torch.Tensor:
        return torch.zeros(self.size, dtype=self.dtype, device=self.device)


class Reduction:
    """One reduction over a group, on this rank."""

    def __init__(
        self, group: Any, reduction: str, *, scatter: bool, inplace: bool, by_host: bool = False
    ) -> None:
        self._group = group
        self._reduction = reduction
        self._operation = _OPERATIONS.get(reduction)
        self._num_ranks = dist.get_world_size(group)
        self._inplace = inplace
        self._work = self._choose(reduction, scatter)
        if by_host:
            self._work = _by_host(self._work)

    def _choose(self, reduction: str, scatter: bool) -> Callable[[torch.Tensor], torch.Tensor]:
        if reduction == "stack":
            return self._exchange if scatter else self._gather
        return self._reduce_and_scatter if scatter else self._reduce

    def __call__(self, tensor: Any) -> Any:
        refuse_poison(tensor)
        result = self._work(tensor)
        if self._inplace and result is not tensor:
            tensor.copy_(result)
            return tensor
        return result

    def stand_in(self, looks: TensorLooks) -> Callable[[], object]:
        return lambda: self._work(looks.zeros())

    def _averaged(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._reduction != "avg":
            return tensor
        whole = not (tensor.is_floating_point() or tensor.is_complex())
        return tensor.div_(self._num_ranks, rounding_mode="trunc" if whole else None)

    def _reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        contiguous = tensor.contiguous()
        if contiguous is tensor and not self._inplace:
            contiguous = tensor.clone()
        dist.all_reduce(contiguous, op=self._operation, group=self._group)
        return self._averaged(contiguous)

    def _reduce_and_scatter(self, tensor: torch.Tensor) -> torch.Tensor:
        flat = tensor.contiguous().view(-1)
        result = tensor.new_empty(tensor.shape[1:])
        dist.reduce_scatter_tensor(result.view(-1), flat, op=self._operation, group=self._group)
        return self._averaged(result)

    def _gather(self, tensor: torch.Tensor) -> torch.Tensor:
        flat = tensor.contiguous().view(-1)
        result = tensor.new_empty((self._num_ranks, *tensor.shape))
        dist.all_gather_into_tensor(result.view(-1), flat, group=self._group)
        return result

    def _exchange(self, tensor: torch.Tensor) -> torch.Tensor:
        contiguous = tensor.contiguous()
        result = torch.empty_like(contiguous)
        dist.all_to_all_single(result, contiguous, group=self._group)
        return result


def _by_host(work: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return a function that runs ``work`` on a copy of its argument in the host's memory.

    It copies the result back to the argument's device.
    """
    return lambda tensor: work(tensor.cpu()).to(tensor.device)


def fans_of(pairs: Sequence[tuple[int, int]]) -> dict[int, tuple[int, ...]]:
    """Return, for each rank that sends to several other ranks, its own rank and theirs, sorted."""
    targets: dict[int, set[int]] = {}
    for a, b in pairs:
        if a != b:
            targets.setdefault(a, set()).add(b)
    return {a: tuple(sorted({a, *many})) for a, many in targets.items() if len(many) > 1}


_MOST_SENDS = 16


class LateSends(threading.local):
    """The sends of this thread that may not have been received, each with a copy of its buffer.

    If there are too many, ``add`` waits for the oldest. That cannot deadlock: all ranks run the
    program in the same order, so the receiver needs no later operation of this rank to come to its
    receive.
    """

    def __init__(self) -> None:
        self._under_way: deque[tuple[Any, torch.Tensor]] = deque()

    def __len__(self) -> int:
        return len(self._under_way)

    def add(self, work: Any, copy: torch.Tensor) -> None:
        under_way = self._under_way
        under_way.append((work, copy))
        # Sends of gloo become complete only when somebody waits for them.
        while len(under_way) > _MOST_SENDS or (under_way and under_way[0][0].is_completed()):
            under_way.popleft()[0].wait()


late_sends = LateSends()


class Passage:
    """Copies between ranks, as ``pairs`` (sender, receiver); this rank need not be among them.

    ``groups`` has a group for each rank that sends to several receivers: that rank broadcasts in
    it. Other pairs use their group in ``pair_groups``, or else the default group with the tag
    ``tag``. ``by_host`` copies through the host's memory.
    """

    def __init__(
        self,
        pairs: Sequence[tuple[int, int]],
        rank: int,
        looks: TensorLooks,
        *,
        groups: Mapping[int, Any],
        pair_groups: Mapping[tuple[int, int], Any],
        tag: int,
        by_host: bool = False,
    ) -> None:
        self._looks = looks
        self._by_host = by_host
        self._rank = rank
        self._tag = tag
        self._source = next((a for a, b in pairs if b == rank), None)
        self._targets = [b for a, b in pairs if a == rank != b]
        self._groups = groups
        self._pair_groups = pair_groups

    def __call__(self, tensor: Any) -> Any:
        refuse_poison(tensor)
        return self._move(tensor)

    def stand_in(self) -> Callable[[], object]:
        return lambda: self._move(self._looks.zeros())

    def _move(self, tensor: Any) -> Any:
        if self._targets:
            copy = tensor.detach().contiguous().clone()
            self._send(copy.cpu() if self._by_host else copy)
        if self._source is None:
            return None
        if self._source == self._rank:
            return tensor.clone()
        device = "cpu" if self._by_host else self._looks.device
        received = torch.empty(self._looks.size, dtype=self._looks.dtype, device=device)
        group = self._groups.get(self._source)
        if group is not None:
            dist.broadcast(received, self._source, group=group)
        else:
            group = self._pair_groups.get((self._source, self._rank))
            dist.recv(received, self._source, group=group, tag=self._tag)
        return received.to(self._looks.device) if self._by_host else received

    def _send(self, copy: torch.Tensor) -> None:
        group = self._groups.get(self._rank)
        if group is not None:
            late_sends.add(dist.broadcast(copy, self._rank, group=group, async_op=True), copy)
            return
        for target in self._targets:
            group = self._pair_groups.get((self._rank, target))
            late_sends.add(dist.isend(copy, target, group=group, tag=self._tag), copy)
