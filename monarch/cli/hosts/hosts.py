"""``monarch hosts``: lists the machines of the allocation."""

from __future__ import annotations

import json
import time
from typing import Any

import click

from monarch.cli.allocation.users import named
from monarch.cli.hosts.exec import LiveHost, ask, up_job
from monarch.cli.project import no_allocation
from monarch.cli.terminal.tables import echo_columns
from monarch.job.doctor.probe_session import probe_by_agent
from monarch.job.exec.ranks import hosts_of
from monarch.runtime.client_agent import client
from monarch_sync.words import byte_size

_SECONDS = 10.0
_SHOWN = ("host", "python", "cpus", "memory", "load")


def hosts(is_json: bool) -> None:
    """Print a row for each host."""
    job = up_job()
    job_hosts = hosts_of(job)
    live, wrong = ask(job, job_hosts)
    if not live and not job.is_running():
        raise no_allocation()
    looks = _looked_at(live)
    live_by_name = {live_host.host.name: live_host for live_host in live}
    rows: list[dict[str, Any]] = []
    for host in job_hosts:
        row: dict[str, Any] = {
            "name": host.name, "mesh": host.mesh, "point": {"hosts": host.place}, "url": host.url,
        }  # fmt: skip
        if host.name in wrong:
            row["error"] = wrong[host.name]
        else:
            state, machine = live_by_name[host.name].state, looks.get(host.name, {})
            row |= {
                "host": state.host, "pid": state.pid, "user": named(state),
                "generation": state.generation, "workspace": state.workspace,
                "num_procs": len(state.procs), "num_programs": len(state.programs),
                "machine": {field: machine.get(field) for field in _SHOWN},
                "gpus": [gpu["name"] for gpu in machine.get("gpus", {}).get("found", ())],
                "torch": machine.get("packages", {}).get("torch"),
                "addresses": machine.get("addresses", []),
            }  # fmt: skip
            if state.idle_limit is not None:
                row["idle_limit"] = state.idle_limit
        rows.append(row)
    if is_json:
        click.echo(json.dumps(rows, indent=2))
        return
    _show(rows)


def _looked_at(live: list[LiveHost]) -> dict[str, dict[str, Any]]:
    node = client().node
    sessions = {live_host.host.name: probe_by_agent(node, live_host.address) for live_host in live}
    for session in sessions.values():
        session.order({"do": "look"})
    deadline = time.monotonic() + _SECONDS
    answers = {name: session.answer(deadline) for name, session in sessions.items()}
    for session in sessions.values():
        session.close()
    return {name: answer for name, answer in answers.items() if "time" in answer}


def _show(rows: list[dict[str, Any]]) -> None:
    table = [("host", "mesh", "point", "cpus", "memory", "gpus", "load", "python", "used by", "at")]
    for row in rows:
        point = f"hosts={row['point']['hosts']}"
        if "error" in row:
            blank = ("-",) * 5
            table.append((row["name"], row["mesh"], point, *blank, "-", row["url"]))
            continue
        machine, gpus = row["machine"], row["gpus"]
        python = ".".join(map(str, machine["python"] or ())) or "-"
        table.append((
            row["name"], row["mesh"], point, str(machine["cpus"] or "-"),
            byte_size(machine["memory"]) if machine["memory"] else "-",
            f"{len(gpus)} x {gpus[0]}" if gpus else "-",
            f"{machine['load']:.1f}" if machine["load"] is not None else "-", python,
            row["user"] or "-", row["url"],
        ))  # fmt: skip
    echo_columns(table)
    for row in rows:
        if "error" in row:
            click.secho(f"{row['name']}: {row['error']}", fg="red")
