"""``monarch apply``, ``status``, ``kill`` and ``host``: the allocation itself."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from typing import Any

import click
from rich.console import Console

from monarch.actor import HostMesh, run_worker_loop_forever
from monarch.cli.asking import ask_hosts
from monarch.cli.host_table import show_hosts
from monarch.cli.phases import phase
from monarch.cli.project import find_job, load_project, may_come_up, no_allocation, noted_job
from monarch.errors import JobError
from monarch.job import JobTrait
from monarch.runtime.client_agent import client
from monarch.runtime.hosts.host_link import who_am_i
from monarch_sync.words import counted

__all__ = ["apply", "host", "inspect_hosts", "kill", "status"]

_POLL_SECONDS = 0.1


@click.command()
@click.argument("spec", required=False)
@click.option("--file", "file", help="the project file [default: monarch.toml]")
def apply(spec: str | None, file: str | None) -> None:
    """Bring the allocation up, or find it running.

    SPEC names a job in Python, as MODULE.NAME; without it, monarch.toml says what is wanted.
    """
    wanted = _named_job(spec) if spec else load_project(file).make_job()
    running = find_job()
    if running is not None and running.can_run(wanted):
        click.echo("already up")
        _show(running, inspect_hosts(running))
        return
    with phase("starting the hosts") as now:
        state = wanted.state()
        job = wanted._running or wanted
        for name, mesh in state._hosts.items():
            now(f"waiting for {counted(len(mesh), 'host')} of {name} to come up")
            _wait_until_up(mesh, job)
    _show(job, inspect_hosts(job))
    click.echo("end it with `monarch kill`")


def _wait_until_up(mesh: HostMesh, job: JobTrait) -> None:
    """Wait, but not for hosts that ended while they started: those will never answer."""
    is_up = mesh.initialized
    while True:
        try:
            is_up.get(timeout=_POLL_SECONDS)
            return
        except TimeoutError:
            if not job.is_running():
                reason = job.why_ended()
                job.kill()
                raise JobError(f"the allocation did not come up. {reason}") from None


def _named_job(spec: str) -> JobTrait:
    module, _, name = spec.rpartition(".")
    sys.path.insert(0, os.getcwd())
    try:
        job = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise JobError(f"{spec} is not a job: {error}") from None
    if not isinstance(job, JobTrait):
        raise JobError(f"{spec} is a {type(job).__name__}, not a job")
    return job


@click.command()
def status() -> None:
    """Hosts, procs, and the generation of code that each host has."""
    job = noted_job()
    found = {} if job is None else inspect_hosts(job)
    if job is None or not (job.is_running() or any("error" not in one for one in found.values())):
        raise no_allocation()
    _show(job, found)


@click.command()
def kill() -> None:
    """End the allocation and all that runs on it."""
    job = noted_job()
    if job is None:
        raise no_allocation()
    job.kill()
    click.echo("ended")


@click.command()
@click.option("--address", required=True, help="tcp://HOST:PORT or ipc://PATH to listen at")
def host(address: str) -> None:
    """Be the host agent of this machine, until ended.

    Beyond loopback the job's secret is needed, in MONARCH_JOB_SECRET.
    """
    try:
        run_worker_loop_forever(address=address)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise click.ClickException(reason or str(error)) from None


def _show(job: JobTrait, found: Mapping[str, Mapping[str, Any]]) -> None:
    """A table of hosts, by URL, and what runs on them."""
    names = job.names_by_url()
    show_hosts(found, who_am_i(), names)
    standing = [one for answer in found.values() for one in answer.get("bulletins", ())]
    for text in dict.fromkeys(str(one["text"]) for one in standing):
        Console().print(text, style="red", highlight=False, markup=False)
    for url, answer in found.items():
        for proc in answer.get("procs", ()):
            if proc.get("hangs"):
                who = f"{proc['name']} (pid {proc['pid']}) on {names.get(url, url)}"
                stuck = f"{who} does not answer: {proc['hangs']}"
                Console().print(stuck, style="yellow", highlight=False, markup=False)


def inspect_hosts(job: JobTrait) -> dict[str, dict[str, Any]]:
    """What each host agent of a job says of itself, by URL. Looks without becoming their client."""
    agent = client()
    addresses = {url: agent.visit(url) for url in job.urls()}
    return ask_hosts(agent.node, addresses, may_come_up=may_come_up(job))
