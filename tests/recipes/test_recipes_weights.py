"""Means that are weighted: a batch teaches the same, whoever shares it."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install 'monarch-loop[train]'")

import torch
from torch import nn

from monarch_recipes.collective import NonFiniteLoss, check_weight
from monarch_recipes.ddp import DDPConfig
from monarch_recipes.memory import memory_of_step
from monarch_recipes.samples import SampleOrder
from monarch_recipes.tally import Tally, accuracy, sum_and_weight

# All scenarios are run by the first test that looks.
pytestmark = pytest.mark.timeout(300)

HERE = Path(__file__).parent
CPU = torch.device("cpu")


@pytest.fixture
def masked_task(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(HERE))
    import masked_task

    return masked_task


def whole_batch(task: Any, seed: int, batch: int, *, step: int = 0) -> dict[str, Any]:
    """What one process finds that sees all of a batch at once."""
    order = SampleOrder(len(task.load_data(None).train), batch, 0, 1, seed=DDPConfig.data_seed)
    texts = task.load_data(None).train
    indices = order.of(step)
    torch.manual_seed(seed)
    model = task.build_model(None)
    logits, labels = model(texts.letters[indices]), texts.labels[indices]
    total, weight = task.compute_loss(logits, labels)
    (total / weight).backward()
    right, counted = task.metrics(logits, labels)["letters_right"]
    return {
        "loss": float(total.detach() / weight),
        "letters_right": float(right / counted),
        "gradient": torch.cat([p.grad.reshape(-1) for p in model.parameters()]),
    }


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], list[dict[str, Any]]]:
    """What each rank found in the scenarios of weights_rank.py, by how many there were."""
    folder = tmp_path_factory.mktemp("weights")
    command = [sys.executable, str(HERE / "weights_rank.py"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return lambda num_ranks: [
        json.loads((folder / f"{num_ranks}-{rank}.json").read_text()) for rank in range(num_ranks)
    ]


@pytest.mark.long
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
@pytest.mark.parametrize("micro_batch_size", [1, 2, 8])
def test_masked_labels_weigh_the_same_whoever_shares_the_batch(
    ranks: Callable[[int], list[dict[str, Any]]],
    num_ranks: int,
    micro_batch_size: int,
    masked_task: Any,
) -> None:
    whole = whole_batch(masked_task, DDPConfig.seed, 16)
    for rank in ranks(num_ranks):
        found = rank[str(micro_batch_size)]
        off = torch.tensor(found["gradient"]) - whole["gradient"]
        assert float(off.norm() / whole["gradient"].norm()) < 1e-6
        assert found["loss"] == pytest.approx(whole["loss"], rel=1e-6)
        assert found["letters_right"] == pytest.approx(whole["letters_right"], rel=1e-6)


def test_the_statistics_of_ranks_are_averaged(
    ranks: Callable[[int], list[dict[str, Any]]],
) -> None:
    found = [rank["buffers"] for rank in ranks(4)]
    assert found[0]["before"] != found[1]["before"]
    mean = torch.tensor([one["before"] for one in found]).mean(0).tolist()
    for one in found:
        assert one["after"] == pytest.approx(mean, rel=1e-6)
        assert one["after"] == found[0]["after"]


def test_a_mean_is_that_of_its_samples() -> None:
    tally = Tally()
    tally.add("loss", torch.tensor(2.0), 3)
    tally.add("loss", torch.tensor(6.0), 1)
    tally.add("tokens", (torch.tensor(5.0), 10), 1)
    packed = tally.packed(CPU, 0.25).tolist()
    assert packed == [12.0, 4.0, 5.0, 10.0, 0.25]
    assert tally.means(packed) == {"loss": 3.0, "tokens": 0.5}
    assert math.isnan(tally.means([1.0, 0.0, 5.0, 10.0])["loss"])


def test_a_loss_for_each_sample_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match=r"a tensor of shape \(4,\)\. Return a mean"):
        sum_and_weight(torch.ones(4), 4)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (None, "this is None; is a `return` missing?"),
        ("loss", "this is a str"),
        ((1.0, 2.0, 3.0), "this is a tuple"),
        ((torch.ones(1), None), "this is a tuple"),
    ],
)
def test_what_is_no_number_is_refused_in_words(value: Any, told: str) -> None:
    with pytest.raises(TypeError, match=rf"a mean over the samples.*{re.escape(told)}"):
        sum_and_weight(value, 4)


def test_a_batch_without_any_weight_is_told() -> None:
    with pytest.raises(NonFiniteLoss, match="step 7 has a weight of 0, as where every label"):
        check_weight(0.0, 7)


def test_accuracy_is_there_where_there_are_classes() -> None:
    logits = torch.tensor([[0.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
    right, weight = accuracy(logits, torch.tensor([1, 1, -100]))["accuracy"]  # type: ignore[misc]
    assert (int(right), int(weight)) == (1, 2)
    assert accuracy(torch.zeros(3, 1), torch.zeros(3, 1)) == {}
    assert accuracy(torch.zeros(3, 8, 5), torch.zeros(3, 8, dtype=torch.int64)) == {}
    assert accuracy((logits, logits), torch.tensor([1, 1, 0])) == {}


def test_memory_is_planned_for_a_loss_with_a_weight(masked_task: Any) -> None:
    memory = memory_of_step(
        lambda: nn.Sequential(nn.Embedding(7, 5), nn.Linear(5, 7)),
        masked_task.compute_loss, masked_task.Texts(1)[0], 4,
    )  # fmt: skip
    assert memory.num_parameters == 7 * 5 + 5 * 7 + 7
