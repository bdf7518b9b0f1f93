"""A short text about a run: its figures in words, and its important events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from monarch.config_file.toml_text import TOMLDecodeError, loads
from monarch.runs.record.measured import is_number, last_measured

_NAMES = {
    "first_step": "cold start: from the command to the first step",
    "generation": "edit, from the save to the first step on the new code on all ranks",
    "respawned": "death: from its detection to the next step",
}
_ENDS_OF_A_GO = ("ended", "begun", "died", "hung")


def worth_telling(events: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the events that a person should see.

    Of the checkpoints between two ends of the run, only the last is among them.
    """
    worthy: list[Mapping[str, Any]] = []
    last_saved: Mapping[str, Any] | None = None
    for event in (*events, None):
        if event is not None and event["kind"] == "saved":
            last_saved = event
            continue
        if last_saved is not None and (event is None or event["kind"] in _ENDS_OF_A_GO):
            worthy.append(last_saved)
            last_saved = None
        if event is not None:
            worthy.append(event)
    return worthy


def figures(
    steps: Sequence[Mapping[str, Any]], events: Sequence[Mapping[str, Any]]
) -> dict[str, str]:
    """Return the main figures of a run, in words."""
    texts: dict[str, str] = {}
    if steps:
        row = steps[-1]
        num_steps = row.get("num_steps")  # 0 of a script, which does not say
        texts["steps"] = f"{row['step']} of {num_steps}" if num_steps else f"{row['step']}"
    began = next((event["time"] for event in events if event["kind"] == "begun"), None)
    if began is not None:
        ended = max(event["time"] for event in events)
        texts["from begin to end"] = f"{ended - began:.1f} s"
    for name in ("loss", "held_out_accuracy", "validation_loss"):
        value = last_measured(steps, name)
        if value is not None:
            texts[name] = _number(value)
    for kind, name in _NAMES.items():
        key = "save_to_step_seconds" if kind == "generation" else "seconds"
        seconds = [event[key] for event in events if event["kind"] == kind and key in event]
        if seconds:
            texts[name] = ", ".join(_duration(value) for value in seconds[:8])
    deaths = sum(event["kind"] in ("died", "hung") for event in events)
    if deaths:
        texts["deaths and hangs"] = str(deaths)
    return texts


def flat_config(text: str) -> dict[str, Any]:
    """Return the values of a run's config by dotted key; empty if an edit has broken the file."""
    try:
        return _flat(loads(text))
    except TOMLDecodeError:
        return {}


def _flat(table: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{above}{key}.")
        else:
            flat[above + key] = value
    return flat


def _number(value: Any) -> str:
    return f"{value:.4g}" if is_number(value) else str(value)


def _duration(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
