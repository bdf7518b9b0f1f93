"""Fingerprints: every flipped bit shows, and every tensor or element in another's place."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install 'monarch-loop[train]'")

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from monarch_recipes import fingerprint
from monarch_recipes.alike import ONLY_WEIGHTS, Alike
from monarch_recipes.ddp import DDPTrainer
from monarch_recipes.fingerprint import PIECE, differences, digest_of, state_of, sums_of

DTYPES = (
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32,
    torch.int16, torch.uint8, torch.bool, torch.complex64,
)  # fmt: skip
SPECIAL = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, 2.0)


@st.composite
def tensors(draw: Any) -> torch.Tensor:
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 5), min_size=0, max_size=3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    value = torch.randn(shape, generator=generator) * 10
    if draw(st.booleans()) and value.numel():
        value.view(-1)[0] = draw(st.sampled_from(SPECIAL))
    if not (dtype.is_floating_point or dtype.is_complex):
        value = value.nan_to_num(0.0, 1.0, 1.0).abs()
    return value.to(dtype)


@pytest.mark.long
@given(tensors(), st.data())
def test_one_flipped_bit_shows(tensor: torch.Tensor, data: st.DataObject) -> None:
    if not tensor.numel():
        return
    changed = tensor.clone()
    if tensor.dtype == torch.bool:
        place = data.draw(st.integers(0, tensor.numel() - 1))
        changed.view(-1)[place] ^= True
    else:
        flat = changed.view(-1)
        if changed.is_complex():
            flat = torch.view_as_real(flat).view(-1)
        bits = flat.view(torch.uint8)
        bits[data.draw(st.integers(0, len(bits) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert sums_of({"a": tensor}) != sums_of({"a": changed})
    assert sums_of({"a": tensor}) == sums_of({"a": tensor.clone()})


@given(tensors(), st.data())
def test_elements_in_each_others_places_show(tensor: torch.Tensor, data: st.DataObject) -> None:
    if tensor.numel() < 2:
        return
    flat = tensor.view(-1)
    order = data.draw(st.permutations(range(len(flat))))
    moved = flat[torch.tensor(order)]
    is_same = moved.tolist() == flat.tolist() and not any(
        isinstance(one, float) and math.isnan(one) for one in flat.tolist()
    )
    if is_same or order == sorted(order):
        return
    if all(_bits(moved[place]) == _bits(flat[place]) for place in range(len(flat))):
        return
    assert sums_of({"a": tensor}) != sums_of({"a": moved.view(tensor.shape)})


def _bits(number: torch.Tensor) -> bytes:
    if number.dtype == torch.bfloat16:
        number = number.view(torch.int16)
    return number.numpy().tobytes()


@given(tensors(), tensors())
def test_swapped_tensors_show(one: torch.Tensor, other: torch.Tensor) -> None:
    here, there = sums_of({"a": one, "b": other}), sums_of({"a": other, "b": one})
    is_same = sums_of({"a": one})["a"] == sums_of({"a": other})["a"]
    assert (digest_of(here) == digest_of(there)) == is_same


def test_dtype_shape_and_sign_of_zero_show() -> None:
    values = [
        torch.zeros(2, 3), torch.zeros(3, 2), torch.zeros(6), torch.zeros(6, dtype=torch.int32),
        -torch.zeros(6), torch.zeros(0), torch.zeros(0, 3), torch.tensor(0.0), 0.0, 0, None,
    ]  # fmt: skip
    assert len({sums_of({"a": value})["a"] for value in values}) == len(values)


def test_strides_and_batches_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    value = torch.randn(64, 3, 5)
    dense = value.transpose(0, 2).contiguous()
    assert sums_of({"a": value.transpose(0, 2)}) == sums_of({"a": dense})

    def batched(blocks: Any) -> Any:  # as on a GPU
        yield list(blocks)

    state = {"a": value, "b": torch.randn(7), "empty": torch.zeros(0), "c": torch.ones(1)}
    alone = sums_of(state)
    monkeypatch.setattr(fingerprint, "_batches", batched)
    assert sums_of(state) == alone


def test_pieces_of_a_large_tensor_have_places() -> None:
    large = torch.randn(7 * PIECE // 2, dtype=torch.float64)
    swapped = torch.cat([large[PIECE : 2 * PIECE], large[:PIECE], large[2 * PIECE :]])
    assert sums_of({"a": large}) != sums_of({"a": swapped})


def test_a_gpu_has_the_numbers_of_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = fingerprint._weights(torch.device("cpu"))
    blocks = [torch.randint(-(2**62), 2**62, (3, PIECE)), torch.arange(5)]
    of_cpu = [fingerprint._sums_of_batch([block], torch.device("cpu")) for block in blocks]
    monkeypatch.setattr(fingerprint, "_weights", lambda device: weights)
    gpu: Any = SimpleNamespace(type="cuda")
    of_gpu = [fingerprint._sums_of_batch([block], gpu) for block in blocks]
    assert [one.tolist() for one in of_gpu] == [one.tolist() for one in of_cpu]


def test_errors_do_not_cancel_out_in_small_tensors() -> None:
    start = torch.zeros(4, dtype=torch.int32)
    sums = set()
    for code in range(3**4):
        digits = [code // 3**place % 3 - 1 for place in range(4)]
        sums.add(sums_of({"a": start + torch.tensor(digits, dtype=torch.int32)})["a"])
    assert len(sums) == 3**4


def test_the_state_of_a_training_is_named() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 2)).sum().backward()
    optimizer.step()
    state = state_of(model, [optimizer])
    assert "0.weight" in state
    assert "exp_avg of 0.weight" in state
    assert "1.running_mean" in state
    assert "1.num_batches_tracked" not in state  # Others may count what a rank has seen.
    before = sums_of(state)
    optimizer.state[model[0].weight]["exp_avg"][0, 0] += 1
    after = sums_of(state_of(model, [optimizer]))
    assert [name for name in before if before[name] != after[name]] == ["exp_avg of 0.weight"]


def test_the_rank_that_differs_is_named_and_what_in() -> None:
    same = {"a": 1, "b": 2, "c": 3}
    assert differences({0: same, 1: dict(same)}) == []
    (found,) = differences({0: {**same, "b": 9, "c": 9}, 1: same, 2: dict(same)})
    assert str(found) == "rank 0 differs from rank 1 in b and 1 more"
    (found,) = differences({0: same, 1: {"a": 1, "b": 2}})
    assert str(found) == "rank 1 differs from rank 0 in c"
    (found,) = differences({0: same, 1: {**same, "d": 4}})
    assert found.names == ("d",)


def test_new_code_is_compared_by_its_weights_first_then_by_all() -> None:
    trainer: Any = DDPTrainer.__new__(DDPTrainer)
    trainer.model = nn.Linear(2, 2)
    trainer.optimizer = torch.optim.AdamW(trainer.model.parameters())
    trainer.model(torch.ones(1, 2)).sum().backward()
    trainer.optimizer.step()
    trainer.config = SimpleNamespace(fingerprint_every=10)
    trainer.num_steps, trainer.generation, trainer.are_only_weights_compared = 25, 0, False
    trainer.world_size = 2

    def groups(step: int, generation: int) -> list[str]:
        return list(trainer.to_compare(step, generation))

    assert groups(1, 0) == []
    assert groups(10, 0) == [""]
    assert groups(11, 1) == [ONLY_WEIGHTS]
    assert groups(12, 1) == [""]
    assert groups(13, 1) == []
    assert groups(20, 2) == [""]  # All are due: nothing is left for the next.
    assert groups(21, 2) == []
    assert groups(23, 3) == [ONLY_WEIGHTS]
    assert groups(24, 4) == [""]  # Newer code does not put it off.
    assert groups(25, 5) == [""]  # There is no next.

    before = trainer.to_compare(11, 6)
    trainer.optimizer.state[trainer.model.weight]["exp_avg"] += 1
    trainer.generation = 0
    trainer.are_only_weights_compared = False
    assert trainer.to_compare(11, 6) == before
    with torch.no_grad():
        trainer.model.bias += 1
    trainer.generation, trainer.are_only_weights_compared = 0, False
    assert trainer.to_compare(11, 6) != before
    trainer.world_size = 1
    assert groups(30, 7) == []


def test_only_a_comparison_of_all_says_that_ranks_agree() -> None:
    alike = Alike(SimpleNamespace(), SimpleNamespace(is_ahead=True), dict, print)  # type: ignore[arg-type]
    alike.look(3, [{"": "a"}, {"": "a"}])
    alike.look(4, [{ONLY_WEIGHTS: "b"}, {ONLY_WEIGHTS: "b"}])
    assert (alike.agreed_step, alike.is_suspected) == (3, False)
    alike.look(5, [{ONLY_WEIGHTS: "b"}, {ONLY_WEIGHTS: "c"}])
    assert alike.is_suspected
