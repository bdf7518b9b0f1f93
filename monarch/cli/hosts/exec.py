"""``monarch exec``, ``shell`` and ``forward``: commands, shells and ports on running hosts."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import click

from monarch.cli.allocation.allocation import kill
from monarch.cli.project import may_come_up, no_allocation, noted_job
from monarch.cli.terminal.terminal import Terminal
from monarch.cli.terminal.volume import say
from monarch.errors import JobError
from monarch.job import JobTrait
from monarch.job.exec.commands import open_shell, python_or_not
from monarch.job.exec.exec_run import Program, check_program, run_and_show
from monarch.job.exec.ranks import JobHost, chosen, hosts_of, parse_point, ranks_on
from monarch.runtime.client_agent import client
from monarch.runtime.hosts.asking import inspect_hosts
from monarch.runtime.programs.port_forward import PortForward
from monarch.wire.address import ProcAddress
from monarch.wire.message import HostState

_LOOK_SECONDS = 0.5
_OF_A_SHELL = frozenset(" ;|&$<>`*")


def _check_no_shell_line(command: Sequence[str]) -> None:
    """Raise ``UsageError`` for a single word that only a shell can run."""
    if len(command) == 1 and _OF_A_SHELL & set(command[0]) and not Path(command[0]).exists():
        raise click.UsageError(
            f"{command[0]!r} is a line for a shell: "
            f"`monarch exec bash -c {shlex.quote(command[0])}`"
        )


class LiveHost(NamedTuple):
    """A host that has just answered."""

    host: JobHost
    address: ProcAddress
    state: HostState


def up_job() -> JobTrait:
    """Return the allocation of this folder. Raises ``JobError`` if there is none."""
    job = noted_job()
    if job is None or not job.urls():
        raise no_allocation()
    return job


def ask(job: JobTrait, hosts: Sequence[JobHost]) -> tuple[list[LiveHost], dict[str, str]]:
    """Ask these hosts for their state; return the hosts that answer, and the errors of the others.

    The errors are by the host's name.
    """
    addresses = {host.url: job.visit(host.url) for host in hosts}
    responses = inspect_hosts(client().node, addresses, may_come_up=may_come_up(job))
    live = [
        LiveHost(host, addresses[host.url], responses[host.url].answer)
        for host in hosts
        if not responses[host.url].error
    ]
    wrong = {h.name: responses[h.url].error for h in hosts if responses[h.url].error}
    return live, wrong


def all_live(job: JobTrait, hosts: Sequence[JobHost]) -> list[LiveHost]:
    """Return all ``hosts`` with their states. Raises ``JobError`` if one does not answer."""
    live, wrong = ask(job, hosts)
    if wrong and not live and not job.is_running():
        raise no_allocation()
    if wrong:
        errors = "\n".join(f"{name}: {error}" for name, error in wrong.items())
        raise JobError(f"{errors}\n`monarch apply` brings hosts up again that have ended")
    return live


def one_host(mesh: str | None, point: str | None) -> LiveHost:
    """Return the host that a person has named, by default the first of the first mesh."""
    job = up_job()
    return all_live(job, hosts_at(chosen(hosts_of(job), mesh, only_one=False), point or "0")[:1])[0]


def hosts_at(hosts: Sequence[JobHost], point: str) -> list[JobHost]:
    """Return those of ``hosts`` that are in the first host's mesh, at ``point``."""
    hosts = _of_first_mesh(hosts)
    ranks = ranks_on(_addresses(hosts), {}, parse_point(point))
    return [hosts[rank.number] for rank in ranks]


def _of_first_mesh(hosts: Sequence[JobHost]) -> list[JobHost]:
    return [host for host in hosts if host.mesh == hosts[0].mesh]


def _addresses(hosts: Sequence[JobHost]) -> list[tuple[ProcAddress, str]]:
    return [(ProcAddress(host.url), host.name) for host in hosts]


