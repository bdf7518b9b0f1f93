"""Chooses the values that a sweep tries: all combinations, random values, or proposals of Optuna's
TPE from earlier results; and picks the best run.
"""

from __future__ import annotations

import importlib
import itertools
import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args, get_origin, get_type_hints

from monarch.config_file.types import is_config
from monarch.errors import JobError
from monarch.runs.record.folder import RunFolder
from monarch.runs.record.measured import is_number, last_measured, names_measured

Goal = Literal["min", "max"]
Given = tuple[str, ...]
"""The ``key=value`` texts of one run."""

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})(:log)?")
_HELD_OUT = "held_out_"
TPE_METRIC = "held_out_loss"
_FIRST = ("held_out_loss", "validation_loss", "held_out_accuracy")
_BETTER_HIGH = (
    "accuracy", "acc", "f1", "auc", "precision", "recall", "iou", "map", "bleu", "rouge", "reward",
    "score", "r2", "per_second",
)  # fmt: skip


@dataclass(frozen=True)
class ValueRange:
    """A range of values, ``key=low..high``, both ends included.

    With ``:log`` after it, values are spread by order of magnitude.
    """

    key: str
    low: float
    high: float
    is_log: bool
    is_whole: bool

    def text(self, value: float) -> str:
        """Return an override with this value."""
        return f"{self.key}={int(value) if self.is_whole else f'{value:.6g}'}"

    def drawn(self, draw: random.Random) -> str:
        """Return an override with a random value."""
        if self.is_log:
            value = math.exp(draw.uniform(math.log(self.low), math.log(self.high)))
        else:
            value = draw.uniform(self.low, self.high)
        return self.text(round(value) if self.is_whole else value)


Dimension = list[str] | ValueRange
"""The overrides for one key: some, or a range of them."""


class Proposals(Protocol):
    """The settings of a sweep's runs; each is requested when a slot is free, by one thread at a
    time."""

    num: int

    def next(self) -> Given | None:
        """Return the next settings; ``None`` if there are no more."""

    def tell(self, overrides: Given, value: float | None) -> None:
        """Report the metric of a run that has ended; ``None`` if it has none."""


class ListedProposals:
    """A fixed list of proposals."""

    def __init__(self, all_given: Sequence[Given]) -> None:
        self.num = len(all_given)
        self._remaining = iter(all_given)

    def next(self) -> Given | None:
        return next(self._remaining, None)

    def tell(self, overrides: Given, value: float | None) -> None:
        """Ignore the result, because the proposals do not depend on it."""


class TPEProposals:
    """Proposals of Optuna's TPE, which prefers values like those that gave good results."""

    def __init__(self, space: Sequence[Dimension], num: int, seed: int, goal: Goal) -> None:
        try:
            library = importlib.import_module("optuna")
        except ImportError:
            raise JobError(
                "--tpe takes optuna, which is not installed: pip install optuna"
            ) from None
        library.logging.set_verbosity(library.logging.WARNING)
        self.num = num
        self._space, self._num_left = space, num
        self._failed = library.trial.TrialState.FAIL
        self._study = library.create_study(
            direction="minimize" if goal == "min" else "maximize",
            sampler=library.samplers.TPESampler(seed=seed),
        )
        self._asked: dict[Given, list[Any]] = {}

    def next(self) -> Given | None:
        if not self._num_left:
            return None
        self._num_left -= 1
        trial = self._study.ask()
        overrides = tuple(_suggested(trial, dim) for dim in self._space)
        self._asked.setdefault(overrides, []).append(trial)
        return overrides

    def tell(self, overrides: Given, value: float | None) -> None:
        trial = self._asked[overrides].pop(0)
        if value is None or not math.isfinite(value):
            self._study.tell(trial, state=self._failed)
        else:
            self._study.tell(trial, value)


def _suggested(trial: Any, dim: Dimension) -> str:
    if isinstance(dim, ValueRange):
        suggest = trial.suggest_int if dim.is_whole else trial.suggest_float
        low, high = (int(dim.low), int(dim.high)) if dim.is_whole else (dim.low, dim.high)
        return dim.text(suggest(dim.key, low, high, log=dim.is_log))
    if len(dim) == 1:
        return dim[0]
    return str(trial.suggest_categorical(dim[0].partition("=")[0], dim))


