"""``monarch sync``: the workspace to the hosts, once or at every save."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import click
from rich.console import Console

from monarch.cli.allocation import inspect_hosts, running_job
from monarch.cli.project import load_project
from monarch.errors import HostUnreachable, MonarchError
from monarch.job import JobTrait
from monarch.runtime.client_agent import ClientAgent, client
from monarch.runtime.workspace.attempt import Owner
from monarch.runtime.workspace.remote_owner import RemoteOwner
from monarch.runtime.workspace.session import session_of
from monarch.wire.address import ProcAddress
from monarch_sync import Scanner, SyncError, SyncReport, Workspace

__all__ = ["sync"]


@click.command()
@click.option("--watch", is_flag=True, help="go on, and push at every save")
@click.option("--dry-run", is_flag=True, help="only say which files belong to the workspace")
@click.option("--file", "file", help="the project file [default: monarch.toml]")
@click.option("--verbose", "-v", is_flag=True, help="the whole report of each push")
def sync(watch: bool, dry_run: bool, file: str | None, verbose: bool) -> None:
    """Bring the workspace to all hosts, and its code into what runs there.

    Live processes switch to the new code between the same two messages on every rank. Code that
    does not compile, or does not run, changes nobody. Exits with 1 if the push was refused.
    """
    workspace = load_project(file).make_workspace()
    if dry_run:
        _list(workspace)
        return
    pusher = _Pusher(running_job(), workspace, verbose)
    is_ok = pusher.push(None)
    if not watch:
        sys.exit(0 if is_ok else 1)
    folders = ", ".join(str(folder.local) for folder in workspace.folders)
    pusher.console.print(f"watching {folders}; Ctrl-C ends it", style="dim", soft_wrap=True)
    try:
        for touched in session_of(client()).watcher(workspace):
            pusher.push(touched or None, is_quiet=True)
    except KeyboardInterrupt:
        pusher.console.print("stopped watching; hosts and processes stay as they are")


class _Pusher:
    """Pushes as a visitor: the hosts' client stays who it is, and switches its own processes."""

    def __init__(self, job: JobTrait, workspace: Workspace, verbose: bool) -> None:
        self.console = Console(highlight=False)
        self._job = job
        self._workspace = workspace
        self._verbose = verbose
        self._is_behind = False
        self._shown: tuple[str, list[str]] = "", []
        self._agent: ClientAgent = client()

    def push(self, touched: Iterable[Path] | None, is_quiet: bool = False) -> bool:
        """One push, and a line about it; ``is_quiet`` says nothing where nothing changed."""
        try:
            hosts, owners = self._hosts_and_owners()
            session = session_of(self._agent)
            # What was touched before a push that failed half-way may not have been looked at.
            looked_at = None if self._is_behind else touched
            report = session.push(hosts, self._workspace, owners=owners, touched=looked_at)
            self._is_behind = False
        except (MonarchError, SyncError) as error:
            self._is_behind = True
            self.console.print(f"✗ {error}", style="red", markup=False, soft_wrap=True)
            return False
        # One save may come as several events; its refusal is told once.
        said, self._shown = self._shown, (report.digest, report.errors)
        is_news = bool(report.changed_files) or bool(report.errors)
        if not is_quiet or (is_news and said != self._shown):
            self._show(report)
        return report.ok

    def _hosts_and_owners(self) -> tuple[list[ProcAddress], list[Owner]]:
        addresses = {url: self._agent.visit(url) for url in self._job.urls()}
        owners: dict[str, ProcAddress] = {}
        for url, answer in inspect_hosts(self._job).items():
            if "error" in answer:
                raise HostUnreachable(url, 5.0, str(answer["error"]))
            if "client_address" in answer:
                uid, urls, machine, *_ = answer["client_address"]
                owners[uid] = ProcAddress(uid, tuple(urls), machine)
        node = self._agent.node
        return list(addresses.values()), [RemoteOwner(node, owner) for owner in owners.values()]

    def _show(self, report: SyncReport) -> None:
        text = str(report) if self._verbose or not report.ok else report.one_line()
        style = None if report.ok else "red"
        self.console.print(text, style=style, markup=False, soft_wrap=True)


def _list(workspace: Workspace) -> None:
    """What a push would take along."""
    scan = Scanner(workspace).scan()
    files = [entry for entry in scan.manifest if entry.is_file]
    for entry in files:
        click.echo(f"{entry.size:>12,}  {entry.path}")
    click.echo(f"{sum(entry.size for entry in files):>12,}  bytes in {len(files)} files")
    for problem in scan.problems:
        click.echo(f"left out {problem}", err=True)