def exec_(
    is_all: bool,
    mesh: str | None,
    is_one: bool,
    point: str | None,
    per_host: Sequence[str],
    variables: Sequence[str],
    workdir: str | None,
    script: str | None,
    is_module: bool,
    aggregate: float | None,
    kills: bool,
    command: Sequence[str],
) -> None:
    """Run a command on hosts; exit with the largest status."""
    if is_all and (mesh or is_one or point):
        raise click.UsageError("--all goes without --mesh, --one and --point")
    if is_one and point:
        raise click.UsageError("choose one of --one and --point")
    if is_module and (script or not command):
        raise click.UsageError("-m goes with the name of a module, and without --script")
    _check_no_shell_line(command)
    arguments, is_python = python_or_not(command, is_module=is_module)
    text = _script(script) if script is not None else None
    if text is not None:
        arguments, is_python = tuple(command), bool(script and script.endswith(".py"))
    sizes = {dim: _count(dim, number) for dim, number in map(_pair, per_host)}
    program = Program(arguments, dict(map(_pair, variables)), workdir or "", text, is_python)
    check_program(program)
    job = up_job()
    is_many = is_all or (mesh is not None and not is_one)
    hosts = chosen(hosts_of(job), mesh, only_one=not (is_many or point))
    if point and mesh is None:
        hosts = _of_first_mesh(hosts)
    rank_point = parse_point(point) if point else None
    # A host that is not chosen need not answer.
    wanted_ranks = ranks_on(_addresses(hosts), sizes, rank_point)
    urls = {rank.host.uid for rank in wanted_ranks}
    all_hosts = all_live(job, [host for host in hosts if host.url in urls])
    live = {live_host.host.url: live_host for live_host in all_hosts}
    ranks = [
        rank._replace(host=live[rank.host.uid].address, host_name=live[rank.host.uid].state.host)
        for rank in wanted_ranks
    ]
    takes_input = len(ranks) == 1 and script != "-" and not _is_terminal(0)
    with _then_killed(kills):
        status = run_and_show(
            client().node,
            ranks,
            program,
            window_seconds=aggregate or 0.0,
            stdin=0 if takes_input else None,
            tell=_tell,
        )
    sys.exit(status)


@contextmanager
def _then_killed(kills: bool) -> Iterator[None]:
    """End the allocation after the block, if ``kills`` is true."""
    try:
        yield
    finally:
        if kills:
            kill(yes=True)


def _is_terminal(fd: int) -> bool:
    try:
        return os.isatty(fd)
    except OSError:
        return True  # Closed: there is nothing to read.


def _tell(text: str) -> None:
    Terminal(sys.stderr).prose(text)


def _script(name: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise JobError(f"cannot read the script {name}: {error.strerror}") from None


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.UsageError(f"{text!r}: give it as NAME=VALUE")
    return name, value


def _count(dim: str, number: str) -> int:
    if not number.isdecimal() or int(number) < 1:
        raise click.UsageError(f"--per-host {dim}={number}: give a number of processes")
    return int(number)


def shell(
    mesh: str | None,
    point: str | None,
    variables: Sequence[str],
    workdir: str | None,
    kills: bool,
    command: Sequence[str],
) -> None:
    """Open a shell on one host, in this terminal."""
    host = one_host(mesh, point)
    env = dict(map(_pair, variables))
    with _then_killed(kills):
        status = open_shell(host.address, env=env, directory=workdir or "", command=command)
    sys.exit(status)


def forward(ports: Sequence[str], mesh: str | None, point: str | None, bind: str, to: str) -> None:
    """Forward ports of a host to this machine, until Ctrl-C."""
    port_pairs = [_ports(text) for text in ports]
    host = one_host(mesh, point)
    node, name = client().node, host.state.host
    forwards: list[PortForward] = []
    try:
        for local, remote in port_pairs:
            try:
                forwarding = PortForward(
                    node, host.address, remote, bind=(bind, local), to=to, tell=_tell
                )
            except OSError as error:
                raise JobError(
                    f"cannot listen at {bind}:{local}: {os.strerror(error.errno or 0)}. Give "
                    f"another port here, as in {local + 1 if local < 65535 else local - 1}:{remote}"
                ) from None
            forwards.append(forwarding)
            target = f"port {remote} of {name}" if to == "127.0.0.1" else f"{to}:{remote} by {name}"
            say(f"{forwarding.address[0]}:{forwarding.address[1]} is {target}; Ctrl-C ends it")
        while node.failure_of(host.address.uid) is None:
            time.sleep(_LOOK_SECONDS)
        failure = node.failure_of(host.address.uid)
        raise JobError(f"{name} was lost: {failure.reason if failure else ''}")
    finally:
        for forwarding in forwards:
            forwarding.close()


def _ports(text: str) -> tuple[int, int]:
    local, colon, remote = text.rpartition(":")
    try:
        ports = int(local) if colon else int(remote), int(remote)
    except ValueError:
        raise click.UsageError(f"{text!r} is no port: give one as 6006, or 8006:6006") from None
    if not (0 <= ports[0] < 1 << 16 and 0 < ports[1] < 1 << 16):
        raise click.UsageError(f"{text!r}: a port lies between 1 and 65535")
    return ports
