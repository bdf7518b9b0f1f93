"""``monarch dashboard``: finds the data of the page, and starts the server that shows it."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import click

from monarch.cli.hosts.hosts_here import hosts_here
from monarch.cli.observe.opening import page_opener
from monarch.cli.observe.run_actions import OwnFiles, RunActions
from monarch.cli.observe.target import StayHere, run_paths
from monarch.cli.observe.views import RankActions
from monarch.cli.project import no_allocation
from monarch.errors import JobError
from monarch.job import job_loads
from monarch.observe.query import QueryEngine, QueryTables, kept_rows
from monarch.observe.visit import MeshVisit, program_at
from monarch.runs.record.folder import RUNS, RunFolder, find_run, runs_in
from monarch.runtime.client_agent import client
from monarch.runtime.ends.process_group import signal_self
from monarch.view.run_view import PageSource
from monarch.wire.address import ProcAddress

_PORT = 8265
Hosts = Callable[[], Mapping[str, ProcAddress]]


def dashboard(
    run: str | None, port: int | None, read_only: bool, opens: bool, from_stdin: bool
) -> None:
    """Serve the page until Ctrl-C, and print its URL.

    ``port`` ``None`` is the default port, or a free one if that is taken.
    """
    try:
        from monarch.view.server import PageServer
    except ImportError:
        raise JobError(
            "monarch dashboard needs Starlette and uvicorn, which are not installed: "
            "pip install 'monarch-loop[observe]'"
        ) from None
    if from_stdin:
        source = _of_program()
    elif run is not None:
        source = _of_run(find_run(run), read_only)
    else:
        source = _of_folder(read_only)
    try:
        server = PageServer(source, _PORT if port is None else port)
    except OSError as error:
        if port is not None:
            raise JobError(
                f"cannot listen at 127.0.0.1:{port}: {error.strerror}; `--port 0` takes a free one"
            ) from None
        server = PageServer(source)
    if from_stdin:
        server.run(partial(print, flush=True))
        return
    with page_opener() as opener:

        def started(url: str) -> None:
            click.echo(url)
            click.echo("open it in a browser on this machine; Ctrl-C ends the page, nothing else")
            if opens and not opener.open(url):
                click.echo("no browser could be opened here")

        server.run(started)


def _of_folder(read_only: bool) -> PageSource:
    """Return the page of what runs in this folder, also of what begins later, and of its runs.

    Raises ``JobError`` if nothing runs, and there is no run.
    """
    hosts = hosts_here()
    if not hosts and not runs_in(RUNS):
        raise no_allocation()
    visit = MeshVisit(client().node, hosts)
    return _live(visit, hosts_here, os.path.basename(os.getcwd()), read_only)


def _live(visit: MeshVisit, hosts: Hosts, title: str, read_only: bool) -> PageSource:
    ranks, runs = RankActions(visit), RunActions()

    def tables(sql: str) -> QueryTables:
        return QueryEngine(lambda: visit, run_paths()).tables(sql)

    def act(action: str, targets: Sequence[str]) -> str:
        return runs.do(action, targets) if runs.knows(action) else ranks.do(action, targets)

    return PageSource(
        title=title,
        look=StayHere(visit, hosts).look,
        tables=tables,
        act=act,
        runs=lambda: runs_in(RUNS),
        is_read_only=read_only,
        locate=OwnFiles().locate,
    )


def _of_run(run: RunFolder, read_only: bool) -> PageSource:
    """Return the page of a run from the data in its folder; no host is asked."""

    def act(action: str, uids: Sequence[str]) -> str:
        raise JobError(f"{run.name} has ended: there is nothing to ask for {action}")

    return PageSource(
        title=run.name,
        look=None,
        act=act,
        runs=lambda: [run],
        is_read_only=read_only,
        tables=lambda sql: QueryTables(kept_rows([run.path]), [run.path]),
    )


def _of_program() -> PageSource:
    """Return the page for the program that started this process.

    The program writes one line to our standard input: its job and pid, or neither for everything
    that runs in this folder. When it closes that input, this process ends.
    """
    request = json.loads(sys.stdin.readline())

    def end_with_it() -> None:
        sys.stdin.read()
        signal_self(signal.SIGTERM)

    threading.Thread(target=end_with_it, daemon=True).start()
    if "job" not in request:
        return _of_folder(False)
    job = job_loads(request["job"].encode())
    names = job.names_by_url()
    hosts = {names.get(url, url): job.visit(url) for url in job.urls()}
    program = program_at(request["pid"])
    if program is not None:
        hosts["the program"] = program
    return _live(MeshVisit(client().node, hosts), lambda: hosts, job.kind, False)
