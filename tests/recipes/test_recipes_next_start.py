"""Edits of what only ran at the start: tried against the model that is there, and told."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from monarch_recipes.checkpoint import Checkpoint, CheckpointMisfit, check_model, check_optimizer
from monarch_recipes.next_start import Builders, NextStart, tell_of_next_start
from monarch_reload import ReloadReport


def _small() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))


def _wide() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1))


def _deep() -> nn.Module:
    return nn.Sequential(*_small(), nn.Linear(1, 1))


def _flat() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 3))


def _broken() -> nn.Module:
    raise ValueError("no such layer")


def _looking() -> nn.Module:
    model = _wide()
    assert float(model[0].weight.sum()) != 1e9  # has no value on the meta device
    return model


def _adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters())


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), momentum=0.9)


def _told(change: ReloadReport, build: Callable[[], nn.Module], live: nn.Module) -> None:
    tell_of_next_start(change, build, _adam, live, _adam(live))


@pytest.mark.parametrize(
    ("build", "told"),
    [
        (_small, ""),
        (_wide, "'0.weight' has the shape (4, 2) in the new model, and (3, 2) in this one"),
        (_deep, "the new model has '3.weight'"),
        (_flat, "the new model has no '2.weight'"),
        (_broken, "building it anew raises ValueError: no such layer"),
        (_looking, "'0.weight' has the shape (4, 2)"),
    ],
)
def test_what_the_next_start_would_make_of_it(build: Callable[[], nn.Module], told: str) -> None:
    change = ReloadReport(at_start=["my_task.build_model"])
    before = torch.get_rng_state()
    _told(change, build, _model := _small())
    if not told:
        assert change.warnings == []
    else:
        (warning,) = change.warnings
        assert told in warning
        assert "next start" in warning
    assert sum(p.numel() for p in _model.parameters()) == 13
    torch.manual_seed(0)
    before = torch.get_rng_state()
    _told(ReloadReport(at_start=["x"]), build, _model)
    assert torch.equal(torch.get_rng_state(), before)


def test_other_edits_make_no_model() -> None:
    change = ReloadReport(functions=["my_task.compute_loss"])
    _told(change, _broken, _small())
    assert change.warnings == []


def test_another_optimizer_is_told_as_well() -> None:
    live = _small()
    for build, told in ((_adam, 0), (_sgd, 1)):
        change = ReloadReport(at_start=["my_task.build_optimizer"])
        tell_of_next_start(change, _small, build, live, _adam(live))
        assert len(change.warnings) == told
    assert "of another kind: it has no 'dampening'" in change.warnings[0]


def test_since_which_generation_it_does_not_fit() -> None:
    live = _small()

    def look(generation: int, model: Callable[[], nn.Module], edited: str = "_small") -> int:
        def _small(config: object) -> nn.Module:
            return model()

        change = ReloadReport(at_start=[edited] if edited else [])
        now = Builders(None, _small, lambda config, new: _adam(new))
        next_start.look(change, now, live, _adam(live), generation=generation)
        return next_start.unfit_since

    next_start = NextStart(())
    assert look(4, _small) == 0
    assert look(5, _wide) == 5
    assert look(6, _wide, edited="") == 5, "another edit"
    assert look(7, _deep) == 5
    assert look(8, _small) == 0
    assert look(9, _broken) == 9
    assert look(8, _small) == 0, "taken back"


def test_an_optimizer_of_a_tasks_own_that_was_not_there_before_is_told() -> None:
    live = _small()
    builders = Builders(None, lambda config: _small(), lambda config, model: _adam(model))
    next_start = NextStart(builders.names)
    own = Builders(None, builders.model, lambda config, model: _sgd(model))
    own.optimizer.__qualname__ = "build_optimizer"
    change = ReloadReport(modules=["task"])
    next_start.look(change, own, live, _adam(live), generation=2)
    counts, misfit = change.warnings
    assert "build_optimizer counts from the next start of the run" in counts
    assert "of another kind" in misfit
    again = ReloadReport(modules=["task"])
    next_start.look(again, own, live, _adam(live), generation=3)
    assert again.warnings == []
    assert next_start.unfit_since == 2


def _checkpoint(model: nn.Module, optimizer: torch.optim.Optimizer) -> Checkpoint:
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "generation": 3}
    return Checkpoint(7, Path("step-00000007.pt"), state)


def test_a_restart_says_that_an_edit_changed_the_model() -> None:
    saved = _checkpoint(_small(), torch.optim.AdamW(_small().parameters()))
    check_model(saved, _small(), generation=5)
    with pytest.raises(CheckpointMisfit, match=r"of another model.*generation 3.*generation 5"):
        check_model(saved, _wide(), generation=5)
    with pytest.raises(CheckpointMisfit, match="of another model") as caught:
        check_model(saved, _wide(), generation=3)
    assert "generation" not in str(caught.value)
    with pytest.raises(CheckpointMisfit, match="Generation 4 of the code changed") as caught:
        check_model(saved, _wide(), generation=4)
    assert pickle.loads(pickle.dumps(caught.value)).good_generation == 3
    saved.state["unfit_since"] = 2
    for generation in (3, 8):
        with pytest.raises(CheckpointMisfit, match="Generation 2 of the code changed") as caught:
            check_model(saved, _wide(), generation=generation)
        assert caught.value.good_generation == 1


def test_a_restart_says_that_an_edit_changed_the_optimizer() -> None:
    model = _small()
    saved = _checkpoint(model, torch.optim.AdamW(model.parameters()))
    check_optimizer(saved, torch.optim.AdamW(model.parameters(), lr=1.0), generation=5)
    with pytest.raises(CheckpointMisfit, match=r"than SGD: it has no 'dampening'.*generation 5"):
        check_optimizer(saved, torch.optim.SGD(model.parameters(), momentum=0.9), generation=5)
    with pytest.raises(CheckpointMisfit, match="grouped otherwise"):
        check_optimizer(saved, torch.optim.AdamW(_deep().parameters()))
