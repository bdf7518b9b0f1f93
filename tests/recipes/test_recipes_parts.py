"""What recipes share: the order of samples, devices, parts that a task replaces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from monarch.config_file import ConfigError
from monarch_recipes.device import use_device
from monarch_recipes.optimizer import clip_gradient, set_rates
from monarch_recipes.precision import Precision
from monarch_recipes.samples import SampleError, SampleOrder, TooFewSamples, batches
from monarch_recipes.task import own_part, part, tell_of_lost_parts
from monarch_reload import ReloadReport

CPU = torch.device("cpu")


def orders(world_size: int, per_rank: int) -> list[SampleOrder]:
    return [SampleOrder(50, per_rank, rank, world_size, seed=1) for rank in range(world_size)]


def test_all_ranks_together_see_the_same_samples_however_many_they_are() -> None:
    two, four = orders(2, 8), orders(4, 4)
    assert {order.num_steps_per_epoch for order in two + four} == {3}
    for step in range(7):
        seen = [sorted(index for order in some for index in order.of(step)) for some in (two, four)]
        assert seen[0] == seen[1]
        assert len(set(seen[0])) == 16
    assert two[0].of(0) != two[0].of(3), "each epoch has an order of its own"


def test_the_samples_of_a_step_depend_on_nothing_else() -> None:
    (straight,), (resumed,) = orders(1, 16), orders(1, 16)
    assert [straight.of(step) for step in range(8)][5:] == [resumed.of(step) for step in (5, 6, 7)]


def test_a_step_that_wants_more_than_there_is() -> None:
    with pytest.raises(TooFewSamples, match="2 ranks with 26 samples each want more than the 50"):
        orders(2, 26)


def test_a_sample_that_cannot_be_read_is_named() -> None:
    class Data:
        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            if index == 7:
                raise OSError("the shard is gone")
            return torch.full((2,), float(index)), index

    (inputs, labels), last = batches(Data(), [1, 2, 3], 2, CPU, "rank 0")
    assert (inputs.shape, labels.tolist(), last[1].tolist()) == ((2, 2), [1, 2], [3])
    with pytest.raises(SampleError, match=r"^rank 0 could not read sample 7: OSError: the shard"):
        list(batches(Data(), [5, 6, 7], 2, CPU, "rank 0"))


def compute_loss() -> str:
    return "of the recipe"


def test_a_task_replaces_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "task_with_loss.py").write_text("def compute_loss(): return 'of the task'\n")
    (tmp_path / "task_without.py").write_text("")
    (tmp_path / "task_broken.py").write_text("import no_such_library\n")
    assert part(None, compute_loss)() == "of the recipe"
    assert part("task_without", compute_loss)() == "of the recipe"
    assert part("task_with_loss", compute_loss)() == "of the task"
    with pytest.raises(ConfigError, match="a module that cannot be found: no_such_task") as caught:
        part("no_such_task", compute_loss)
    assert caught.value.key == "task"
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        part("task_broken", compute_loss)


def test_a_part_that_a_task_has_no_longer_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "task_edited.py").write_text("def compute_loss(): return 'of the task'\n")

    def told() -> list[str]:
        change = ReloadReport()
        tell_of_lost_parts("task_edited", change)
        return change.warnings

    part("task_edited", compute_loss)
    assert own_part("task_edited", "evaluate") is None
    assert told() == []
    monkeypatch.delattr("task_edited.compute_loss")
    assert told() == [
        "task_edited has no compute_loss any more: the recipe goes on with its own, if any"
    ]
    assert told() == []


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert use_device("auto", 3, torch.get_num_threads()) == CPU
    with pytest.raises(ConfigError, match=r"asks for a GPU, and .* has none"):
        use_device("cuda", 0, 1)


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [("float32", torch.float32), ("bfloat16", torch.bfloat16), ("float16", torch.float16)],
)
def test_precision(precision: str, dtype: Any) -> None:
    with Precision(precision, CPU).autocast():
        assert torch.nn.Linear(2, 2)(torch.ones(1, 2)).dtype == dtype


def test_rates_and_clipping() -> None:
    model = torch.nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0, weight_decay=0.5)
    set_rates(optimizer, 0.25)
    assert (optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["weight_decay"]) == (
        0.25, 0.5,
    )  # fmt: skip
    model.weight.grad = torch.full((1, 1), 3.0)
    assert clip_gradient(model, None) == 3.0
    assert float(model.weight.grad) == 3.0
    assert clip_gradient(model, 1.5) == 3.0
    assert float(model.weight.grad) == pytest.approx(1.5)
