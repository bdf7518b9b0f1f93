"""``monarch sync``: its subcommands, with their arguments, options and help."""

from __future__ import annotations

from typing import Any

import click

from monarch.cli.options import SyncOptions, agreed_to_send, calls, json_too, project_file


@click.group(invoke_without_command=True)
@click.option("--watch", is_flag=True, help="go on, and push at every save")
@click.option("--dry-run", is_flag=True, help="only say what would move")
@click.option("--all", "lists_all", is_flag=True, help="with --dry-run: each path, however many")
@click.option("--explain", "explained", metavar="PATH", help="say why a path is synced, or is not")
@click.option("--best-effort", is_flag=True, help="go on without hosts that cannot follow")
@click.option(
    "--allow-empty", is_flag=True, help="empty a folder on the hosts, too, that is empty here"
)
@click.option(
    "--env", is_flag=True, help="bring the packages of the lock file, too, for hosts to install"
)
@click.option("--no-wait", is_flag=True, help="push nothing where a call stands in `monarch debug`")
@click.option("--json", "is_json", is_flag=True, help="an object a push, for programs")
@click.option("--keys", "has_keys", is_flag=True, hidden=True, help="keys come by stdin")
@project_file
@agreed_to_send
@click.pass_context
def sync(context: click.Context, /, is_json: bool, file: str | None, **options: Any) -> None:
    """Bring the workspace to all hosts, and its code into what runs there.

    Live processes switch to the new code between the same two messages on every rank. Code that
    does not compile, or does not run, changes no process. Exits with 1 if the push was refused,
    with 3 if it was made without something that cannot be read here.
    """
    context.obj = SyncOptions(file, is_json)
    if context.invoked_subcommand is not None:
        del options["has_keys"]
        if any(value not in (False, None) for value in options.values()):
            raise click.UsageError("this option goes without a command behind it", context)
        return
    if sum((options["watch"], options["dry_run"], options["explained"] is not None)) > 1:
        raise click.UsageError("choose one of --watch, --dry-run and --explain", context)
    if options["lists_all"] and not options["dry_run"]:
        raise click.UsageError("--all goes with --dry-run", context)
    dry_run, lists_all, explained = map(options.pop, ("dry_run", "lists_all", "explained"))
    if explained is not None:
        from monarch.cli.sync.looks import explain

        explain(context.obj, explained)
    if dry_run:
        from monarch.cli.sync.looks import preview

        preview(context.obj, allow_empty=options["allow_empty"], lists_all=lists_all)
    from monarch.cli.sync.push import sync

    sync(context.obj, **options)


class _Generation(click.IntRange):
    name = "generation, which is a number"


_generation = click.argument("generation", required=False, type=_Generation(min=1))


@sync.command("status", short_help="Which host and which proc runs which generation.")
@json_too
@click.pass_obj
@calls("monarch.cli.sync.generations:status")
def sync_status() -> None:
    """Which host and which proc runs which generation, and what is stale."""


@sync.command("history")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="how many")
@json_too
@click.pass_obj
@calls("monarch.cli.sync.generations:history")
def sync_history() -> None:
    """The generations that the hosts remember: when, who, what.

    A `*` marks the current one, a `-` one that no host has in full any more.
    """


@sync.command("rollback")
@_generation
@click.option("--best-effort", is_flag=True, help="go on without hosts that cannot follow")
@json_too
@click.pass_obj
@calls("monarch.cli.sync.generations:rollback")
def sync_rollback() -> None:
    """Have all hosts go back to a generation, or none of them.

    Without GENERATION: to the one that went well, if a run holds; else to the latest that differs
    from the current one. What runs on the hosts reloads; your own files stay as they are, so that
    `monarch sync` goes forward again.
    """


@sync.command("diff", short_help="How your files differ from what the hosts have or had.")
@_generation
@click.option("--exit-code", is_flag=True, help="exit with 1 if there are differences")
@json_too
@click.pass_obj
@calls("monarch.cli.sync.generations:diff")
def sync_diff() -> None:
    """How your files differ from what the hosts have, or had as GENERATION.

    Lines with a `-` are the hosts', those with a `+` are yours.
    """
