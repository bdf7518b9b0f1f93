"""A run's ``report.html``: one file that needs nothing else, with plots of what was measured."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from monarch.runs.folder import RunFolder
from monarch.runs.measured import curve, is_number, last_measured, names_measured
from monarch.runs.plot import PlotMark, svg_chart

COLORS_OF_EVENTS = {
    "died": "#dc2626", "hung": "#dc2626", "chaos": "#dc2626", "respawned": "#059669",
    "healed": "#059669", "resumed": "#059669", "generation": "#7c3aed", "config": "#d97706",
}  # fmt: skip

_KEY = {
    "#7c3aed": "new code", "#d97706": "config changed", "#dc2626": "something failed",
    "#059669": "went on",
}  # fmt: skip
_NAMES = {
    "first_step": "cold start: from the command to the first step",
    "generation": "edit, from the save to the first step on the new code on all ranks",
    "respawned": "death: from its detection to the next step",
}
_ENDS_OF_A_GO = ("ended", "begun", "died", "hung")
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 800px; margin: 2em auto; padding: 0 1em;
  color: #1f2937; background: #fff }
h1 { font-size: 1.4em } h2 { font-size: 1.1em; margin-top: 2em }
svg { width: 100%; font: 11px system-ui, sans-serif; fill: #6b7280 }
svg .grid { stroke: #e5e7eb } table { border-collapse: collapse; font-size: 13px }
td, th { text-align: left; padding: 2px 14px 2px 0; vertical-align: top }
th { color: #6b7280; font-weight: normal; white-space: nowrap } td { overflow-wrap: anywhere }
.key { color: #6b7280; font-size: 13px } .key i { border-left: 2px dashed; margin: 0 5px 0 14px }
@media (max-width: 600px) { body { margin: 1em auto } tr, th, td { display: block; padding: 0 }
  tr { margin-bottom: .6em } }
pre { background: #f3f4f6; padding: .6em; overflow-x: auto; font-size: 12px }
.none { color: #6b7280 } .text { white-space: pre-line }
"""


def write_report(run: RunFolder) -> None:
    """Write it anew from what lies in the folder."""
    run.write_text("report.html", report_html(run))


def report_html(run: RunFolder) -> str:
    """The page."""
    steps, events = run.metrics(), run.events()
    status, environment = run.status, run.environment()
    last = steps[-1] if steps else {}
    parts = [
        "<!doctype html><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width, initial-scale=1">',
        f"<title>{escape(run.name)}</title><style>{_STYLE}</style>",
        f"<h1>{escape(run.name)}: {escape(status)}</h1>",
        f"<pre>{escape(shlex.join(run.command))}</pre>",
        _table([(name, value) for name, value in figures(steps, events).items()]),
    ]
    marks = _marks(steps, events)
    if marks:
        drawn = {mark.color for mark in marks}
        key = (f'<i style="color:{c}"></i>{w}' for c, w in _KEY.items() if c in drawn)
        parts.append(f'<p class="key">Dashed lines, point at one to read it:{"".join(key)}</p>')
    for name in names_measured(steps):
        parts.append(f"<h2>{escape(name)}: {_number(last_measured(steps, name))}</h2>")
        parts.append(svg_chart({name: curve(steps, name)}, marks, y_name=name))
    parts.append(f"<h2>What happened</h2>{_events_table(worth_telling(events))}")
    if run.config_text:
        parts.append(f"<h2>Config</h2><pre>{escape(run.config_text)}</pre>")
    parts.append("<h2>Where</h2>" + _table([(k, v) for k, v in environment.items() if v]))
    parts.append(f"<p class=none>as of step {last.get('step', 0)}</p>")
    return "\n".join(parts) + "\n"


def worth_telling(events: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The events worth telling a person: of the checkpoints only the last of each go at the run."""
    kept: list[Mapping[str, Any]] = []
    last_saved: Mapping[str, Any] | None = None
    for event in (*events, None):
        if event is not None and event["kind"] == "saved":
            last_saved = event
            continue
        if last_saved is not None and (event is None or event["kind"] in _ENDS_OF_A_GO):
            kept.append(last_saved)
            last_saved = None
        if event is not None:
            kept.append(event)
    return kept


def figures(
    steps: Sequence[Mapping[str, Any]], events: Sequence[Mapping[str, Any]]
) -> dict[str, str]:
    """The run in a few numbers, in words."""
    found: dict[str, str] = {}
    if steps:
        row = steps[-1]
        found["steps"] = f"{row['step']} of {row.get('num_steps', '?')}"
    began = next((event["time"] for event in events if event["kind"] == "begun"), None)
    if began is not None:
        ended = max(event["time"] for event in events)
        found["from begin to end"] = f"{ended - began:.1f} s"
    for name in ("loss", "held_out_accuracy", "validation_loss"):
        value = last_measured(steps, name)
        if value is not None:
            found[name] = _number(value)
    for kind, words in _NAMES.items():
        key = {"first_step": "seconds", "generation": "save_to_step_seconds"}.get(kind, "seconds")
        seconds = [event[key] for event in events if event["kind"] == kind and key in event]
        if seconds:
            found[words] = ", ".join(_duration(value) for value in seconds[:8])
    deaths = sum(event["kind"] in ("died", "hung") for event in events)
    if deaths:
        found["deaths and hangs"] = str(deaths)
    return found


def _marks(
    steps: Sequence[Mapping[str, Any]], events: Sequence[Mapping[str, Any]]
) -> list[PlotMark]:
    marks = []
    for event in events:
        if event["kind"] in COLORS_OF_EVENTS:
            step = event.get("step")
            if not isinstance(step, int):
                step = max((r["step"] for r in steps if r["time"] <= event["time"]), default=0)
            marks.append(PlotMark(step, event["text"], COLORS_OF_EVENTS[event["kind"]]))
    return marks


def _events_table(events: Sequence[Mapping[str, Any]]) -> str:
    if not events:
        return '<p class="none">nothing</p>'
    rows = []
    for event in events:
        clock = time.strftime("%H:%M:%S", time.localtime(event["time"]))
        lines = event.get("diff") or event.get("details")
        more = f"<pre>{escape(lines)}</pre>" if lines else ""
        rows.append(
            f"<tr><th>{clock}</th><td>{escape(event['kind'])}</td>"
            f'<td class="text">{escape(event["text"])}{more}</td></tr>'
        )
    return f"<table>{''.join(rows)}</table>"


def _table(rows: Sequence[tuple[str, Any]]) -> str:
    cells = (f"<tr><th>{escape(k)}</th><td>{escape(str(v))}</td></tr>" for k, v in rows)
    return f"<table>{''.join(cells)}</table>"


def _number(value: Any) -> str:
    return f"{value:.4g}" if is_number(value) else str(value)


def _duration(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
