"""``monarch query``, ``hang`` and ``trace``: each asks one question, and prints the answer."""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import click

from monarch.cli.observe.target import hang_here, run_paths, visit_here
from monarch.cli.terminal.tables import terminal_width
from monarch.cli.terminal.volume import say
from monarch.config.duration import parse_duration
from monarch.errors import JobError
from monarch.observe.kept_files import read_kept
from monarch.observe.query import TELEMETRY, QueryEngine, QueryTables, kept_rows, live_rows
from monarch.observe.tables import READY
from monarch.observe.trace import MeshTrace
from monarch.observe.visit import procs_of
from monarch.runs.record.folder import find_run
from monarch.runs.record.telemetry import HANG_REPORT
from monarch_sync.words import counted


def query(
    sql: str | None, run: str | None, file: Path | None, form: str | None, timeout: str | None
) -> None:
    """Print the answer to ``sql``; without it the tables and ready questions."""
    sql = _text(sql, file)
    limit = _seconds(timeout) if timeout is not None else math.inf
    with _tables(run, sql or "") as tables:
        if sql is None:
            _list(tables)
            return
        answer = tables.query(sql, seconds=limit)
    if form == "csv":
        click.echo(answer.to_csv(), nl=False)
    elif form == "jsonl":
        click.echo(answer.to_jsonl(), nl=False)
    elif form == "json":
        click.echo(answer.to_json())
    else:
        click.echo(answer.in_text(terminal_width() or 0))


def _text(sql: str | None, file: Path | None) -> str | None:
    if file is None:
        return sys.stdin.read() if sql == "-" else sql
    if sql is not None:
        raise click.UsageError("give SQL or --file, not both")
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise JobError(f"cannot read {file}: {error}") from None


def _seconds(duration: str) -> float:
    try:
        return parse_duration(duration)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _tables(run: str | None, sql: str) -> QueryTables:
    if run is None:
        return QueryEngine(visit_here, run_paths()).tables(sql)
    folder = find_run(run)
    packed = kept_rows([folder.path])
    if not packed:
        say(f"{folder.path} holds no telemetry: only its metrics and events can be asked")
    return QueryTables(packed, [folder.path])


def _list(tables: QueryTables) -> None:
    click.echo("ready questions: monarch query NAME")
    for name, (about, _) in READY.items():
        click.echo(f"  {name:<10}{about}")
    click.echo("\ntables")
    for name, columns in tables.names().items():
        click.echo(f"  {name}({', '.join(columns)})")


def hang(run: str | None, is_json: bool) -> None:
    """Print which ranks wait for which; exit with 1 if some of them can never go on.

    With ``run``, print what was recorded when the run ended or last failed, instead of asking
    hosts.
    """
    data = _kept(find_run(run).path) if run is not None else hang_here(visit_here()).to_data()
    if is_json:
        click.echo(json.dumps(data, indent=1))
    else:
        for line in data["lines"]:
            click.echo(line)
    sys.exit(1 if data["is_hang"] else 0)


def _kept(folder: Path) -> dict[str, Any]:
    try:
        data: dict[str, object] = json.loads(read_kept(folder / TELEMETRY / HANG_REPORT, folder))
    except (OSError, ValueError):
        raise JobError(f"{folder} holds no report of who waited for whom") from None
    return data


_TORCH_SECONDS = 2.0


def profile(duration: str, output: Path) -> None:
    """Call ``trace``, with the options that PyTorch's Monarch has."""
    trace(None, _seconds(duration), False, output)


def trace(run: str | None, seconds: float, with_torch: bool, file: Path) -> None:
    """Write a trace of all processes to ``file``, after recording for ``seconds`` more.

    With ``run``, the trace is made from the records in that run's folder instead. ``with_torch``
    adds what torch's profiler records in these seconds.
    """
    profiles: dict[str, tuple[bytes, str]] = {}
    if run is not None:
        packed = kept_rows([find_run(run).path])
        if not packed:
            raise JobError(f"the run {run} keeps no telemetry")
    else:
        visit = visit_here()
        if with_torch:
            profiles = visit.profile(procs_of(visit.look()), seconds or _TORCH_SECONDS)
        elif seconds:
            time.sleep(seconds)
        packed = [*visit.drain().packed, live_rows(visit.look(flight=True))]
    mesh_trace = MeshTrace(packed)
    for uid, error in mesh_trace.add_profiles(profiles).items():
        click.echo(f"{uid}: {error}", err=True)
    try:
        mesh_trace.write(file)
    except OSError as error:
        raise JobError(f"cannot write {file}: {error.strerror or error}") from None
    size = file.stat().st_size / 1e6
    click.echo(
        f"{file}: {counted(mesh_trace.num_ranks, 'rank')}, {size:.1f} MB, clocks within "
        f"{mesh_trace.clock_error_us:.0f} us. Open it at https://ui.perfetto.dev"
    )
