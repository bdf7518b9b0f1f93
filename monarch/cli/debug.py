"""``monarch debug``: a console for the calls that stand, of this folder's hosts and programs."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import click

from monarch.cli.project import load_project, noted_job
from monarch.core.rank_sets import BadRanks, is_in, parse_set
from monarch.debugger.console import Console
from monarch.debugger.screen import make_screen
from monarch.debugger.visit import Visit
from monarch.errors import JobError
from monarch.runtime.client_agent import client
from monarch.wire.address import ProcAddress
from monarch.wire.message import Inspect
from monarch_sync.words import counted


def visit_here() -> Visit:
    """What can be looked into from this folder: the hosts of its allocation, and the programs of
    this user on this machine."""
    job = noted_job()

    def hosts() -> list[ProcAddress]:
        return [] if job is None else [job.visit(url) for url in job.urls()]

    return Visit(client().node, hosts)


def edit(mesh: str, ranks: str) -> None:
    """Serve an editor until it leaves, or Ctrl-C. ``mesh`` is that of the procs, "" for all."""
    from monarch.debugger.editor import EditorBridge, launch_entry, write_launch

    try:
        wanted = parse_set(ranks)
    except BadRanks as error:
        raise click.UsageError(str(error)) from None
    if importlib.util.find_spec("debugpy") is None:
        raise JobError("--vscode needs debugpy: pip install 'monarch-loop[debug]'")
    visit = visit_here()
    procs = [p for p in visit.procs() if mesh in ("", p.mesh) and is_in(wanted, p.rank)]
    if not procs:
        raise JobError("no such proc runs here: `monarch env get HOME` shows which do")
    bridge = EditorBridge(visit)
    try:
        for why in bridge.join(procs):
            click.echo(why, err=True)
        entry = launch_entry(bridge.port, _roots(visit))
        try:
            told = f"in {write_launch(Path.cwd(), entry)}"
        except (OSError, ValueError):
            told = f"for your launch.json:\n{json.dumps(entry, indent=4)}"
        click.echo(f"{counted(len(procs), 'rank')} at 127.0.0.1:{bridge.port}, {told}")
        click.echo(f"choose {entry['name']!r}, and F5; Ctrl-C here lets all ranks go on")
        bridge.wait()
    except KeyboardInterrupt:
        click.echo("detached; the ranks run on")
    finally:
        bridge.close()


def _roots(visit: Visit) -> list[tuple[str, str]]:
    """Folders of the workspace here, and where hosts have them."""
    project = load_project(None)
    found = []
    for place in visit.ask_places(visit.places(), lambda port: Inspect(port, visit.uid)):
        replica = place.get("workspace")
        for name in project.file.workspace.dirs if replica else ():
            here = (project.directory / name).resolve()
            found.append((str(here), f"{replica}/{here.name}"))
    return list(dict.fromkeys(found))


def debug(name: str | None, rank: int | None) -> None:
    """Read commands until the person leaves."""
    visit = visit_here()
    folder = Path(".monarch")
    history = folder / "debug_history" if folder.is_dir() else None
    toolbar = [lambda: ""]
    screen = make_screen(lambda: toolbar[0](), history)
    console = Console(visit, screen)
    toolbar[0] = console.toolbar
    console.run("" if name is None else f"attach {name} {rank or 0}")
