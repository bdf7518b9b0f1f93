"""The evaluations of a run: which was the best, and whether to wait for a better one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from monarch.config_file import ConfigError
from monarch.runs.recover.checkpoint_choice import BEST as BEST
from monarch_recipes.extras import Extras


@dataclass(frozen=True)
class EvaluationVerdict:
    """The verdict on the last evaluation. ``reason_to_stop`` is empty if the run continues."""

    is_best: bool
    reason_to_stop: str = ""


def judge(
    history: Sequence[Mapping[str, float]],
    extras: Extras,
    should_stop: Callable[[Sequence[Mapping[str, float]]], Any] | None = None,
) -> EvaluationVerdict:
    """Judges the last evaluation by the keys ``best_metric``, ``best_is`` and ``patience``, and by
    the task's own ``should_stop``, if it has one.

    ``history`` has the values of each evaluation with its ``step``, the last one at the end.
    """
    name, sign = extras.best_metric, 1 if extras.best_is == "lowest" else -1
    is_needed = extras.keep_best or extras.patience > 0 or name != Extras.best_metric
    if name not in history[-1] and is_needed:
        known = ", ".join(key for key in history[-1] if key != "step")
        raise ConfigError(f"no {name!r} was measured; there is {known}", key="extras.best_metric")
    # A value that is no number is never the best: nothing is less than it, nor it than anything.
    found = [sign * row.get(name, float("nan")) for row in history]
    values = [value if value == value else float("inf") for value in found]
    best = values.index(min(values))
    waited = len(values) - 1 - best
    reason = ""
    if extras.patience and waited >= extras.patience:
        reason = (
            f"the held-out {name} has not been better for {waited} evaluations than "
            f"{history[best][name]:.4g} at step {history[best]['step']:.0f}"
        )
    elif should_stop is not None and (said := should_stop(history)):
        reason = said if isinstance(said, str) else "should_stop says so"
    return EvaluationVerdict(is_best=best == len(values) - 1, reason_to_stop=reason)
