"""What a sweep tries, what it goes by, and whether compared runs ran the same code."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from monarch.cli.runs.runs import code_compared
from monarch.cli.sweep.search import (
    ListedProposals,
    TPEProposals,
    ValueRange,
    best_of,
    choices_of,
    corners_of,
    drawn_from,
    goal_of,
    space_of,
    value_of,
)
from monarch.errors import JobError
from monarch.runs.record.folder import RunFolder, new_run
from tests.cli.runs_folder import add_row


@dataclass
class Inner:
    seed: int = 1


@dataclass
class Config:
    rate: float = 1.0
    size: int = 8
    name: str = ""
    most: int | None = None
    data: Inner = field(default_factory=Inner)


def test_ranges_are_whole_where_their_key_is() -> None:
    texts = ["rate=1e-4..1e-2:log", "size=4..8", "data.seed=1,2", "most=1..3", "name=a"]
    assert space_of(Config, texts) == [
        ValueRange("rate", 1e-4, 1e-2, is_log=True, is_whole=False),
        ValueRange("size", 4, 8, is_log=False, is_whole=True),
        ["data.seed=1", "data.seed=2"],
        ValueRange("most", 1, 3, is_log=False, is_whole=True),
        ["name=a"],
    ]


@pytest.mark.parametrize("text", ["rate=3..1", "rate=0..1:log"])
def test_a_range_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(JobError, match="is no range: say the lower end"):
        space_of(Config, [text])


def test_a_range_has_no_combinations() -> None:
    with pytest.raises(JobError, match=r"rate is a range.*--random 20 tries values at random"):
        choices_of(space_of(Config, ["rate=0..1"]))


def test_random_runs_are_within_their_ranges_and_the_same_for_a_seed() -> None:
    space = space_of(Config, ["rate=1e-4..1e-2:log", "size=4..8", "name=a,b"])
    drawn = drawn_from(space, 200, 0)
    assert drawn == drawn_from(space, 200, 0) != drawn_from(space, 200, 1)
    rates = [float(given[0].removeprefix("rate=")) for given in drawn]
    assert 1e-4 <= min(rates) < max(rates) <= 1e-2
    assert 70 < sum(rate < 1e-3 for rate in rates) < 130, "half of them below the middle"
    assert {given[1] for given in drawn} == {f"size={size}" for size in range(4, 9)}
    assert {given[2] for given in drawn} == {"name=a", "name=b"}
    assert corners_of(space) == [
        ("rate=0.0001", "size=4", "name=a"), ("rate=0.01", "size=8", "name=b"),
    ]  # fmt: skip


def test_listed_runs_come_one_by_one() -> None:
    proposals = ListedProposals([("a=1",), ("a=2",)])
    assert [proposals.next() for _ in range(3)] == [("a=1",), ("a=2",), None]


class FakeOptuna:
    """Optuna's ask and tell: a trial is told once, with a value or a state, never both."""

    def __init__(self) -> None:
        self.logging = SimpleNamespace(WARNING=30, set_verbosity=lambda level: None)
        self.trial = SimpleNamespace(TrialState=SimpleNamespace(FAIL="fail"))
        self.samplers = SimpleNamespace(TPESampler=lambda *, seed=None: ("tpe", seed))
        self.told: list[tuple[int, float | None, str | None]] = []
        self.num_asked = 0
        self.made: dict[str, Any] = {}

    def create_study(self, *, direction: str, sampler: Any) -> FakeOptuna:
        assert direction in ("minimize", "maximize")
        self.made = {"direction": direction, "sampler": sampler}
        return self

    def ask(self) -> Any:
        number, self.num_asked = self.num_asked, self.num_asked + 1

        def suggest_float(name: str, low: float, high: float, *, log: bool = False) -> float:
            return low + (high - low) * (number / 10)

        def suggest_int(name: str, low: int, high: int, *, log: bool = False) -> int:
            assert isinstance(low, int)
            return min(high, low + number)

        return SimpleNamespace(
            number=number, suggest_float=suggest_float, suggest_int=suggest_int,
            suggest_categorical=lambda name, choices: choices[number % len(choices)],
        )  # fmt: skip

    def tell(self, trial: Any, values: float | None = None, state: str | None = None) -> None:
        assert (values is None) != (state is None)
        assert values is None or math.isfinite(values)
        assert trial.number not in [number for number, _, _ in self.told]
        self.told.append((trial.number, values, state))


