"""Ranks are asked for a step while they make the one before it; nothing else changes by that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch.config import configured
from monarch.runs.hold import holding
from monarch_recipes.checkpoint import checkpoint_paths, load_checkpoint
from tests.recipes.held_run import TASK, HeldRun, project

pytestmark = pytest.mark.timeout(300)

STEPS = 44
NOT_DEFINED = TASK.replace("(logits, labels)\n\n", "(logits, labelz)\n\n")


class Shown(HeldRun):
    """Its display lets ranks go ahead of it."""

    only_shows = True


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    with project(tmp_path, TASK) as made, configured(edit_patience_seconds=2.0):
        yield made


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether ranks were asked ahead, for each time that they might have been. On a machine under
    load steps are short, too."""
    monkeypatch.setattr(holding.Holding, "ahead_seconds", 60.0)
    found: list[bool] = []
    decide = holding.Holding._may_go_ahead

    def noted(self: holding.Holding) -> bool:
        found.append(decide(self))
        return found[-1]

    monkeypatch.setattr(holding.Holding, "_may_go_ahead", noted)
    return found


def checkpoints(run: HeldRun) -> list[str]:
    return [path.name for path in checkpoint_paths(run.record.checkpoint_dir)]


@pytest.mark.long
def test_a_run_that_goes_ahead_learns_saves_and_tells_the_same(
    root: Path, ahead: list[bool]
) -> None:
    every = {"evaluate_every": 7, "checkpoint_every": 5, "num_checkpoints_kept": 20}
    one_by_one, shown = HeldRun(root, "one", **every), Shown(root, "shown", **every)
    one_by_one.start()
    one_by_one.end()
    assert not ahead, "whoever is told of a step may do something about the next"
    shown.start()
    shown.end()
    assert shown.error is None, shown.error
    assert ahead.count(True) > STEPS / 2
    assert shown.steps == one_by_one.steps == list(range(1, STEPS + 1))
    assert checkpoints(shown) == checkpoints(one_by_one)
    assert shown.digest() == one_by_one.digest()
    first = checkpoint_paths(shown.record.checkpoint_dir)[0]
    assert load_checkpoint(first).state["step"] == 5


@pytest.mark.long
def test_an_edit_that_fails_holds_a_run_that_was_ahead(root: Path, ahead: list[bool]) -> None:
    undisturbed, run = HeldRun(root, "undisturbed"), Shown(root)
    undisturbed.start()
    undisturbed.end()
    run.at[10] = lambda: run.push("task.py", NOT_DEFINED)
    try:
        run.start()
        held = run.when_held()
        assert held["in_place"], run.said
        assert held["ranks"] == [0, 1], "all ranks have the new code in the same step"
        # One step more than without: ranks had been asked for it when the push came.
        assert held["doing"] == "step 12"
        num_asked = len(ahead)
        assert run.push("task.py", TASK + "# mended\n").ok
        run.end()
    finally:
        run.stop()
    assert run.error is None, run.error
    assert run.steps == list(range(1, STEPS + 1)), "no step is made twice, or left out"
    assert run.digest() == undisturbed.digest()
    assert not any(ahead[num_asked:]), "newer code is on trial, one step after the other"


@pytest.mark.long
def test_a_run_that_is_stopped_saves_what_ranks_were_asked_for(root: Path) -> None:
    run = Shown(root)
    run.at[10] = run.record.stop
    run.start()
    run.end()
    assert run.error is None, run.error
    assert run.outcome.step in (10, 11)
    assert run.steps == list(range(1, run.outcome.step + 1))
    (path,) = checkpoint_paths(run.record.checkpoint_dir)
    assert load_checkpoint(path).state["step"] == run.outcome.step
