"""``monarch apply``, ``status``, ``kill`` and ``host``: the allocation itself."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import click
from rich.console import Console

from monarch.actor import HostMesh, run_worker_loop_forever
from monarch.cli.host_table import show_hosts
from monarch.cli.project import find_job, load_project, noted_job
from monarch.errors import JobError
from monarch.job import DEFAULT_JOB_PATH, JobTrait
from monarch.runtime.client_agent import client
from monarch.runtime.host_link import who_am_i
from monarch.runtime.promise import Promise
from monarch.wire.message import Inspect

__all__ = ["apply", "host", "inspect_hosts", "kill", "running_job", "status"]

_INSPECT_SECONDS = 5.0
_POLL_SECONDS = 0.1
_NO_JOB = (
    f"no allocation is up for this folder (no running job in {DEFAULT_JOB_PATH}): "
    "start one with `monarch apply`"
)


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
        _show(running)
        return
    state = wanted.state()
    job = wanted._running or wanted
    for mesh in state._hosts.values():
        _wait_until_up(mesh, job)
    _show(job)
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
    _show(running_job())


@click.command()
def kill() -> None:
    """End the allocation and all that runs on it."""
    job = noted_job()
    if job is None:
        raise JobError(_NO_JOB)
    job.kill()
    click.echo("ended")


@click.command()
@click.option("--address", required=True, help="tcp://HOST:PORT or ipc://PATH to listen at")
def host(address: str) -> None:
    """Be the host agent of this machine, until ended.

    Beyond loopback the job's secret is needed, in MONARCH_JOB_SECRET.
    """
    run_worker_loop_forever(address=address)


def running_job() -> JobTrait:
    job = find_job()
    if job is None:
        raise JobError(_NO_JOB)
    return job


def _show(job: JobTrait) -> None:
    """A table of hosts and what runs on them. Looks without becoming their client."""
    found = inspect_hosts(job)
    show_hosts(found, who_am_i())
    for url, answer in found.items():
        for proc in answer.get("procs", ()):
            if proc.get("hangs"):
                stuck = (
                    f"{proc['name']} (pid {proc['pid']}) on {url} does not answer: {proc['hangs']}"
                )
                Console().print(stuck, style="yellow", highlight=False, markup=False)


def inspect_hosts(job: JobTrait) -> dict[str, dict[str, Any]]:
    """What each host agent of a job says of itself, by URL."""
    agent = client()
    node = agent.node
    asked: dict[str, Promise[Any]] = {}
    for url in job.urls():
        address = agent.visit(url)
        asked[url] = node.request(address, lambda port: Inspect(port, node.uid))
    found: dict[str, dict[str, Any]] = {}
    for url, promise in asked.items():
        if not promise.wait(_INSPECT_SECONDS):
            found[url] = {"error": f"no answer within {_INSPECT_SECONDS:.0f} s"}
        elif promise.value.error:
            found[url] = {"error": promise.value.error}
        else:
            found[url] = promise.value.body
    return found
