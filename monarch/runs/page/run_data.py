"""The page's data about a run, read from the run's folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from monarch.runs.page.generations import generation_tree
from monarch.runs.page.run_error import Locate, end_of, hold_of, nowhere
from monarch.runs.page.thinning import points_of, seconds_left, step_seconds, thinned
from monarch.runs.record.folder import RunFolder, shell_line
from monarch.runs.record.measured import int_or_none, last_measured, names_measured
from monarch.runs.record.rollouts import last_rollouts
from monarch.runs.record.summary import figures, worth_telling

_MOST_EVENTS = 300
_MOST_DIFF = 40_000
_MOST_ROLLOUTS = 40
_SPEEDS = ("samples_per_second", "tokens_per_second", "rank_skew_seconds", "participants")
_LAST = ("learning_rate", "grad_norm")  # Each recipe has these: they come after a person's own.
# The kinds of events that are marks in a plot.
_MARKS = {
    "generation": "edit", "config": "edit", "rolled_back": "edit", "reward": "edit",
    "died": "bad", "hung": "bad", "chaos": "bad", "held": "bad", "failed_edit": "bad",
    "respawned": "good", "healed": "good", "resumed": "good",
}  # fmt: skip
_TURNS = ("begun", "begun_again", "held", "mended", "ended", "slow")


def run_data(
    run: RunFolder,
    locate: Locate = nowhere,
    *,
    steps: Sequence[Mapping[str, Any]] | None = None,
    known_events: int = -1,
) -> dict[str, Any]:
    """Return the data of a run as JSON values.

    ``steps`` are its metrics, if the caller has read them. ``known_events`` is the number of events
    that the caller has: if there are no more, the data lacks the list of events.
    """
    steps = run.metrics() if steps is None else steps
    events = run.events()
    pace = step_seconds(steps, events)
    last = steps[-1] if steps else {}
    step, num_steps = int_or_none(last.get("step")) or 0, int_or_none(last.get("num_steps")) or 0
    turns = [event for event in events if event["kind"] in _TURNS]
    turn: Mapping[str, Any] = turns[-1] if turns else {}
    status = status_of(run, steps, turn)
    data = {
        "name": run.name,
        "recipe": run.recipe,
        "command": shell_line(run.command),
        "status": status,
        "step": step,
        "num_steps": num_steps,
        "seconds_left": seconds_left(pace, step, num_steps),
        "began": next((e["time"] for e in events if e["kind"] == "begun"), None),
        "last_at": max((e["time"] for e in [*events[-1:], *steps[-1:]] if "time" in e), default=0),
        "hold": hold_of(turn, locate) if status == "held" else None,
        "slow": str(turn.get("text", "")) if status == "slow" else "",
        "failure": end_of(run, turn, locate) if status == "failed" else None,
        "saved": _saved(events),
        "charts": _charts(steps, pace),
        "rollouts": [asdict(rollout) for rollout in last_rollouts(run.path, _MOST_ROLLOUTS)],
        "num_events": len(events),
    }
    if len(events) != known_events:
        data["story"] = _story(run, steps, events)
    return data


def status_of(run: RunFolder, steps: Sequence[Mapping[str, Any]], turn: Mapping[str, Any]) -> str:
    """Return the run's status as a word. For a running run, the word says what the run does now.

    ``turn`` is the last event that changed what the run does.
    """
    status = run.status
    if status != "running":
        return status
    if run.is_restarting:
        return "restarting"
    newest = steps[-1].get("time", 0.0) if steps else 0.0
    if newest >= turn.get("time", 0.0):
        return "training"
    activities = {"begun": "starting", "begun_again": "restarting", "slow": "slow"}
    return activities.get(str(turn.get("kind")), "training")


def _charts(steps: Sequence[Mapping[str, Any]], pace: list[tuple[int, float]]) -> list[Any]:
    names = [name for name in names_measured(steps) if name != "loss"]
    loss = ["loss"] if any("loss" in row for row in steps) else []
    of_person = [name for name in names if name not in (*_SPEEDS, *_LAST)]
    plotted = [*loss, *of_person, *(name for name in _LAST if name in names)]
    charts = [_chart(name, "metrics", points_of(steps, name), steps) for name in plotted]
    if pace:
        charts.append(_chart("step time (s)", "speed", pace, ()))
    return charts + [
        _chart(name, "speed", points_of(steps, name), steps) for name in _SPEEDS if name in names
    ]


def _chart(
    name: str, group: str, points: list[tuple[int, float]], steps: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    drawn = thinned(points)
    last = last_measured(steps, name)
    return {
        "name": name,
        "group": group,
        "steps": [step for step, _ in drawn],
        "values": [value for _, value in drawn],
        "last": points[-1][1] if last is None and points else last,
    }


def _story(
    run: RunFolder, steps: Sequence[Mapping[str, Any]], events: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the part of a run's data that stays the same until there is a new event."""
    last_events = sorted(worth_telling(events), key=lambda event: float(event["time"]))
    return {
        "figures": figures(steps, events),
        "marks": _marks(steps, events),
        "generations": [
            {**asdict(node), "diff": node.diff[:_MOST_DIFF]} for node in generation_tree(events)
        ],
        "events": [
            {
                "time": event["time"],
                "kind": event["kind"],
                "text": event["text"],
                "step": event.get("step"),
                "more": event.get("details") or event.get("traceback") or "",
            }
            for event in last_events[-_MOST_EVENTS:]
        ],
        "config": run.config_text,
        "environment": {key: value for key, value in run.environment().items() if value},
    }


def _marks(
    steps: Sequence[Mapping[str, Any]], events: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the marks for the plots, in the order of time.

    If a mark has a ``generation``, the page shows the diff of that generation for it.
    """
    marks = []
    index = newest = 0
    for event in events:
        while index < len(steps) and steps[index].get("time", 0.0) <= event["time"]:
            newest = steps[index]["step"]
            index += 1
        if event["kind"] in _MARKS:
            step = int_or_none(event.get("step"))
            marks.append(
                {
                    "step": newest if step is None else step,
                    "kind": _MARKS[event["kind"]],
                    "text": event["text"],
                    "generation": event.get("generation"),
                }
            )
    return marks


def _saved(events: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the step and the path of the last checkpoint; ``None`` if none was saved."""
    last = next((event for event in reversed(events) if event["kind"] == "saved"), None)
    return last and {"step": last.get("step"), "path": str(last.get("path") or "")}