def space_of(config_class: type[Any], overrides: Sequence[str]) -> list[Dimension]:
    """Parse ``a=1,2 b=3 c=0..1`` as two values, one value, and a range. Keys that take lists, and
    text in brackets or quotes, have one value. Raises ``JobError`` for an invalid range.
    """
    hints = dict(_hints(config_class))
    space: list[Dimension] = []
    for override in overrides:
        key, equals, text = (part.strip() for part in override.partition("="))
        hint = hints.get(key)
        is_list = get_origin(hint) in (list, tuple, dict)
        if match := _RANGE.fullmatch(text):
            low, high, is_log = float(match[1]), float(match[2]), bool(match[3])
            if not low < high or (is_log and low <= 0):
                above = " above 0" if is_log else ""
                raise JobError(f"{override} is no range: say the lower end{above} first")
            is_whole = hint is int or (int in get_args(hint) and float not in get_args(hint))
            space.append(ValueRange(key, low, high, is_log, is_whole))
        elif not equals or is_list or text[:1] in "[\"'{":
            space.append([override])
        else:
            space.append([f"{key}={value.strip()}" for value in text.split(",")])
    return space


def _hints(config_class: type[Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, hint in get_type_hints(config_class).items():
        if is_config(hint):
            yield from _hints(hint, f"{above}{name}.")
        else:
            yield above + name, hint


def choices_of(space: Sequence[Dimension]) -> list[Given]:
    """Return all combinations. Raises ``JobError`` if there is a range."""
    choices = []
    for dim in space:
        if isinstance(dim, ValueRange):
            raise JobError(
                f"{dim.key} is a range, of which there are no combinations: --random 20 "
                "tries values at random, --tpe 20 those that promise most"
            )
        choices.append(dim)
    return list(itertools.product(*choices))


def drawn_from(space: Sequence[Dimension], num: int, seed: int) -> list[Given]:
    """Return ``num`` random settings; the same ``seed`` gives the same settings."""
    draw = random.Random(seed)
    return [
        tuple(dim.drawn(draw) if isinstance(dim, ValueRange) else draw.choice(dim) for dim in space)
        for _ in range(num)
    ]


def corners_of(space: Sequence[Dimension]) -> list[Given]:
    """Return settings that test whether the config accepts all values: ends of ranges, each
    choice."""
    choices = [
        [dim.text(dim.low), dim.text(dim.high)] if isinstance(dim, ValueRange) else dim
        for dim in space
    ]
    return [
        tuple(values[min(index, len(values) - 1)] for values in choices)
        for index in range(max(map(len, choices)))
    ]


def label_of(values: Sequence[str], overrides: Sequence[str]) -> str:
    """Return the ``values`` that differ from the sweep's ``overrides``, as a label for a run.

    If none differs, return them all.
    """
    chosen = [value for value, override in zip(values, overrides, strict=True) if value != override]
    return " ".join(chosen or values)


def goal_of(metric: str) -> Goal:
    """Return whether more or less of a metric is better, by its name; less if that does not show
    it."""
    name = metric.lower().removeprefix(_HELD_OUT).removeprefix("validation_")
    words = name.split("_")
    return "max" if any(word in words for word in _BETTER_HIGH) or "per_second" in name else "min"


def metric_of(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return the metric to judge runs by, among those that all runs have: held-out metrics first.
    ``runs`` has the last values of each run. "" if they share none.
    """
    common = [name for name in runs[0] if all(name in values for values in runs)] if runs else []
    held_out = [name for name in common if name.startswith(_HELD_OUT)]
    return next((name for name in (*_FIRST, *held_out, "loss") if name in common), "")


def last_values(run: RunFolder) -> dict[str, float]:
    """Return the last measured value of every metric, by name."""
    rows = run.metrics()
    return {name: float(last_measured(rows, name)) for name in names_measured(rows)}


def value_of(run: RunFolder, metric: str) -> float | None:
    """Return the last value of ``metric`` ("": the run's main one); ``None`` without a number.

    Raises ``JobError``, naming the run's metrics, if a finished run lacks this one.
    """
    values = last_values(run)
    name = metric or metric_of([values])
    if values and run.status == "finished" and name not in values:
        raise JobError(f"{run.name} has no {metric!r}; it has: {', '.join(values)}")
    value = values.get(name)
    return value if is_number(value) else None


def best_of(runs: Sequence[RunFolder], metric: str = "", goal: Goal | None = None) -> str:
    """Return a text that names the best run, by ``metric`` ("": one that all runs have).

    "" if fewer than two runs can be compared.
    """
    measured = [last_values(run) for run in runs]
    finite = [
        (run, {name: value for name, value in values.items() if math.isfinite(value)})
        for run, values in zip(runs, measured, strict=True)
    ]
    if metric:
        finite = [(run, values) for run, values in finite if metric in values]
    name = metric or metric_of([values for _, values in finite])
    if len(finite) < 2 or not name:
        return ""
    goal = goal or goal_of(name)
    run, values = (max if goal == "max" else min)(finite, key=lambda pair: pair[1][name])
    superlative = "highest" if goal == "max" else "lowest"
    left_out = len(runs) - len(finite)
    without = f"; {left_out} of {len(runs)} runs have none" if left_out else ""
    return f"best {name} ({superlative}): {values[name]:.4g}, of {run.name}{without}"
