"""How the client drives a titan training, whatever the ranks do."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tests.recipes.titan_support  # noqa: F401
from monarch.observe.json_rows import json_rows
from monarch.runs import LineDisplay, Record
from monarch.runs.attempts import TrainingAttempt
from monarch.runs.record.record import EVENTS, METRICS
from monarch.runs.recover.restarts import Restarts
from monarch.runs.recover.saving import Saving
from monarch_recipes.titan import recipe as titan
from monarch_recipes.titan.checkpoints import Saved
from monarch_recipes.titan.config import TitanConfig, with_values
from monarch_recipes.titan.training import Setup, TitanStep


class Short:
    """A driver whose data ends after three of ten steps."""

    setups: list[TitanConfig] = []  # noqa: RUF012 - of the last training

    def __init__(
        self, procs: Any, record: Any = None, memory: Any = None, save: Any = None
    ) -> None:
        self.step_now = 0

    def setup(self, config: TitanConfig, unless: Any, copies: Any = None) -> Setup:
        self.setups.append(config)
        return Setup(0, 0, 10, 100, "FSDP 2", 0, "cpu", 0.1, None, ())

    def step(self) -> list[TitanStep]:
        is_over = self.step_now == 3
        self.step_now += not is_over
        return [TitanStep(0, self.step_now, {"loss": 1.0}, is_last=is_over)]

    def save_if_due(self) -> Saved:
        raise AssertionError("none is due")

    def save(self) -> Path:
        return Path("step-3")

    def close(self) -> None:
        pass


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Record:
    monkeypatch.setattr(titan, "Driver", Short)
    Short.setups.clear()
    return Record(tmp_path, LineDisplay(io.StringIO()))


def attempt(record: Record, saved_step: int | None = None) -> TrainingAttempt:
    procs: Any = SimpleNamespace()
    saving = Saving(record, Restarts(1), saved_step)
    return TrainingAttempt(
        procs, procs, saving, lambda step: None, num_restarts=0, saved_step=saved_step
    )


def test_what_was_learned_until_the_data_ended_is_saved(record: Record) -> None:
    outcome = titan.train(TitanConfig(), record, attempt(record))
    assert (outcome.step, outcome.checkpoint) == (3, Path("step-3"))
    assert [row["kind"] for row in json_rows(record.folder / "events.jsonl")][-1] == "saved"


def test_after_a_death_it_goes_on_from_what_this_run_has_saved(record: Record) -> None:
    config = with_values(TitanConfig(), checkpoint={"load_step": 100})
    for saved_step in (None, 150):
        titan.train(config, record, attempt(record, saved_step))
    titan.train(TitanConfig(), record, attempt(record, 150))
    assert [config.checkpoint.load_step for config in Short.setups] == [100, -1, -1]


def test_that_a_checkpoint_went_with_its_host_is_told(record: Record) -> None:
    """The driver finds none, as on a host that replaces the one that saved."""
    later = attempt(record, 150)
    titan.train(TitanConfig(), record, later)
    told = json_rows(record.folder / "events.jsonl")[0]
    assert (told["kind"], told["step"]) == ("skipped", 0)
    assert "the checkpoint after step 150: going on from the beginning" in told["text"]
    assert later.saving.saved_step == 3


class Saves(Short):
    """Saves after each step; what is there of the step by then is in `noted`."""

    noted: list[list[int]] = []  # noqa: RUF012 - of the last training
    metrics = Path()

    def step(self) -> list[TitanStep]:
        return [dataclasses.replace(result, is_save_due=True) for result in super().step()]

    def save_if_due(self) -> Saved:
        self.noted.append([row["step"] for row in json_rows(self.metrics)])
        # As one does that is written in the background: it tells of the step before.
        return Saved(Path(f"step-{self.step_now - 1}"), self.step_now - 1)


def test_a_step_is_written_down_before_it_is_saved(
    record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that dies between the two would cost the row: all go on after the checkpoint."""
    monkeypatch.setattr(titan, "Driver", Saves)
    Saves.noted.clear()
    Saves.metrics = record.folder / METRICS
    titan.train(TitanConfig(), record, attempt(record))
    assert Saves.noted[:3] == [[1], [1, 2], [1, 2, 3]]
    saved = [row["step"] for row in json_rows(record.folder / EVENTS) if row["kind"] == "saved"]
    assert saved[:3] == [0, 1, 2]


class Shadowed(Short):
    """Makes eight steps, and is asked for copies."""

    shadowed: list[int] = []  # noqa: RUF012 - of the last training

    def step(self) -> list[TitanStep]:
        self.step_now += 1
        return [TitanStep(0, self.step_now, {"loss": 1.0}, is_last=self.step_now == 8)]

    def shadow(self) -> None:
        self.shadowed.append(self.step_now)


def test_copies_are_made_every_so_many_steps_but_not_after_the_last(
    record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(titan, "Driver", Shadowed)
    config = with_values(TitanConfig(), fault_tolerance={"shadow_every": 2})
    titan.train(config, record, attempt(record))
    assert Shadowed.shadowed == [2, 4, 6]
