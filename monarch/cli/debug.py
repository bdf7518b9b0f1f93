"""``monarch debug``: a console for the calls that stand, of this folder's hosts and programs."""

from __future__ import annotations

from pathlib import Path

from monarch.cli.project import noted_job
from monarch.debugger.console import Console
from monarch.debugger.screen import make_screen
from monarch.debugger.visit import Visit
from monarch.runtime.client_agent import client
from monarch.wire.address import ProcAddress


def visit_here() -> Visit:
    """What can be looked into from this folder: the hosts of its allocation, and the programs of
    this user on this machine."""
    job = noted_job()

    def hosts() -> list[ProcAddress]:
        return [] if job is None else [job.visit(url) for url in job.urls()]

    return Visit(client().node, hosts)


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
