"""Handles look as the workers' tensors do, and recordings do not depend on when handles die."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import monarch
from monarch import Tensor, call_on_shard_and_fetch, inspect, no_mesh, remote
from monarch.actor import this_host
from monarch.tensors.client.dispatch import AmbientMode
from monarch.tensors.core.specs import SpecMaker


def _image() -> Any:
    return torch.linspace(0, 1, 2 * 3 * 8 * 8).view(2, 3, 8, 8)


def _wide() -> Any:
    return torch.linspace(-1, 1, 48).view(2, 3, 8)


def _attention() -> Any:
    q = _wide().view(2, 3, 2, 4).requires_grad_()
    out = nn.functional.scaled_dot_product_attention(q, q, q)
    out.sum().backward()
    return out.detach(), q.grad


def _trained(module: Callable[[], nn.Module], make: Callable[[], Any]) -> Any:
    layer = module()
    x = make().requires_grad_()
    out = layer(x)
    out = out[0] if isinstance(out, tuple) else out
    out.pow(2).sum().backward()
    return out.detach(), x.grad, *(one.grad for one in layer.parameters())


# Operations whose results are laid out by the kernel, not by a rule that all share.
RESULTS: dict[str, Callable[[], Any]] = {
    "views": lambda: (_wide().transpose(0, 2), _wide()[:, 1:, ::2]),
    "pointwise of what is transposed": lambda: _wide().mT * 2 + _wide().mT,
    "as its argument": lambda: torch.empty_like(_wide().transpose(0, 1)),
    "channels last": lambda: _image().contiguous(memory_format=torch.channels_last).mul(2),
    "conv": lambda: _trained(lambda: nn.Conv2d(3, 4, 3), _image),
    "conv, channels last": lambda: _trained(
        lambda: nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last),
        lambda: _image().contiguous(memory_format=torch.channels_last),
    ),
    "batch norm": lambda: _trained(lambda: nn.BatchNorm2d(3), _image),
    "layer norm": lambda: _trained(lambda: nn.LayerNorm(8), _wide),
    "pooling": lambda: _trained(lambda: nn.MaxPool2d(2), _image),
    "lstm": lambda: _trained(lambda: nn.LSTM(8, 4), _wide),
    "gru": lambda: _trained(lambda: nn.GRU(8, 4), _wide),
    "attention": _attention,
    "sort": lambda: torch.sort(_wide(), dim=1),
    "topk": lambda: torch.topk(_wide(), 2),
    "linear algebra": lambda: (
        torch.linalg.svdvals(_wide()), *torch.linalg.qr(_wide()), _wide() @ _wide().mT,
    ),
    "inverse": lambda: torch.linalg.inv(torch.eye(3).expand(2, 3, 3) * 2),
    "fft": lambda: torch.fft.rfft2(_wide()),
    "einsum": lambda: torch.einsum("abc,abd->cd", _wide(), _wide()),
    "cat and stack": lambda: (
        torch.cat([_wide().mT, _wide().mT]), torch.stack([_wide(), _wide()], 1),
    ),
    "foreach": lambda: torch._foreach_mul([_wide().mT, _wide()], 2.0),
    "statistics": lambda: torch.std_mean(_wide(), dim=1),
    "types": lambda: (_wide() > 0, _wide().argmax(1), _wide().half() + 1, _wide().double()),
    "index": lambda: _wide()[:, torch.tensor([0, 2])],
}  # fmt: skip


def _looks(tensors: list[Any]) -> list[tuple[Any, ...]]:
    return [(tuple(t.shape), t.stride(), t.storage_offset(), str(t.dtype)) for t in tensors]


@pytest.mark.parametrize("name", RESULTS)
def test_real_results_look_as_their_handles_do(mesh: Any, name: str) -> None:
    """What comes out is worked out on tensors without values. Were it laid out in another way, a
    view of it that is right here would fail there."""
    maker = SpecMaker(Tensor, frozenset())
    maker.spec(RESULTS[name]())
    assert maker.tensors
    real = call_on_shard_and_fetch(remote(_looks), maker.tensors).get()
    assert _looks(maker.tensors) == real


def test_a_recording_does_not_depend_on_when_its_handles_die(mesh: Any) -> None:
    """Python frees what a function made in whatever order: cycles, frames and caches differ from
    one trace to the next."""
    kept: list[Any] = []

    @monarch.compile
    def step(x: Any) -> Any:
        first, second = x + 1, x + 2
        third = first * second
        if len(kept) == 1:  # While it is verified, in the other order, and some of it later.
            del second
            first = [first]
            first.append(first)
            del first
        else:
            del first, second
        kept.append(None)
        return third + 1

    x = torch.ones(2)
    assert [inspect(step(x)).tolist() for _ in range(3)] == [[7, 7]] * 3
    assert len(kept) == 2  # Recorded, and verified.
    gc.collect()
    assert inspect(step(x)).tolist() == [7, 7]


def test_arguments_of_a_recording_count_by_their_places(mesh: Any) -> None:
    """Not by the numbers of the handles, which each trace has others of."""

    @monarch.compile
    def apart(x: Any, y: Any) -> Any:
        return x - y

    a, b = torch.ones(1) * 5, torch.ones(1)
    for _ in range(2):
        assert inspect(apart(a, b)).tolist() == [4]
        assert inspect(apart(b, a)).tolist() == [-4]


def test_functions_of_torch_take_handles_without_asking_python(mesh: Any) -> None:
    """``__torch_function__`` of a subclass would cost each call more than the operation itself."""
    assert Tensor.__torch_function__ is torch._C._disabled_torch_function_impl
    assert type(torch.add(torch.ones(1), 1)) is Tensor


@pytest.mark.long
def test_ranks_are_there_before_a_mesh_was_active() -> None:
    procs = this_host().spawn_procs({"gpus": 1})
    ranks = procs.rank_tensors()
    assert list(ranks) == ["gpus"]
    assert inspect(ranks["gpus"]).item() == 0
    assert inspect(procs.rank_tensor("gpus") + 1).item() == 1
    with no_mesh.activate():
        assert torch.ones(1).item() == 1
    procs.stop().get()


@pytest.mark.long
def test_what_torch_has_compiled_runs_operation_by_operation_on_a_mesh(mesh: Any) -> None:
    """Its compiler keeps out where a mode is active; so the mode need not be kept from it, which
    costs each operation more than a microsecond."""
    assert not hasattr(AmbientMode.__torch_dispatch__, "__wrapped__")

    @torch.compile(backend="eager")
    def work(x: Any) -> Any:
        y = x * 2.0
        print("a break in the graph")
        return y + x.sum()

    x = torch.ones(3)
    for n in range(2):
        assert inspect(work(x + n)).tolist() == [5 * (n + 1)] * 3
    with no_mesh.activate():
        assert work(torch.ones(3)).tolist() == [5] * 3
