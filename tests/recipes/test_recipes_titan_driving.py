"""How the client drives a titan training, whatever the ranks do."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tests.recipes.titan_support  # noqa: F401
from monarch.runs import LineDisplay, Record
from monarch.runs.attempts import Attempt
from monarch.runs.restarts import Restarts
from monarch.runs.rows import read_rows
from monarch.runs.saving import Saving
from monarch_recipes import titan
from monarch_recipes.titan_config import TitanConfig, with_values
from monarch_recipes.titan_training import Setup, StepResult


class Short:
    """A driver whose data ends after three of ten steps."""

    setups: list[TitanConfig] = []  # noqa: RUF012 - of the last training

    def __init__(self, procs: Any) -> None:
        self.step_now = 0

    def setup(self, config: TitanConfig, unless: Any) -> Setup:
        self.setups.append(config)
        return Setup(0, 0, 10, 100, "FSDP 2", 0, "cpu", 0.1, None, ())

    def step(self) -> list[StepResult]:
        is_over = self.step_now == 3
        self.step_now += not is_over
        return [StepResult(0, self.step_now, {}, None, is_last=is_over)]

    def save(self) -> Path:
        return Path("step-3")

    def close(self) -> None:
        pass


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Record:
    monkeypatch.setattr(titan, "Driver", Short)
    Short.setups.clear()
    return Record(tmp_path, LineDisplay(io.StringIO()))


def attempt(record: Record, saved_step: int | None = None) -> Attempt:
    procs: Any = SimpleNamespace()
    return Attempt(procs, Saving(record, Restarts(1)), lambda step: None, 0, saved_step)


def test_what_was_learned_until_the_data_ended_is_saved(record: Record) -> None:
    outcome = titan.train(TitanConfig(), record, attempt(record))
    assert (outcome.step, outcome.checkpoint) == (3, Path("step-3"))
    assert [row["kind"] for row in read_rows(record.folder / "events.jsonl")][-1] == "saved"


def test_after_a_death_it_goes_on_from_what_this_run_has_saved(record: Record) -> None:
    config = with_values(TitanConfig(), checkpoint={"load_step": 100})
    for saved_step in (None, 150):
        titan.train(config, record, attempt(record, saved_step))
    titan.train(TitanConfig(), record, attempt(record, 150))
    assert [config.checkpoint.load_step for config in Short.setups] == [100, 150, -1]
