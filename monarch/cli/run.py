"""``monarch run``: a recipe, from a config file, on the allocation that is up."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

import click

from monarch.actor import HostMesh
from monarch.cli.display import run_display
from monarch.cli.project import PROJECT_FILE, Project, find_job, load_project
from monarch.config import configured, settings
from monarch.config_file import load_config
from monarch.job import LocalJob
from monarch.runs import Record
from monarch.runs.recipe import find_recipe
from monarch.runtime.client_agent import client

__all__ = ["run"]

_LOCAL_PROCS = 2
_INTERRUPTED_SECONDS = 1.0


@click.command()
@click.argument("recipe")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--config", "config_file", help="a TOML file for the recipe")
@click.option(
    "--procs",
    type=click.IntRange(min=1),
    help="procs on each host [default: 1, or 2 on a single host]",
)
def run(
    recipe: str, overrides: tuple[str, ...], config_file: str | None, procs: int | None
) -> None:
    """Run RECIPE: a built-in name such as ddp, a Python file, or a module.

    Runs on the allocation that `monarch apply` brought up in this folder, else on this machine
    alone. Sends the workspace of monarch.toml to the hosts first. Ctrl-C stops it, and saves
    first where the recipe can.
    """
    project = load_project(None)
    for folder in project.make_workspace().folders:
        sys.path.insert(0, str(folder.local))
    found = find_recipe(recipe)
    config = load_config(found.config_class, config_file, overrides, os.environ).config
    name, hosts, is_shared = _hosts()
    asyncio.run(_prepare(hosts, project))
    num_procs = procs or (_LOCAL_PROCS if hosts.size() == 1 else 1)
    preload = [name for name in ("torch",) if name in sys.modules]
    mesh = (
        None
        if found.takes_hosts
        else hosts.spawn_procs({"procs": num_procs}, name=found.name, preload=preload)
    )
    with run_display() as display:
        where = f"allocation '{name}'" if is_shared else "this machine alone"
        display.message(
            f"{recipe} on {where}: {_count(hosts.size(), 'host')} x {_count(num_procs, 'proc')}"
        )
        grace_seconds = settings().stop_timeout_seconds
        try:
            run_folder = Path("runs") / f"{found.name}-{time.strftime('%Y%m%d-%H%M%S')}"
            record = Record(run_folder, display, procs_per_host=num_procs)
            found.run(config, hosts if mesh is None else mesh, record)
        except KeyboardInterrupt:
            # What was worth saving has been saved. Actors may be far from done with a message.
            grace_seconds = min(grace_seconds, _INTERRUPTED_SECONDS)
            raise
        finally:
            if mesh is not None:
                with configured(stop_timeout_seconds=grace_seconds):
                    mesh.stop().get()


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


async def _prepare(hosts: HostMesh, project: Project) -> None:
    await hosts.initialized
    if (project.directory / PROJECT_FILE).exists():
        report = await hosts.sync_workspace(project.make_workspace())
        report.raise_for_errors()
        click.echo(report.one_line())


def _hosts() -> tuple[str, HostMesh, bool]:
    """The first mesh of the running job; without one, this machine."""
    job = find_job()
    client()
    state = (job or LocalJob())._state()
    name, hosts = next(iter(state._hosts.items()))
    return name, hosts, job is not None
