"""`monarch.worker._testing_function`: functions that Monarch's own tests run on tensor workers.

Tests name most of these by path, so that workers import them. If a function writes to an argument,
its rule does too: so the write is noticed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from monarch.tensors.api.opaque import OpaqueRef
from monarch.tensors.api.remote import remote
from monarch.tensors.worker.collectives import late_sends
from monarch.tensors.worker.current import current_rank
from monarch.tensors.worker.objects import num_held

_logger = logging.getLogger("monarch.worker._testing_function")
_SUM = dist.ReduceOp.SUM


def _on_workers(rule: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that makes a remote function; ``rule`` computes its results' shapes."""
    return remote(propagate=rule)  # type: ignore[no-any-return]


# Plain functions


def do_bogus_tensor_work(x: Any, y: Any, fail_rank: int | None = None) -> Any:
    """Multiply matrices that do not fit, on the rank that should fail; return ``x`` on others."""
    return x @ y if fail_rank is None or current_rank() == fail_rank else x


def set_device_udf_worker(device: int) -> torch.Tensor:
    torch.cuda.set_device(device)
    return torch.ones(1)


def log(*args: Any, **kwargs: Any) -> None:
    _logger.info(*args, **kwargs)


def remote_sleep(t: float) -> None:
    time.sleep(t)


def has_nan(t: torch.Tensor) -> Any:
    return t.isnan().any().item()


_barrier: list[threading.Barrier] = []


def new_barrier_hackery(threads: int) -> torch.Tensor:
    """Make a barrier for so many streams of this worker."""
    _barrier[:] = [threading.Barrier(threads)]
    return torch.zeros(1)


def wait_barrier_hackery(t: torch.Tensor) -> None:
    _barrier[0].wait()


def do_some_processing(a_string: str) -> str:
    return f"{a_string} processed"


def how_many_of_these_do_you_want(n: int, t: torch.Tensor) -> list[torch.Tensor]:
    return [t + number for number in range(n)]


def remote_chunk(t: torch.Tensor) -> Any:
    return t.chunk(4)


def inner_remote_function_that_fails() -> None:
    raise Exception("Failed to execute inner_remote_function_that_fails")


def outer_remote_function_that_calls_inner() -> torch.Tensor:
    inner_remote_function_that_fails()
    return torch.zeros(1)


# Of torch.distributed, with a process group for `group`


def _writes_first(tensor: Any, *args: Any, **kwargs: Any) -> Any:
    return tensor.add_(1)


def _number(*args: Any, **kwargs: Any) -> torch.Tensor:
    return torch.ones(1)


@_on_workers(_writes_first)
def all_reduce(tensor: Any, group: Any = None, op: Any = _SUM) -> Any:
    dist.all_reduce(tensor, op=op, group=group)
    return tensor


@_on_workers(_number)
def barrier(group: Any = None, device_ids: Any = None) -> torch.Tensor:
    dist.barrier(group=group, device_ids=device_ids)
    return torch.ones(1)


def _writes_all(tensors: list[Any], *args: Any, **kwargs: Any) -> list[Any]:
    for tensor in tensors:
        tensor.add_(1)
    return tensors


@_on_workers(_writes_all)
def all_gather(tensor_list: list[Any], tensor: Any, group: Any = None) -> list[Any]:
    dist.all_gather(tensor_list, tensor, group=group)
    return tensor_list


