"""``monarch debug``, ``env`` and ``stacks``: their arguments, options and help."""

from __future__ import annotations

import click

from monarch.cli.options import calls


@click.command()
@click.argument("name", required=False)
@click.argument("rank", required=False)
@click.option(
    "--vscode", is_flag=True, help="let an editor attach to all ranks, or those of NAME RANKS"
)
@click.option("--host", help="with --port: of a program's debug controller", metavar="HOST")
@click.option(
    "--port",
    type=int,
    metavar="PORT",
    help="where a debug controller listens (MONARCH_DEBUG_SERVER_PORT), as Monarch has it",
)
def debug(
    name: str | None, rank: str | None, vscode: bool, host: str | None, port: int | None
) -> None:
    """A console for calls that are held at a breakpoint, or at an error.

    `breakpoint()` in an endpoint holds that call, and says so. This opens its debugger, for all
    hosts of this folder's allocation and all programs that you run on this machine. It needs no
    port, and several consoles may be open. NAME and RANK attach to one call at once, and exit with
    1 where that rank has no held and no running call. `help` lists the commands.
    """
    from monarch.cli.debug.debug import debug, edit

    if host is not None or port is not None:
        from monarch.debugger.port_console import attach_to_port

        if name is not None or vscode or port is None:
            raise click.UsageError("--host and --port go together, and with nothing else")
        attach_to_port(host or "localhost", port)
        return
    if vscode:
        edit(name or "", rank or "all")
        return
    if rank is not None and not rank.isdigit():
        raise click.UsageError("NAME RANK: RANK is a number here; RANKS go with --vscode")
    debug(name, None if rank is None else int(rank))


_ranks = click.option(
    "--ranks", default="all", help="of these only: 3, 0-3,7, ::2", metavar="RANKS"
)
_mesh = click.option("--mesh", default="", help="procs of this mesh only", metavar="NAME")
_at_start = click.option(
    "--at-start", is_flag=True, help="as the process was started, for what C libraries saw"
)


@click.group(invoke_without_command=True)
@click.option("--versions", is_flag=True, help="what runs there: Python, torch, driver, limits")
@_ranks
@_mesh
@click.pass_context
def env(context: click.Context, versions: bool, ranks: str, mesh: str) -> None:
    """Environment variables of all ranks, also while they are busy; those that differ are marked.

    Values of variables that look like secrets are hidden behind a digest, by which they can still
    be compared. What is set is remembered for procs that start later.
    """
    if context.invoked_subcommand is not None:
        return
    if not versions:
        click.echo(context.get_help())
        return
    from monarch.cli.debug.env import versions as show_versions

    show_versions(ranks, mesh)


@env.command("get")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@_ranks
@_mesh
@_at_start
@calls("monarch.cli.debug.env:get")
def env_get() -> None:
    """Show variables by name, or by pattern as in NCCL_*: a row for each value."""


@env.command("list")
@click.argument("patterns", metavar="[PREFIX*]...", nargs=-1)
@_ranks
@_mesh
@_at_start
@calls("monarch.cli.debug.env:list_all")
def env_list() -> None:
    """List all variables, or those that match a pattern such as NCCL_*."""


@env.command("set")
@click.argument("words", metavar="NAME=VALUE... [RANKS]", nargs=-1, required=True)
@click.option("--new-only", is_flag=True, help="only in procs that start later")
@_mesh
@calls("monarch.cli.debug.env:change", is_unset=False)
def env_set() -> None:
    """Set variables, in procs that run and in those that start later."""


@env.command("unset")
@click.argument("words", metavar="NAME... [RANKS]", nargs=-1, required=True)
@click.option("--new-only", is_flag=True, help="only in procs that start later")
@_mesh
@calls("monarch.cli.debug.env:change", is_unset=True)
def env_unset() -> None:
    """Take variables out, of procs that run and of those that start later."""


@env.command("diff")
@click.argument("pair", metavar="[RANK RANK]", nargs=-1)
@click.option("--against", type=click.Choice(["local"]), help="with this shell's environment")
@_mesh
@calls("monarch.cli.debug.env:diff")
def env_diff() -> None:
    """Show the variables that differ between ranks."""


@click.command()
@click.argument("ranks", default="all", metavar="[RANKS]")
@click.option("--locals", "with_locals", is_flag=True, help="with the local variables")
@click.option("--native", is_flag=True, help="with frames of C, by py-spy")
@_mesh
@calls("monarch.cli.debug.debug:stacks")
def stacks() -> None:
    """Show where the threads of this folder's ranks are; equal stacks are shown once.

    If nothing of this folder runs, it shows the stacks of your other programs, each with its
    folder.

    Nothing is stopped for it. RANKS are as in 3, 0-3,7 or ::2.
    """
