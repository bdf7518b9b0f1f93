"""``monarch debug``: a console for held calls, of this folder's hosts and programs.

``monarch stacks``: where the threads of all ranks are.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import click

from monarch.cli.hosts.hosts_here import hosts_here
from monarch.cli.project import load_project, no_allocation, noted_job
from monarch.core.rank_sets import BadRanks, in_ranges, is_in, parse_set
from monarch.debugger.console import Console
from monarch.debugger.running import stacks_lines
from monarch.debugger.screen import make_screen
from monarch.debugger.visit import NotAnswered, SeenProc, Visit
from monarch.errors import JobError
from monarch.net.machine import machine_id
from monarch.observe.visit import programs_here
from monarch.runtime.client_agent import client
from monarch.wire.address import ProcAddress, Uid
from monarch_sync.words import counted

_PY_SPY_SECONDS = 20.0


def visit_here() -> Visit:
    """Return a visit to this folder's hosts, and to this user's programs on this machine."""
    job = noted_job()
    #: The hosts of the job that were connected to, by URL.
    visited: dict[str, ProcAddress] = {}

    def hosts() -> dict[str, ProcAddress]:
        hosts = {}
        if job is not None:
            names = job.names_by_url()
            for url in job.urls():
                if url not in visited:
                    visited[url] = job.visit(url)
                hosts[names.get(url, url)] = visited[url]
        uids = {address.uid for address in hosts.values()}
        for pid, address in programs_here():
            if pid != os.getpid() and address.uid not in uids:
                hosts[f"program {pid}"] = address
        return hosts

    return Visit(client().node, hosts)


def nothing_runs() -> JobError:
    """Return the error for a folder in which no proc runs; it says why, if that is known."""
    job = noted_job()
    if job is not None and not job.is_running():
        return no_allocation()
    return JobError("no proc runs here: `monarch run`, or a program of yours, starts some")


def procs_here(ranks: str, mesh: str, *, may_be_none: bool = False) -> tuple[Visit, list[SeenProc]]:
    """Return a visit, and the running procs of these ranks and this mesh ("": any mesh).

    Raises ``UsageError`` for text that names no ranks. If there is no such proc, raises
    ``JobError``, or with ``may_be_none`` returns no procs.
    """
    try:
        rank_set = parse_set(ranks)
    except BadRanks as error:
        raise click.UsageError(str(error)) from None
    visit = visit_here()
    all_procs = visit.procs()
    tell_silence(visit)
    procs = [proc for proc in all_procs if mesh in ("", proc.mesh) and is_in(rank_set, proc.rank)]
    if procs or may_be_none:
        return visit, procs
    if all_procs:
        raise JobError(f"that is none of the procs that run: {in_words(all_procs)}")
    raise nothing_runs()


def tell_silence(visit: Visit) -> None:
    """Print which hosts did not answer, and why."""
    for line in visit.silence():
        click.echo(line, err=True)


def in_words(procs: Iterable[SeenProc]) -> str:
    """Return meshes and ranks of procs, as ``trainer 0-3 and generator 0``."""
    return " and ".join(
        f"{name} {in_ranges(proc.rank for proc in procs_of_mesh)}"
        for name, procs_of_mesh in by_mesh(procs).items()
    )


def by_mesh(procs: Iterable[SeenProc]) -> dict[str, list[SeenProc]]:
    """Return the procs of each mesh, by its name."""
    meshes: dict[str, list[SeenProc]] = {}
    for proc in procs:
        meshes.setdefault(proc.mesh, []).append(proc)
    return meshes


def edit(mesh: str, ranks: str) -> None:
    """Serve an editor until it leaves, or Ctrl-C. ``mesh`` chooses the procs; "" is all."""
    from monarch.debugger.editor import EditorBridge, launch_entry, write_launch

    if importlib.util.find_spec("debugpy") is None:
        raise JobError("--vscode needs debugpy: pip install 'monarch-loop[debug]'")
    visit, procs = procs_here(ranks, mesh)
    folders = load_project(None).make_workspace().dirs
    bridge = EditorBridge(visit, lambda text: click.echo(text, err=True), folders)
    try:
        failed = bridge.join(procs)
        if len(failed) == len(procs):
            raise JobError("no rank takes an editor: " + "; ".join(failed))
        for reason in failed:
            click.echo(reason, err=True)
        entry = launch_entry(bridge.port, bridge.roots(procs))
        try:
            where = f"in {write_launch(Path.cwd(), entry)}"
        except (OSError, ValueError):
            where = f"for your launch.json:\n{json.dumps(entry, indent=4)}"
        click.echo(
            f"{counted(len(procs) - len(failed), 'rank')} at 127.0.0.1:{bridge.port}, {where}"
        )
        click.echo(f"choose {entry['name']!r}, and F5; Ctrl-C here lets all ranks go on")
        bridge.wait()
    except KeyboardInterrupt:
        click.echo("detached; the ranks run on")
    finally:
        bridge.close()


def debug(name: str | None, rank: int | None) -> None:
    """Run the debugger's console until the user leaves it.

    With ``name`` (and ``rank``) it opens at that rank. Raises ``JobError`` if that rank neither
    runs a call nor is held at one.
    """
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
        reasons = "; ".join([str(error), *visit.silence()])
        raise JobError(f"there is nothing to attach to: {reasons}") from None


def stacks(ranks: str, with_locals: bool, native: bool, mesh: str) -> None:
    """Print the stacks of these ranks; equal ones are printed once."""
    visit, procs = procs_here(ranks, mesh)
    if native:
        for proc in procs:
            click.echo(_native(proc))
        return
    hosts = {address.uid for address in hosts_here().values()}
    for heading, procs_of_program in _by_program(procs, hosts):
        if heading:
            click.echo(heading)
        click.echo("\n".join(stacks_lines(visit, procs_of_program, with_locals=with_locals)))


def _by_program(
    procs: Sequence[SeenProc], hosts: Collection[Uid]
) -> list[tuple[str, list[SeenProc]]]:
    """Return pairs of a heading and procs: one pair, with the heading "", for this folder's procs.

    They are the procs on ``hosts``, and those whose process runs in this folder. If there are none,
    return a pair for each other program of this user.
    """
    folder = os.getcwd()
    own_procs = [p for p in procs if p.address.host_uid in hosts or _folder_of(p) == folder]
    if own_procs:
        return [("", own_procs)]
    programs: dict[Uid, list[SeenProc]] = {}
    for proc in procs:
        programs.setdefault(proc.address.host_uid, []).append(proc)
    return [
        (f"of the program in {_folder_of(others[0]) or others[0].host}:", others)
        for others in programs.values()
    ]


def _folder_of(proc: SeenProc) -> str:
    """Return the folder in which a process of this machine runs; "" for another machine's."""
    if proc.address.machine != machine_id():
        return ""
    try:
        return os.readlink(f"/proc/{proc.pid}/cwd")
    except OSError:
        return ""


def _native(proc: SeenProc) -> str:
    """Return py-spy's stack of a proc of this machine; for another machine's, how to get it."""
    head = f"{proc.mesh} {proc.rank} (pid {proc.pid} on {proc.host})"
    if proc.address.machine != machine_id():
        return (
            f"{head}\nit runs on another machine, whose py-spy answers "
            '`monarch query "SELECT * FROM pyspy_frames"`'
        )
    program = Path(sys.executable).with_name("py-spy")
    if not program.exists():
        raise JobError("--native needs py-spy: pip install 'monarch-loop[debug]'")
    process = subprocess.run(
        [program, "dump", "--native", "--pid", str(proc.pid)],
        capture_output=True,
        text=True,
        timeout=_PY_SPY_SECONDS,
        check=False,
    )
    output = process.stdout if process.returncode == 0 else process.stderr.strip()
    return f"{head}\n{output}"
