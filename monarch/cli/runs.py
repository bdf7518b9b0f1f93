"""``monarch runs``: what was run, how it went, and how runs differ."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from monarch.cli.tables import in_columns, terminal_width
from monarch.cli.volume import is_quiet
from monarch.config_file.toml_text import TOMLDecodeError, loads
from monarch.errors import JobError
from monarch.runs.folder import RunFolder, find_run, runs_in
from monarch.runs.plot import smoothed, svg_chart, text_chart
from monarch.runs.report import curve, figures, names_measured, worth_telling, write_report
from monarch.runs.whole_file import write_whole, writing
from monarch_sync.words import byte_size

_MAX_NAME = 24


def ls() -> None:
    """Print a table of the runs of this folder, the last one at the end."""
    rows = [("run", "status", "step", "loss", "began", "size")]
    for run in runs_in():
        steps = run.metrics()
        last = steps[-1] if steps else {}
        began = next((e["time"] for e in run.events() if e["kind"] == "begun"), None)
        clock = time.strftime("%m-%d %H:%M", time.localtime(began)) if began else "-"
        of = f"/{last['num_steps']}" if "num_steps" in last else ""
        loss = _last(steps, "loss")
        size = byte_size(run.num_bytes())
        status = "restarting" if run.is_restarting else run.status
        rows.append((run.name, status, f"{last.get('step', 0)}{of}", _number(loss), clock, size))
    if is_quiet():
        for name, *_ in rows[1:]:
            click.echo(name)
        return
    if len(rows) == 1:
        click.echo("no runs here yet: `monarch run ddp` makes one")
        return
    _echo_table(rows)


def show(name: str) -> None:
    """Print how a run went, and write its report."""
    run = find_run(name)
    steps, events = run.metrics(), run.events()
    click.echo(f"{run.name}: {run.status}")
    for words, value in figures(steps, events).items():
        click.echo(f"  {words}: {value}")
    width = shutil.get_terminal_size().columns - 16 - _MAX_NAME
    for measured in names_measured(steps):
        line = curve(steps, measured)
        click.echo(
            f"  {measured[:_MAX_NAME]:<{_MAX_NAME}} {text_chart(line, min(50, width))} "
            f"{_number(line[-1][1])}"
        )
    for event in worth_telling(events):
        clock = time.strftime("%H:%M:%S", time.localtime(event["time"]))
        click.echo(f"  {clock}  {event['text'].splitlines()[0] if event['text'] else ''}")
    report = run.path / "report.html"
    with writing(report):
        write_report(run)
    click.echo(str(report))


def compare(names: tuple[str, ...]) -> None:
    """Print a table of where configs differ, and of what came of it."""
    _echo_table(comparison([find_run(name) for name in names]))


def plot(names: tuple[str, ...], metric: str, is_log: bool, smooth: int, file: Path | None) -> None:
    """Draw one quantity of runs over their steps, as text or into the SVG ``file``."""
    found = [find_run(name) for name in names or ("latest",)]
    lines = {run.name: smoothed(curve(run.metrics(), metric), smooth) for run in found}
    if not any(lines.values()):
        known = dict.fromkeys(name for run in found for name in names_measured(run.metrics()))
        raise JobError(f"no run has {metric!r}; they have: {', '.join(known) or 'nothing yet'}")
    if file is not None:
        title = f"{metric} of {next(iter(lines))}" if len(lines) == 1 else metric
        drawn = svg_chart(lines, title=title, y_name=metric, is_log=is_log).replace(
            "<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1
        )
        with writing(file):
            write_whole(file, drawn)
        click.echo(str(file))
        return
    width = shutil.get_terminal_size().columns
    for name, line in lines.items():
        values = [y for _, y in line]
        low, high = (_number(min(values)), _number(max(values))) if values else ("-", "-")
        click.echo(f"{name}  {metric} from {low} to {high}")
        click.echo(text_chart(line, width, is_log=is_log))


def comparison(found: Sequence[RunFolder]) -> list[tuple[str, ...]]:
    """Rows of a table: the keys that differ, then what was measured last."""
    configs = [_flat(_config_of(run)) for run in found]
    metrics = [run.metrics() for run in found]
    measured = dict.fromkeys(name for steps in metrics for name in names_measured(steps))
    rows: list[tuple[str, ...]] = [("", *(run.name for run in found))]
    for key in dict.fromkeys(key for config in configs for key in config):
        values = [str(config.get(key, "-")) for config in configs]
        if len(set(values)) > 1:
            rows.append((f"{key} (config)" if key in measured else key, *values))
    rows.append(("status", *(run.status for run in found)))
    rows.append(("step", *(str(steps[-1]["step"]) if steps else "0" for steps in metrics)))
    rows += ((name, *(_number(_last(steps, name)) for steps in metrics)) for name in measured)
    return rows


def _config_of(run: RunFolder) -> dict[str, Any]:
    try:
        return loads(run.config_text)
    except TOMLDecodeError:
        return {}  # What somebody has edited meanwhile.


def _flat(table: dict[str, Any], above: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{above}{key}.")
        else:
            found[above + key] = value
    return found


def _last(steps: Sequence[dict[str, Any]], name: str) -> Any:
    return next((row[name] for row in reversed(steps) if name in row), None)


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, (int, float)) else "-"


def _echo_table(rows: Sequence[Sequence[str]]) -> None:
    for line in in_columns(rows, terminal_width()):
        click.echo(line)
