"""``monarch debug``: a console for the calls that stand, of this folder's hosts and programs.

``monarch stacks``: where the threads of all ranks are.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import click

from monarch.cli.project import load_project, no_allocation, noted_job
from monarch.core.rank_sets import BadRanks, is_in, parse_set
from monarch.debugger.console import Console
from monarch.debugger.running import stacks_lines
from monarch.debugger.screen import make_screen
from monarch.debugger.visit import NotAnswered, SeenProc, Visit
from monarch.errors import JobError
from monarch.net.machine import machine_id
from monarch.runtime.client_agent import client
from monarch.wire.address import ProcAddress
from monarch_sync.words import counted

_PY_SPY_SECONDS = 20.0


def visit_here() -> Visit:
    """What can be looked into from this folder: the hosts of its allocation, and the programs of
    this user on this machine."""
    job = noted_job()

    def hosts() -> list[ProcAddress]:
        return [] if job is None else [job.visit(url) for url in job.urls()]

    return Visit(client().node, hosts)


def nothing_runs() -> JobError:
    """Why there is no proc to look into, as far as the folder tells."""
    job = noted_job()
    if job is not None and not job.is_running():
        return no_allocation()
    return JobError("no proc runs here: `monarch run`, or a program of yours, starts some")


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
    everybody = visit.procs()
    procs = [p for p in everybody if mesh in ("", p.mesh) and is_in(wanted, p.rank)]
    if not everybody:
        raise nothing_runs()
    if not procs:
        raise JobError("no such proc runs here: `monarch env get HOME` shows which do")
    folders = load_project(None).make_workspace().dirs
    bridge = EditorBridge(visit, lambda text: click.echo(text, err=True), folders)
    try:
        failed = bridge.join(procs)
        if len(failed) == len(procs):
            raise JobError("no rank takes an editor: " + "; ".join(failed))
        for why in failed:
            click.echo(why, err=True)
        entry = launch_entry(bridge.port, bridge.roots(procs))
        try:
            told = f"in {write_launch(Path.cwd(), entry)}"
        except (OSError, ValueError):
            told = f"for your launch.json:\n{json.dumps(entry, indent=4)}"
        click.echo(
            f"{counted(len(procs) - len(failed), 'rank')} at 127.0.0.1:{bridge.port}, {told}"
        )
        click.echo(f"choose {entry['name']!r}, and F5; Ctrl-C here lets all ranks go on")
        bridge.wait()
    except KeyboardInterrupt:
        click.echo("detached; the ranks run on")
    finally:
        bridge.close()


def debug(name: str | None, rank: int | None) -> None:
    """Read commands until the person leaves, from the debugger of a rank on, if one is named.
    Raises ``JobError`` if that neither stands nor runs a call."""
    visit = visit_here()
    folder = Path(".monarch")
    history = folder / "debug_history" if folder.is_dir() else None
    toolbar = [lambda: ""]
    screen = make_screen(lambda: toolbar[0](), history)
    console = Console(visit, screen)
    toolbar[0] = console.toolbar
    try:
        console.run(name or "", rank or 0)
    except NotAnswered as error:
        raise JobError(f"there is nothing to attach to: {error}") from None


def stacks(ranks: str, with_locals: bool, native: bool, mesh: str) -> None:
    """Print the stacks of these ranks; equal ones once."""
    try:
        wanted = parse_set(ranks)
    except BadRanks as error:
        raise click.UsageError(str(error)) from None
    visit = visit_here()
    everybody = visit.procs()
    procs = [proc for proc in everybody if mesh in ("", proc.mesh) and is_in(wanted, proc.rank)]
    if not everybody:
        raise nothing_runs()
    if not procs:
        raise JobError("that is none of the procs that run")
    if native:
        for proc in procs:
            click.echo(_native(proc))
        return
    click.echo("\n".join(stacks_lines(visit, procs, with_locals=with_locals)))


def _native(proc: SeenProc) -> str:
    """By py-spy, of a process of this machine: elsewhere its pid is that of another one."""
    head = f"{proc.mesh} {proc.rank} (pid {proc.pid} on {proc.host})"
    if proc.address.machine != machine_id():
        return (
            f"{head}\nit runs on another machine, whose py-spy answers "
            '`monarch query "SELECT * FROM pyspy_frames"`'
        )
    program = Path(sys.executable).with_name("py-spy")
    if not program.exists():
        raise JobError("--native needs py-spy: pip install 'monarch-loop[debug]'")
    done = subprocess.run(
        [program, "dump", "--native", "--pid", str(proc.pid)],
        capture_output=True, text=True, timeout=_PY_SPY_SECONDS, check=False,
    )  # fmt: skip
    said = done.stdout if done.returncode == 0 else done.stderr.strip()
    return f"{head}\n{said}"
