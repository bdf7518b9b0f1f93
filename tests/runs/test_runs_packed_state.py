"""A state as text and tensors, for another process."""

from __future__ import annotations

from collections import Counter, OrderedDict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from monarch.runs.hold.packed_state import PackedState, UnpackableState, tensor_at, unpacked


def brought_over(state: Any) -> Any:
    """As another process has it: only the text and the bytes."""
    packed = PackedState.of(state)
    places = packed.places()
    size = max((one.offset + one.num_bytes for one in places), default=0)
    memory = torch.zeros(size, dtype=torch.uint8)
    for place, tensor in zip(places, packed.tensors, strict=True):
        tensor_at(memory, place).copy_(tensor)
    return unpacked(packed.text, [tensor_at(memory, place) for place in places])


def test_all_that_a_checkpoint_may_hold_comes_over_as_it_is() -> None:
    state = {
        "step": 41,
        0: (1.5, float("inf"), None, True, "text", b"\x00\xff", 2j),
        "sets": [{1, 2}, frozenset({3}), Counter("aab"), []],
        "kinds": (torch.bfloat16, torch.device("cpu"), torch.Size([2, 3])),
        (1, "a"): -(2**70),
    }
    assert brought_over(state) == state


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6, dtype=torch.int16).reshape(2, 3),
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(4, 5).t(),
        torch.randn(6, 4)[:, ::2],
        torch.tensor(3.5, dtype=torch.float64),
        torch.tensor([True, False, True]),
        torch.empty(0, 3),
        torch.tensor([1 + 2j, float("nan")]),
        torch.randn(7).to(torch.bfloat16),
    ],
)
def test_tensors_keep_their_bits_and_their_order(tensor: torch.Tensor) -> None:
    there = brought_over([tensor, torch.ones(3)])[0]
    assert there.dtype == tensor.dtype
    assert torch.equal(there.isnan(), tensor.isnan())
    assert torch.equal(there[~there.isnan()], tensor[~tensor.isnan()])
    if tensor.is_contiguous(memory_format=torch.channels_last):
        assert there.is_contiguous(memory_format=torch.channels_last)


def test_a_model_and_its_optimizer_come_over() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    model[0].weight = nn.Parameter(torch.randn(3, 3))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    there = brought_over({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    assert isinstance(there["model"], OrderedDict)
    assert there["model"]._metadata == model.state_dict()._metadata  # type: ignore[attr-defined]
    other = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    other.load_state_dict(there["model"])
    again = torch.optim.AdamW(other.parameters())
    again.load_state_dict(there["optimizer"])
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)
        assert torch.equal(optimizer.state[one]["exp_avg"], again.state[two]["exp_avg"])


def test_names_of_the_same_memory_are_one_tensor() -> None:
    tied = torch.randn(3)
    packed = PackedState.of({"in": tied, "out": tied.detach(), "half": tied[:2]})
    assert len(packed.tensors) == 2


def test_what_is_copied_later_lies_behind_all_else() -> None:
    packed = PackedState.of([torch.ones(100), torch.ones(1), torch.ones(50)])
    places = packed.places({0})
    assert places[0].offset > places[2].offset > places[1].offset == 0


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (lambda: 1, "groups[0].fn is a function"),
        (SimpleNamespace(), "groups[0].fn is a SimpleNamespace"),
        (torch.eye(2).to_sparse(), "groups[0].fn is a tensor without plain memory"),
    ],
)
def test_what_no_process_could_be_given_is_named(value: Any, told: str) -> None:
    with pytest.raises(UnpackableState) as caught:
        PackedState.of({"groups": [{"fn": value}]})
    assert str(caught.value).lstrip(".") == told
