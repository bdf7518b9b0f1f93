"""``monarch apply``, ``status``, ``kill`` and ``host``: the allocation itself."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Mapping

import click
from rich.console import Console

from monarch.actor import HostMesh, run_worker_loop_forever
from monarch.cli.allocation.host_table import show_hosts
from monarch.cli.allocation.users import users_of
from monarch.cli.project import (
    PROJECT_FILE,
    load_project,
    may_come_up,
    no_allocation,
    noted_job,
    other_states,
)
from monarch.cli.terminal.confirm import ask_before
from monarch.cli.terminal.phases import phase
from monarch.cli.terminal.volume import is_quiet, say
from monarch.cli.trust import require_trust
from monarch.config.duration import parse_duration
from monarch.errors import HostBusy, JobError, MonarchError
from monarch.job import JobTrait
from monarch.job.contexts import DEFAULT_CONTEXT, current_context, spec_of, write_spec
from monarch.job.current_job import job_named
from monarch.runtime.answers import Response
from monarch.runtime.client_agent import client
from monarch.runtime.hosts.asking import inspect_hosts
from monarch.wire.message import HostState, IdleLimit
from monarch_sync.words import counted, plain, took

_POLL_SECONDS = 0.1
_WATCH_SECONDS = 1.0
_HOME_AND_CLEAR = "\x1b[H\x1b[J"
_ANSWER_SECONDS = 5.0


def apply(spec: str | None, file: str | None, yes: bool, idle_timeout: str | None = None) -> None:
    """Bring the wanted job up; if it is up already, only restart its lost hosts.

    ``spec`` is MODULE.NAME, ``file`` a project file; without them it is the job of this folder. The
    hosts end by themselves after ``idle_timeout`` without use.
    """
    limit = None if idle_timeout is None else _seconds(idle_timeout)
    job_wanted = _wanted(spec, file, yes=yes)
    noted = noted_job()
    if noted is not None and noted.can_run(job_wanted) and noted.ending is None:
        is_whole = noted.is_whole()
        if is_whole:
            say("already up")
        if is_whole or ((noted.is_running() or noted.num_running()) and _is_repaired(noted)):
            _limit_idleness(noted, limit)
            _show_unasked(noted)
            return
    if noted is not None:
        _agree_to_replace(noted, yes)
    elif warning := other_states():
        say(warning.strip())  # Once: a note of ours is put in the place of such a file.
    with phase("starting the hosts") as update_text:
        state = job_wanted.state()
        job = job_wanted._running or job_wanted
        for name, mesh in state._hosts.items():
            update_text(f"waiting for {counted(len(mesh), 'host')} of {name} to come up")
            _wait_until_up(mesh, job)
    _limit_idleness(job, limit)
    _show_unasked(job)
    say("end it with `monarch kill`")


def _wanted(spec: str | None, file: str | None, *, yes: bool) -> JobTrait:
    """Return the wanted job: that of ``spec``, else of ``file``, else of the context in use.

    Where none of them names a job, it is that of the project file in this folder. Without such a
    file it is one host on this machine, if the person agrees. A project file must be trusted.

    ``spec`` or ``file`` is recorded as the context's job, if the context is not the default one, or
    has a job already.
    """
    context = current_context()
    spec_or_file = spec or file or spec_of(context)
    is_file = spec_or_file.endswith(".toml") or (spec_or_file == file and bool(file))
    if is_file or not spec_or_file:
        project = load_project(spec_or_file or None)
        if not spec_or_file and not (project.directory / PROJECT_FILE).exists():
            say(
                f"there is no {PROJECT_FILE} here (`monarch init` writes one): this brings up one "
                f"host, on this machine, which gets nothing of {project.directory}"
            )
            ask_before("Bring it up?", yes)
        require_trust(project)
        job = project.make_job()
    else:
        job = job_named(spec_or_file)
    if (spec or file) and (context != DEFAULT_CONTEXT or spec_of(context)):
        write_spec(context, spec_or_file)
    return job


def _seconds(text: str) -> float:
    try:
        return 0.0 if text.strip() == "0" else parse_duration(text)
    except ValueError:
        raise click.UsageError(
            f"--idle-timeout {text}: give it as 30m, 2h, 90s, or 0 for never"
        ) from None


def _limit_idleness(job: JobTrait, seconds: float | None) -> None:
    """Make the hosts end by themselves once none of them has been used for ``seconds``."""
    if seconds is None:
        return
    addresses = tuple(job.visit(url) for url in job.urls())
    if not addresses:
        raise JobError(f"a {job.kind} job has no hosts that outlive this command")
    node = client().node
    answers = [node.ask(address, IdleLimit(seconds, addresses)) for address in addresses]
    for url, answer in zip(job.urls(), answers, strict=True):
        if not answer.wait(_ANSWER_SECONDS) or answer.value.error:
            name = job.names_by_url().get(url, url)
            raise JobError(f"{name} does not know when to end: it gives no answer")
    if seconds:
        say(f"it ends when nobody has used it for {took(seconds)}")
    else:
        say("it stays, however long nobody uses it")


def _show_unasked(job: JobTrait) -> None:
    if not is_quiet():
        _show(job, inspect_job(job))


def _is_repaired(job: JobTrait) -> bool:
    """Restart the hosts of a job that have ended, and return whether that was possible.

    False means that the whole job must be made again.
    """
    reason = job.why_ended()
    try:
        names = job.repair()
    except JobError:
        return False
    for mesh in job._state()._hosts.values():
        _wait_until_up(mesh, job)
    num_others = job.num_running() - len(names)
    say(reason)
    say(f"brought up again: {', '.join(names)}; {counted(num_others, 'host')} went on as before")
    return True


def _agree_to_replace(job: JobTrait, is_agreed: bool) -> None:
    """Report that ``job`` ends because another one is wanted; ask first if a program uses its
    hosts.

    With ``is_agreed`` nothing is asked. Raises ``JobError`` or ``click.Abort`` without agreement.
    """
    num_hosts = job.num_running()
    if not num_hosts:
        return
    problem = "another allocation is wanted than the one that is up"
    users = " and ".join(users_of(job))
    if users and not ask_before(f"{problem}. End {users} with it?", is_agreed):
        raise JobError(
            f"{problem}, and {users} runs on that. End it first, or with it: `monarch apply --yes`"
        )
    say(f"{problem}: ending {f'{users}, with ' if users else ''}{counted(num_hosts, 'host')}")


def _wait_until_up(mesh: HostMesh, job: JobTrait) -> None:
    """Wait until the hosts of ``mesh`` answer.

    If they end instead, kill ``job`` and raise ``JobError`` with the reason.
    """
    is_up = mesh.initialized
    while True:
        try:
            is_up.get(timeout=_POLL_SECONDS)
            return
        except HostBusy:
            return  # A run has moved over to it already.
        except (TimeoutError, MonarchError) as error:
            # Either the host's end or our look at it may come first: the error is the same.
            if not job.is_running():
                reason = job.why_ended()
                job.kill()
                raise JobError(f"the allocation did not come up. {reason}") from None
            if not isinstance(error, TimeoutError):
                raise


def status(watch: bool) -> None:
    """Print a table of hosts and procs; with ``watch``, again each second until Ctrl-C."""
    _status_once()
    if watch:
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                time.sleep(_WATCH_SECONDS)
                if sys.stdout.isatty():
                    click.echo(_HOME_AND_CLEAR, nl=False)
                _status_once()


def _status_once() -> None:
    job = noted_job()
    responses = {} if job is None else inspect_job(job)
    if job is None or not (
        job.is_running() or any(not response.error for response in responses.values())
    ):
        raise no_allocation()
    _show(job, responses)


def kill(yes: bool) -> None:
    """End the allocation, asking first at a terminal where a run is going on."""
    job = noted_job()
    if job is None:
        say(f"no allocation is up for this folder: there is nothing to end{other_states()}")
        return
    users = " and ".join(users_of(job))
    if users:
        ask_before(f"{users} runs on it: end that too?", yes)
        say(f"ending {users}")
    job.kill()
    say("ended")


def host(address: str) -> None:
    """Serve as host agent at ``address`` until ended."""
    try:
        run_worker_loop_forever(address=address)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise click.ClickException(reason or str(error)) from None


def _show(job: JobTrait, responses: Mapping[str, Response[HostState]]) -> None:
    """Print a table of the hosts and their procs; ``responses`` are the hosts' answers, by URL."""
    names = job.names_by_url()
    # A host without a user's name is free.
    show_hosts(responses, names)
    states = {url: response.answer for url, response in responses.items() if not response.error}
    bulletins = [bulletin for state in states.values() for bulletin in state.bulletins]
    for kind, text in dict.fromkeys((bulletin.kind, bulletin.text) for bulletin in bulletins):
        if kind == "watching":
            click.echo(f"watched by {text}")
        else:
            Console().print(plain(text), style="red", highlight=False, markup=False)
    for url, state in states.items():
        for proc in state.procs:
            if proc.hangs:
                proc_name = f"{proc.label} (pid {proc.pid}) on {names.get(url, url)}"
                warning = f"{proc_name} does not answer: {proc.hangs}"
                Console().print(warning, style="yellow", highlight=False, markup=False)


def inspect_job(job: JobTrait) -> dict[str, Response[HostState]]:
    """Return each host agent's state, by URL, or its ``error``, without becoming its client."""
    addresses = {url: job.visit(url) for url in job.urls()}
    return inspect_hosts(client().node, addresses, may_come_up=may_come_up(job))
