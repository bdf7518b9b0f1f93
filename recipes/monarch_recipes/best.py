"""Judges the evaluations of a run: which was the best, and whether the run should stop."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from monarch.config_file import ConfigError
from monarch.runs.recover.checkpoint_choice import BEST as BEST
from monarch_recipes.extras import Extras


@dataclass(frozen=True)
class EvaluationVerdict:
    """Whether the last evaluation is the best, and why the run should stop; "" if it should not."""

    is_best: bool
    reason_to_stop: str = ""


def judge(
    history: Sequence[Mapping[str, float]],
    extras: Extras,
    should_stop: Callable[[Sequence[Mapping[str, float]]], Any] | None = None,
) -> EvaluationVerdict:
    """Return whether the last evaluation is the best, and whether the run should stop after it.

    ``history`` has the values of each evaluation with its ``step``; the last row is the newest. The
    run should stop if the value ``best_metric`` has not improved in ``patience`` evaluations, or if
    the task's own ``should_stop`` returns a reason. Raises ConfigError if ``best_metric`` was not
    measured, but is needed.
    """
    name, sign = extras.best_metric, 1 if extras.best_is == "lowest" else -1
    is_needed = extras.keep_best or extras.patience > 0 or name != Extras.best_metric
    if name not in history[-1] and is_needed:
        names = ", ".join(key for key in history[-1] if key != "step")
        raise ConfigError(f"no {name!r} was measured; there is {names}", key="extras.best_metric")
    values = [sign * row.get(name, math.nan) for row in history]
    # NaN compares as less than nothing; as infinity it is never the best.
    values = [math.inf if math.isnan(value) else value for value in values]
    best = values.index(min(values))
    waited = len(values) - 1 - best
    reason = ""
    if extras.patience and waited >= extras.patience:
        reason = (
            f"the held-out {name} has not been better for {waited} evaluations than "
            f"{history[best][name]:.4g} at step {history[best]['step']:.0f}"
        )
    elif should_stop is not None and (answer := should_stop(history)):
        reason = answer if isinstance(answer, str) else "should_stop says so"
    return EvaluationVerdict(is_best=best == len(values) - 1, reason_to_stop=reason)