def _writes_first_gives_one(tensor: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    tensor.add_(1)
    return torch.ones(1)


@_on_workers(_writes_first_gives_one)
def all_gather_into_tensor(output_tensor: Any, input_tensor: Any, group: Any = None) -> Any:
    dist.all_gather_into_tensor(output_tensor, input_tensor, group=group)
    return torch.ones(1)


@_on_workers(_number)
def isend(t: Any, destination: Any, group: Any = None) -> torch.Tensor:
    """Send without waiting for the receiver, which may itself be sending."""
    copy = t.detach().clone()
    late_sends.add(dist.isend(copy, int(destination), group=group), copy)
    return torch.ones(1)


@_on_workers(_writes_first_gives_one)
def irecv(t: Any, src: Any, group: Any = None) -> torch.Tensor:
    dist.recv(t, int(src), group=group)
    return torch.ones(1)


@_on_workers(_writes_first)
def reduce(
    tensor: Any,
    dst: int | None = None,
    op: Any = _SUM,
    group: Any = None,
    group_dst: int | None = None,
) -> Any:
    dist.reduce(tensor, dst, op=op, group=group, group_dst=group_dst)
    return tensor


@_on_workers(_writes_first)
def reduce_scatter(output: Any, input_list: list[Any], op: Any = _SUM, group: Any = None) -> Any:
    dist.reduce_scatter(output, input_list, op=op, group=group)
    return output


@_on_workers(_writes_first)
def reduce_scatter_tensor(
    output_tensor: Any, input_tensor: Any, group: Any = None, op: Any = _SUM
) -> Any:
    whole = output_tensor.contiguous()
    # Of one dimension: gloo compares the first ones, where NCCL counts elements.
    flat = input_tensor.contiguous().view(-1)
    dist.reduce_scatter_tensor(whole.view(-1), flat, op=op, group=group)
    if whole is not output_tensor:
        output_tensor.copy_(whole)
    return output_tensor


def _is_at(rank: int | None, rank_in_group: int | None, group: Any) -> bool:
    """Whether this process is the rank that has the list of tensors.

    ``rank_in_group`` counts in ``group``; without it ``rank`` counts in the world. True if both are
    None.
    """
    if rank_in_group is not None:
        return bool(dist.get_rank(group) == rank_in_group)
    return rank is None or bool(dist.get_rank() == rank)


def _gathers(tensor: Any, gather_list: list[Any] | None = None, *args: Any, **kwargs: Any) -> Any:
    _writes_all(gather_list or [])
    return tensor.clone()


@_on_workers(_gathers)
def gather(
    tensor: Any,
    gather_list: list[Any] | None = None,
    dst: int | None = None,
    group: Any = None,
    group_dst: int | None = None,
) -> Any:
    tensors = gather_list if _is_at(dst, group_dst, group) else None
    dist.gather(tensor, tensors, dst, group=group, group_dst=group_dst)
    return tensor


@_on_workers(_writes_first)
def scatter(
    tensor: Any,
    scatter_list: list[Any] | None = None,
    src: int | None = None,
    group: Any = None,
    group_src: int | None = None,
) -> Any:
    tensors = scatter_list if _is_at(src, group_src, group) else None
    dist.scatter(tensor, tensors, src, group=group, group_src=group_src)
    return tensor


@_on_workers(_writes_first)
def broadcast(
    tensor: Any, src: int | None = None, group: Any = None, group_src: int | None = None
) -> Any:
    dist.broadcast(tensor, src, group=group, group_src=group_src)
    return tensor


@_on_workers(_writes_all)
def all_to_all(
    output_tensor_list: list[Any], input_tensor_list: list[Any], group: Any = None
) -> list[Any]:
    try:
        dist.all_to_all(output_tensor_list, input_tensor_list, group=group)
    except RuntimeError:  # gloo can only exchange parts of a single tensor.
        source = torch.cat([tensor.reshape(-1) for tensor in input_tensor_list])
        target = torch.empty_like(source)
        target_sizes = [tensor.numel() for tensor in output_tensor_list]
        source_sizes = [tensor.numel() for tensor in input_tensor_list]
        dist.all_to_all_single(target, source, target_sizes, source_sizes, group=group)
        for tensor, part in zip(output_tensor_list, target.split(target_sizes), strict=True):
            tensor.copy_(part.view(tensor.shape))
    return output_tensor_list


@_on_workers(_writes_first)
def all_to_all_single(output_tensor: Any, input_tensor: Any, group: Any = None) -> Any:
    dist.all_to_all_single(output_tensor, input_tensor, group=group)
    return output_tensor


# Autograd functions


class TestRemoteAutogradFunction(torch.autograd.Function):  # type: ignore[misc]
    """Returns several results: an argument, one without a gradient, and one that is no tensor."""

    __test__ = False

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        ctx.save_for_backward(x)
        first = x * y if x.requires_grad else x + y
        return first, y, torch.ones(4), 4

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], gradients[1]


class _TestMultiplyAllReduce(torch.autograd.Function):  # type: ignore[misc]
    """Computes a product that is summed over a process group, forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any, pg: Any) -> Any:
        ctx.save_for_backward(x, y, torch.rand_like(x))
        ctx.my_property = True
        ctx.pg = pg
        product = x * y
        dist.all_reduce(product, op=_SUM, group=pg)
        return product

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x, y, chance = ctx.saved_tensors
        assert ctx.my_property
        of_x, of_y = gradients[0] * y, gradients[0] * x * chance
        for gradient in (of_x, of_y):
            dist.all_reduce(gradient, op=_SUM, group=ctx.pg)
        return of_x, of_y, None


# Objects


class SimpleModel(nn.Module):  # type: ignore[misc]
    """A model of two linear layers."""

    def __init__(self, input_size: int, hidden_size: int, output_size: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(input_size, hidden_size)
        self.relu = nn.ReLU()
        self.fc2 = nn.Linear(hidden_size, output_size)

    def forward(self, x: Any) -> Any:
        return self.fc2(self.relu(self.fc1(x)))


def setup_state_worker() -> list[OpaqueRef]:
    """Make a model, its data, its loss and its optimizer on the worker; return references to
    them."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows = torch.utils.data.TensorDataset(
        torch.rand(100, 10, device=device), torch.rand(100, 1, device=device)
    )
    model = SimpleModel(10, 20, 1).to(device)
    loader = torch.utils.data.DataLoader(rows, batch_size=16, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return [OpaqueRef(value) for value in (model, loader, nn.MSELoss(), optimizer)]


def iteration_worker(
    model_ref: OpaqueRef,
    dataloader_ref: OpaqueRef,
    criterion_ref: OpaqueRef,
    optimizer_ref: OpaqueRef,
    pg: Any,
) -> torch.Tensor:
    """Train for one pass over the data, with gradients summed over ``pg``; return the sum of
    losses."""
    model, optimizer = model_ref.value, optimizer_ref.value
    total = 0.0
    with torch.enable_grad():
        for inputs, targets in dataloader_ref.value:
            loss = criterion_ref.value(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, op=_SUM, group=pg)
            optimizer.step()
            total += loss.item()
    return torch.tensor(total)


def create_opaque_ref_worker() -> OpaqueRef:
    return OpaqueRef(nn.Linear(10, 10))


def opaque_ref_key_table_length_worker() -> torch.Tensor:
    return torch.tensor(num_held())


class WorkerFoo:
    """A class on the worker for tests of ``OpaqueObject``."""

    def __init__(self, v: float) -> None:
        self.t = torch.full((), v)

    def add(self, b: Any) -> Any:
        return self.t + b
