"""``monarch logs``: prints the output of procs from the hosts' log files."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click

from monarch.cli.hosts.exec import all_live, hosts_at, up_job
from monarch.cli.terminal.terminal import LabelledLines
from monarch.errors import JobError
from monarch.job.exec.exec_run import ExecRun, Program, write_through
from monarch.job.exec.ranks import chosen, hosts_of, ranks_on
from monarch.runtime.client_agent import client
from monarch.runtime.output import read_logs

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def logs(
    follow: bool,
    ranks: Sequence[int],
    since: str | None,
    mesh: str | None,
    point: str | None,
    tail: int | None,
    agents: bool,
) -> None:
    """Print the chosen hosts' lines; with ``follow`` go on as they come."""
    began = since_time(since, time.time()) if since else 0.0
    job = up_job()
    hosts = chosen(hosts_of(job), mesh, only_one=False)
    if point:
        hosts = hosts_at(hosts, point)
    live = all_live(job, hosts)
    options = [f"--since={began}", *(f"--rank={rank}" for rank in ranks)]
    options += ["--follow"] if follow else []
    options += [] if tail is None else [f"--tail={tail}"]
    options += ["--agents"] if agents else []
    script = Path(read_logs.__file__).read_bytes()
    node = client().node
    printer = _Shown()
    runs = []
    for live_host in live:
        name, pid = live_host.state.host, live_host.state.pid
        rank = ranks_on([(live_host.address, name)], {})
        program = Program((live_host.state.logs, str(pid), *options), {}, "/", script, True)
        runs.append((name, ExecRun(node, rank, program)))
    try:
        for _, run in runs:
            run.end_input()
        if follow:
            _follow(runs, printer)
        for name, run in runs:
            run.wait(lambda stream, data, name=name: printer.take(name, stream, data))  # type: ignore[misc]
        printer.flush()
        if not printer.num_lines and not follow:
            raise JobError(_nothing(ranks, since))
    except KeyboardInterrupt:
        sys.exit(130)  # The way to stop following: no error.
    finally:
        for _, run in runs:
            run.close()


def _follow(runs: Sequence[tuple[str, ExecRun]], printer: _Shown) -> None:
    while any(not program.ended.is_set for _, run in runs for program in run.programs):
        for name, run in runs:
            run.write_some(lambda stream, data, name=name: printer.take(name, stream, data))  # type: ignore[misc]
        printer.flush()


def _nothing(ranks: Sequence[int], since: str | None) -> str:
    by_rank = f" by rank {', '.join(map(str, ranks))}" if ranks else ""
    when = f" since {since}" if since else ""
    return f"nothing was printed{by_rank}{when} on the hosts of this allocation"


class _Shown:
    """Prints lines with the host in front, each host in its own colour."""

    def __init__(self) -> None:
        self.num_lines = 0
        self._labelled = LabelledLines("[{}] ")
        self._rest: dict[str, bytes] = {}

    def take(self, name: str, stream: int, data: bytes) -> None:
        if stream == 2:
            write_through(2, data)
            return
        *lines, self._rest[name] = (self._rest.get(name, b"") + data).split(b"\n")
        for line in lines:
            proc_label, _, text = line.decode(errors="replace").partition("\t")
            self.num_lines += 1
            self._labelled.print((f"{name} {proc_label}".strip(), text))

    def flush(self) -> None:
        sys.stdout.flush()


def since_time(text: str, now: float) -> float:
    """Parse the value of ``--since``; return the time in seconds since the epoch.

    The value is an age, as ``30s``, ``10m``, ``2h`` or ``1d`` before ``now``, or a date, a time of
    today, or both. Raises ``UsageError`` for other text.
    """
    if match := re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text):
        return now - float(match[1]) * _UNITS[match[2]]
    today = time.strftime("%Y-%m-%d", time.localtime(now))
    for form, value in (
        ("%Y-%m-%d %H:%M:%S", text),
        ("%Y-%m-%d %H:%M", text),
        ("%Y-%m-%dT%H:%M:%S", text),
        ("%Y-%m-%d", text),
        ("%Y-%m-%d %H:%M:%S", f"{today} {text}"),
        ("%Y-%m-%d %H:%M", f"{today} {text}"),
    ):
        try:
            return time.mktime(time.strptime(value, form))
        except ValueError:
            continue
    raise click.UsageError(f"--since {text}: give it as 30s, 10m, 2h, 14:05 or 2026-01-31 14:05")
