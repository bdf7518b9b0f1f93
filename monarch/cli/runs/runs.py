"""``monarch runs``: lists runs, shows how each went, and compares them."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from monarch import ours
from monarch.cli.terminal.confirm import ask_before
from monarch.cli.terminal.tables import echo_columns
from monarch.cli.terminal.terminal import LabelledLines
from monarch.cli.terminal.volume import is_quiet, say
from monarch.errors import JobError
from monarch.runs.detached import copies_of_running
from monarch.runs.page.report import write_report
from monarch.runs.record.folder import (
    DETACHED,
    REMOTE,
    RUNS,
    RunFolder,
    answer_run,
    find_run,
    read_json,
    runs_in,
)
from monarch.runs.record.logs import Line, PrintedLines
from monarch.runs.record.measured import curve, last_measured, names_measured
from monarch.runs.record.plot import smoothed, svg_chart, text_chart, text_plot
from monarch.runs.record.rollouts import last_rollouts
from monarch.runs.record.summary import figures, flat_config, worth_telling
from monarch.runs.record.writing import writing
from monarch.whole_file import OF_PEOPLE, write_whole
from monarch_sync.words import byte_size, clipped, counted, plain

_MAX_NAME = 24
_MOST_ROLLOUTS = 8
_MAX_SAMPLE = 80
_LOOK_SECONDS = 0.2


def _refresh() -> None:
    """Update the local copies of runs that are running elsewhere."""
    if copies_of_running():
        # Imported when used: it takes the runtime, which no other look at runs needs.
        from monarch.cli.run.detached import refresh

        refresh()


def ls() -> None:
    """Print a table of the runs of this folder, the latest at the end."""
    _refresh()
    rows = [("run", "status", "step", "loss", "began", "size")]
    for run in runs_in():
        steps = run.metrics()
        last = steps[-1] if steps else {}
        began = next((e["time"] for e in run.events() if e["kind"] == "begun"), None)
        clock = time.strftime("%m-%d %H:%M", time.localtime(began)) if began else "-"
        total = f"/{last['num_steps']}" if last.get("num_steps") else ""  # A script does not say.
        loss = last_measured(steps, "loss")
        size = byte_size(run.num_bytes())
        status = "restarting" if run.is_restarting else run.status
        rows.append((run.name, status, f"{last.get('step', 0)}{total}", _number(loss), clock, size))
    if is_quiet():
        for name, *_ in rows[1:]:
            click.echo(name)
        return
    if len(rows) == 1:
        click.echo("no runs here yet: `monarch run ddp` makes one")
        return
    _echo_table(rows)


def take(name: str, *, checkpoint: bool) -> None:
    """Tell a run that holds because its ranks differ to continue.

    All ranks take one rank's state, or with ``checkpoint`` that of the last checkpoint.
    """
    run = find_run(name)
    answer_run(run, "c" if checkpoint else "t")
    say(f"told {run.name}")


def show(name: str) -> None:
    """Print how a run went, and write its report."""
    _refresh()
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
        click.echo(f"  {clock}  {plain((event['text'].splitlines() or [''])[0])}")
    for rollout in last_rollouts(run.path, _MOST_ROLLOUTS):
        text = " ".join(f"{rollout.prompt} -> {rollout.completion}".split())
        mark = "right" if rollout.is_solved else "wrong"
        click.echo(
            f"  sample of step {rollout.step or '-'}: {clipped(plain(text), _MAX_SAMPLE)}  "
            f"reward {_number(rollout.reward)}, {mark} ({rollout.made_by})"
        )
    report = run.path / "report.html"
    with writing(report):
        write_report(run)
    click.echo(str(report))
    if remote := read_json(run.path / REMOTE):
        folder = read_json(run.path / DETACHED).get("folder", "")
        click.echo(f"  checkpoints: in {folder} on {remote.get('host')}")


def compare(names: tuple[str, ...]) -> None:
    """Print a table of the differences between configs, and of the results."""
    if len(names) < 2:
        raise click.UsageError("give two runs at least")
    _refresh()
    runs = [find_run(name) for name in names]
    _echo_table(comparison(runs))
    click.echo(code_compared(runs))


def plot(names: tuple[str, ...], metric: str, is_log: bool, smooth: int, file: Path | None) -> None:
    """Draw one quantity of runs over their steps, as text or into the SVG ``file``."""
    runs = [find_run(name) for name in names or ("latest",)]
    lines = {run.name: smoothed(curve(run.metrics(), metric), smooth) for run in runs}
    if not any(lines.values()):
        metrics = dict.fromkeys(name for run in runs for name in names_measured(run.metrics()))
        raise JobError(f"no run has {metric!r}; they have: {', '.join(metrics) or 'nothing yet'}")
    if file is not None:
        title = f"{metric} of {next(iter(lines))}" if len(lines) == 1 else metric
        drawn = svg_chart(lines, title=title, y_name=metric, is_log=is_log).replace(
            "<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1
        )
        with writing(file):
            write_whole(file, drawn, mode=OF_PEOPLE)
        click.echo(str(file))
        return
    width = shutil.get_terminal_size().columns
    for name, line in lines.items():
        values = [y for _, y in line]
        low, high = (_number(min(values)), _number(max(values))) if values else ("-", "-")
        click.echo(f"{name}  {metric} from {low} to {high}")
        click.echo("\n".join(text_plot(line, width, is_log=is_log)))


def comparison(runs: Sequence[RunFolder]) -> list[tuple[str, ...]]:
    """Return rows of a table: the config keys that differ, then the last figures."""
    configs = [flat_config(run.config_text) for run in runs]
    metrics = [run.metrics() for run in runs]
    measured = dict.fromkeys(name for steps in metrics for name in names_measured(steps))
    rows: list[tuple[str, ...]] = [("", *(run.name for run in runs))]
    for key in dict.fromkeys(key for config in configs for key in config):
        values = [str(config.get(key, "-")) for config in configs]
        if len(set(values)) > 1:
            rows.append((f"{key} (config)" if key in measured else key, *values))
    rows.append(("status", *(run.status for run in runs)))
    rows.append(("step", *(str(steps[-1]["step"]) if steps else "0" for steps in metrics)))
    rows += (
        (name, *(_number(last_measured(steps, name)) for steps in metrics)) for name in measured
    )
    return rows


def code_compared(runs: Sequence[RunFolder]) -> str:
    """Say whether runs ran the same code, judged by their last code, after all edits."""
    digests = {run.name: _digest_of(run) for run in runs}
    if all(digests.values()):
        if len(set(digests.values())) == 1:
            return "the code of these runs is the same"
        listing = ", ".join(f"{name} {digest[:12]}" for name, digest in digests.items())
        return f"the code of these runs differs: {listing}"
    commits = {run.name: str(run.environment().get("git_commit") or "-") for run in runs}
    unknown = [name for name, digest in digests.items() if not digest]
    listing = ", ".join(f"{name} {commit}" for name, commit in commits.items())
    differs = (
        "and their commits differ"
        if len(set(commits.values())) > 1
        else "by their commits it is the same"
    )
    return (
        f"whether their code differs is not known of {' and '.join(unknown)}, to which nothing was "
        f"pushed; {differs}: {listing}"
    )


def _digest_of(run: RunFolder) -> str:
    edited = [str(event["digest"]) for event in run.events() if event.get("digest")]
    return edited[-1] if edited else str(run.environment().get("code_digest") or "")


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, (int, float)) else "-"


def _echo_table(rows: Sequence[Sequence[str]]) -> None:
    echo_columns(rows)


def rm(names: tuple[str, ...], yes: bool) -> None:
    """Remove runs, if the person or ``yes`` agrees."""
    runs = list(dict.fromkeys(_one_named(name) for name in names))
    if running := [run.name for run in runs if run.running_pid is not None]:
        raise JobError(
            f"{' and '.join(running)} {'is' if len(running) == 1 else 'are'} going on, so nothing "
            "was taken away: stop it with Ctrl-C in its terminal first"
        )
    sizes = {run: run.num_bytes() for run in runs}
    for run, size in sizes.items():
        say(f"  {run.name}  {run.status}, {byte_size(size)}")
    summary = f"{counted(len(runs), 'run')}, {byte_size(sum(sizes.values()))}"
    if not ask_before(f"take away {summary}? It cannot be undone", yes):
        raise JobError("nothing was taken away: nobody can be asked here, so say --yes")
    for run in runs:
        _remove(run)
    remaining = runs_in()
    if remaining:
        remaining[-1].link_as_latest()
    else:
        (RUNS / "latest").unlink(missing_ok=True)
    say(f"took away {summary}")


def _one_named(name: str) -> RunFolder:
    """Return the run of this folder with that name, or with a name that begins so.

    Raises ``JobError`` if it is no run of this folder, or several runs have such names.
    """
    named_run = find_run(name)
    runs = runs_in()
    if named_run.path.resolve() not in {run.path.resolve() for run in runs}:
        raise JobError(f"{name} is no run of this folder: `monarch runs ls` lists them")
    names = [run.name for run in runs if run.name.startswith(name)]
    if len(names) > 1 and named_run.name != name and name != "latest":
        raise JobError(f"{name} may be {', '.join(names[:-1])} or {names[-1]}: say which")
    return RunFolder(RUNS / named_run.path.resolve().name)


def _remove(run: RunFolder) -> None:
    try:
        if os.path.islink(run.path):
            os.unlink(run.path)
        else:
            ours.remove_folder(run.path, RUNS, mark="command", ignore_errors=False)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise JobError(f"{run.name} is still there in part: {where}{error.strerror}") from None


def logs(name: str, follow: bool, ranks: tuple[int, ...], tail: int | None) -> None:
    """Print what the ranks of a run printed; ``tail`` counts lines of each rank."""
    _refresh()
    run = find_run(name)
    printed = PrintedLines(run.path / "logs", ranks)
    labelled = LabelledLines("" if len(ranks) == 1 else "{} | ")
    try:
        is_over = not (follow and run.running_pid is not None)
        labelled.print(*_last_lines(printed.take(is_over=is_over), tail))
        if is_over and not printed.names():
            by_rank = f" by rank {', '.join(map(str, ranks))}" if ranks else ""
            raise JobError(f"nothing was printed{by_rank} in {run.path}")
        while not is_over:
            time.sleep(_LOOK_SECONDS)
            _refresh()
            is_over = run.running_pid is None
            labelled.print(*printed.take(is_over=is_over))
    except KeyboardInterrupt:
        sys.exit(130)  # The way to stop following: no error.


def _last_lines(lines: Sequence[Line], num: int | None) -> list[Line]:
    """Return the last ``num`` lines of each rank; ``None`` is all lines."""
    if num is None:
        return list(lines)
    by_rank: dict[str, list[Line]] = {}
    for line in lines:
        by_rank.setdefault(line.who, []).append(line)
    return [line for last in by_rank.values() for line in last[len(last) - min(num, len(last)) :]]