def test_optuna_proposes_runs_and_hears_what_came_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    library = FakeOptuna()
    monkeypatch.setitem(sys.modules, "optuna", library)
    space = space_of(Config, ["rate=0..1", "size=4..8", "name=a,b", "data.seed=3"])
    proposals = TPEProposals(space, 3, seed=7, goal="max")
    assert library.made == {"direction": "maximize", "sampler": ("tpe", 7)}
    given = [proposals.next() for _ in range(4)]
    assert given == [
        ("rate=0", "size=4", "name=a", "data.seed=3"),
        ("rate=0.1", "size=5", "name=b", "data.seed=3"),
        ("rate=0.2", "size=6", "name=a", "data.seed=3"),
        None,
    ]
    for one, value in (given[1], 0.5), (given[0], None), (given[2], float("nan")):
        assert one is not None
        proposals.tell(one, value)
    assert library.told == [(1, 0.5, None), (0, None, "fail"), (2, None, "fail")]


def test_optuna_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(JobError, match="not installed: pip install optuna"):
        TPEProposals([["a=1"]], 1, 0, "min")


@pytest.mark.parametrize(
    ("name", "goal"),
    [
        ("held_out_loss", "min"), ("loss", "min"), ("held_out_accuracy", "max"), ("mae", "min"),
        ("top_5_acc", "max"), ("samples_per_second", "max"), ("validation_f1", "max"),
    ],
)  # fmt: skip
def test_which_way_is_better_is_told_by_the_name(name: str, goal: str) -> None:
    assert goal_of(name) == goal


def a_run(base: Path, name: str, **values: float) -> RunFolder:
    run = new_run(name, base)
    run.write_text("command", "monarch run ddp\n")
    add_row(run, "metrics.jsonl", step=1, num_steps=1, **values)
    add_row(run, "events.jsonl", kind="ended", status="finished", text="finished", time=1.0)
    return run


def test_the_best_run_is_that_of_the_held_out_values(tmp_path: Path) -> None:
    one = a_run(tmp_path, "one", loss=0.1, held_out_loss=0.9, held_out_accuracy=0.5)
    two = a_run(tmp_path, "two", loss=0.2, held_out_loss=0.8, held_out_accuracy=0.4)
    assert best_of([one, two]) == f"best held_out_loss (lowest): 0.8, of {two.name}"
    assert best_of([one, two], "loss") == f"best loss (lowest): 0.1, of {one.name}"
    by_name = best_of([one, two], "held_out_accuracy")
    assert by_name == f"best held_out_accuracy (highest): 0.5, of {one.name}"
    assert "0.4" in best_of([one, two], "held_out_accuracy", "min")
    failed = a_run(tmp_path, "three", held_out_loss=float("nan"))
    assert best_of([one, two, failed], "held_out_loss").endswith("; 1 of 3 runs have none")


def test_a_metric_that_no_run_has_is_told_with_those_there_are(tmp_path: Path) -> None:
    run = a_run(tmp_path, "one", loss=0.1, held_out_mae=0.9)
    assert value_of(run, "") == 0.9
    with pytest.raises(JobError, match="has no 'mae'; it has: loss, held_out_mae"):
        value_of(run, "mae")


def test_whether_the_code_of_runs_differs_is_told(tmp_path: Path) -> None:
    runs = [a_run(tmp_path, name, loss=1.0) for name in ("one", "two")]
    for run in runs:
        run.write_json("env.json", {"code_digest": "abc" * 8, "git_commit": "f00"})
    assert code_compared(runs) == "the code of these runs is the same"
    add_row(runs[1], "events.jsonl", kind="generation", text="", digest="def" * 8)
    assert code_compared(runs) == (
        f"the code of these runs differs: {runs[0].name} abcabcabcabc, {runs[1].name} defdefdefdef"
    )
    other = a_run(tmp_path, "three", loss=1.0)
    other.write_json("env.json", {"code_digest": "", "git_commit": "bar"})
    assert "is not known of three" in code_compared([runs[0], other])
    assert "their commits differ" in code_compared([runs[0], other])
