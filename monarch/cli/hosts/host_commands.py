"""Commands for the hosts of the allocation, with their arguments, options and help."""

from __future__ import annotations

from typing import Any

import click

from monarch.cli.options import calls, project_file

_mesh = click.option("--mesh", metavar="NAME", help="the hosts of this mesh [default: the first]")
_point = click.option("--point", metavar="D=N,...", help="the one at this place, as in hosts=1")
_env = click.option("-e", "--env", "variables", multiple=True, metavar="K=V", help="a variable")
_workdir = click.option("--workdir", metavar="DIR", help="where, there [default: the workspace]")
_words: dict[str, Any] = {"ignore_unknown_options": True, "allow_interspersed_args": False}


@click.command("exec", context_settings=_words)
@click.option("--all", "is_all", is_flag=True, help="on all hosts of all meshes")
@click.option("--mesh", metavar="NAME", help="on all hosts of this mesh")
@click.option("--one", "is_one", is_flag=True, help="on the first host alone [default]")
@_point
@click.option("--per-host", multiple=True, metavar="DIM=N", help="so many processes on each host")
@_env
@_workdir
@click.option("--script", metavar="FILE", help="a file from here, - for standard input, run there")
@click.option("-m", "is_module", is_flag=True, help="COMMAND is a Python module")
@click.option(
    "--aggregate",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="show lines that many ranks print alike as one, every so often",
)
@click.option("--kill", "kills", is_flag=True, help="end the allocation when it is done")
@click.argument("command", nargs=-1, metavar="[COMMAND]...", type=click.UNPROCESSED)
@calls("monarch.cli.hosts.exec:exec_")
def exec_() -> None:
    """Run COMMAND on hosts, and show what it prints while it runs.

    With several ranks, each line has its host and rank in front; what one rank alone prints comes
    as it is, and it gets standard input. A COMMAND that ends with .py is run by the host's Python.
    Ends with the largest status. Ctrl-C interrupts COMMAND on the hosts, and none of its processes
    is left when this command ends. Each process has MONARCH_RANK, MONARCH_RANK_<dim> and
    MONARCH_SIZE_<dim>.
    """


@click.command(context_settings=_words)
@_mesh
@_point
@_env
@_workdir
@click.option("--kill", "kills", is_flag=True, help="end the allocation when it is done")
@click.argument("command", nargs=-1, metavar="[COMMAND]...", type=click.UNPROCESSED)
@calls("monarch.cli.hosts.exec:shell")
def shell() -> None:
    """Open a shell on a host, in this terminal; or COMMAND, one that needs a terminal.

    It follows the size of this terminal, and gets all keys, Ctrl-C and Ctrl-Z too. No port is
    opened for it.
    """


@click.command()
@click.argument("ports", nargs=-1, required=True, metavar="[LOCAL:]PORT...")
@_mesh
@_point
@click.option("--bind", default="127.0.0.1", show_default=True, help="the address here")
@click.option("--to", default="127.0.0.1", show_default=True, help="whose port, seen from there")
@calls("monarch.cli.hosts.exec:forward")
def forward() -> None:
    """Bring ports of a host to this machine, until Ctrl-C.

    As in `monarch forward 6006` for TensorBoard on the first host. Bytes go through the connection
    that there is to the host's agent; no other port has to be open.
    """


@click.command()
@click.option("--follow", "-f", is_flag=True, help="go on, until Ctrl-C")
@click.option("--rank", "ranks", type=click.IntRange(min=0), multiple=True, help="of this rank")
@click.option("--since", metavar="TIME", help="as in 30s, 10m, 2h, or 14:05, or a date with that")
@click.option("--mesh", metavar="NAME", help="of the hosts of this mesh [default: all]")
@_point
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="the last N of each")
@click.option("--agents", is_flag=True, help="what the host agents themselves have logged")
@calls("monarch.cli.hosts.host_logs:logs")
def logs() -> None:
    """Show what the procs on the hosts of the allocation have printed.

    The hosts keep it in files, also of procs that have ended. Each line has host, mesh and rank in
    front. What a run's ranks printed is in the run, too: `monarch runs logs`.
    """


@click.command()
@click.option("--json", "is_json", is_flag=True, help="a list, for programs")
@calls("monarch.cli.hosts.hosts:hosts")
def hosts() -> None:
    """List the hosts of the allocation: where they are, what they have, who uses them."""


@click.group()
def context() -> None:
    """Several allocations in one folder, each with a name; commands go to the one in use."""


@context.command("create")
@click.argument("name")
@click.option("--spec", metavar="MODULE.NAME|FILE", help="a job in Python, or a project file")
@calls("monarch.cli.allocation.contexts:create")
def context_create() -> None:
    """Create a context, and use it. Allocations that are up go on."""


@context.command("use")
@click.argument("name")
@calls("monarch.cli.allocation.contexts:use")
def context_use() -> None:
    """Have commands go to the allocation of this context from here on."""


@context.command("rm")
@click.argument("name")
@click.option("--yes", "-y", is_flag=True, help="end its allocation, if one is up")
@calls("monarch.cli.allocation.contexts:rm")
def context_rm() -> None:
    """Remove a context. If its allocation is up, it is removed only if you agree to end that."""


@context.command("ls")
@calls("monarch.cli.allocation.contexts:ls")
def context_ls() -> None:
    """List the contexts of this folder; a * marks the one in use."""


@click.command()
@project_file
@click.option("--timeout", type=click.FloatRange(min=1), default=20.0, show_default=True)
@click.option("--json", "is_json", is_flag=True, help="a list of findings, for programs")
@calls("monarch.cli.hosts.doctor:doctor")
def doctor() -> None:
    """Say what would fail on the configured allocation, and why, before anything is started.

    Looks at each host: whether it can be reached, its Python, clock, disk and shared memory, GPUs,
    and whether the hosts reach each other. A line for each finding, with a way to fix it. Ends
    with 1 if something would fail.
    """


HOST_COMMANDS = (exec_, shell, forward, logs, hosts, context, doctor)
