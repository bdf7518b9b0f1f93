"""The command line: every command without a group, with its arguments, options and help.

The code of a command is imported when it runs, so that help and usage errors need none of it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from monarch.cli.debug.debug_commands import debug, env, stacks
from monarch.cli.hosts.host_commands import HOST_COMMANDS
from monarch.cli.observe.commands import dashboard, hang, profile, query, top, trace, tui
from monarch.cli.options import DEV, agreed_to_send, calls, config_file, project_file
from monarch.cli.runs.runs_commands import runs
from monarch.cli.sync.commands import sync
from monarch.cli.terminal.volume import reset, with_volume
from monarch.errors import JobError
from monarch.version import __version__

_JSON = "--json"


class _Commands(click.Group):
    """The command `monarch`, which lists its commands in the order of this file."""

    def make_context(
        self, info_name: str | None, args: list[str], *rest: Any, **kwargs: Any
    ) -> click.Context:
        reset()
        return super().make_context(info_name, json_behind(self, args), *rest, **kwargs)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name, command in self.commands.items() if not command.hidden]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        names = self.list_commands(ctx)
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, self.commands[name].get_short_help_str(limit=200)) for name in names]
            )


def json_behind(command: click.Command, args: Sequence[str]) -> list[str]:
    """Return the command line with a ``--json`` moved behind the last command's name.

    Without ``--json`` it is unchanged. Raises ``UsageError`` if the command has no ``--json``.
    """
    moved = list(args)
    index, path, is_asked = 0, [], False
    while isinstance(command, click.Group) and index < len(moved) and not _takes_json(command):
        word = moved[index]
        if word == _JSON:
            is_asked = True
            del moved[index]
            continue
        index += 1
        if not word.startswith("-"):
            if word not in command.commands:
                return moved  # click says that there is no such command
            command = command.commands[word]
            path.append(word)
    if not is_asked:
        return list(args)
    if not path or not _takes_json(command):
        problem = (
            f"`{' '.join(['monarch', *path])}` has no {_JSON}" if path else f"{_JSON} of what?"
        )
        raise click.UsageError(f"{problem}: `monarch COMMAND -h` lists what a command takes")
    return [*moved[:index], _JSON, *moved[index:]]


def _takes_json(command: click.Command) -> bool:
    return any(_JSON in option.opts for option in command.params)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="monarch")
def cli() -> None:
    """Edit code here, run it there: an allocation that stays, code that follows your editor.

    \b
    monarch apply                bring the hosts of monarch.toml up
    monarch sync --watch         keep their code equal to yours, in one terminal
    monarch run ddp --config F   train, in another
    monarch runs show            how it went
    monarch dev ddp --config F   the first three, in one terminal
    """
    try:
        os.getcwd()
    except FileNotFoundError:
        raise JobError(
            "the folder that this terminal is in was deleted, or another one has its name now: "
            "`cd` to it again"
        ) from None


@cli.command("help", hidden=True)
@click.argument("names", nargs=-1)
def help_(names: tuple[str, ...]) -> None:
    """Show the help of a command, as its -h does."""
    cli.main([*names, "-h"], "monarch", standalone_mode=False)


_PATH = click.Path(path_type=Path)


@cli.command()
@click.argument("folder", required=False, type=_PATH)
@click.option("--hosts", type=click.IntRange(min=1), help="how many hosts [default: 2]")
@calls("monarch.cli.allocation.init:init")
def init() -> None:
    """Begin a project, or take one that exists: write what it lacks, and say what to do with it.

    In FOLDER, or here. A file that is there stays as it is. A new project gets a monarch.toml, a
    task to edit and a config; one with a training script of its own gets a monarch.toml, and says
    how the script is run.
    """


@cli.command()
@click.argument("path", required=False, type=_PATH)
@click.option("--list", "is_list", is_flag=True, help="the project files that are trusted")
@click.option("--revoke", "revokes", is_flag=True, help="trust it no more")
@calls("monarch.cli.allocation.trust_command:trust")
def trust() -> None:
    """Agree to what a monarch.toml has run: commands, modules, variables of processes.

    PATH is the file, or its folder; by default the one here. `monarch apply` asks about it once, at
    a terminal, and again when one of these keys was edited. A file that `monarch init` wrote is
    trusted.
    """


@cli.command()
@click.argument("spec", required=False)
@project_file
@click.option("--yes", "-y", is_flag=True, help="end what runs on hosts that are not wanted")
@click.option(
    "--idle-timeout",
    metavar="TIME",
    help="end it when nobody has used it so long, as in 30m; 0: never",
)
@calls("monarch.cli.allocation.allocation:apply")
def apply() -> None:
    """Bring the allocation up, or find it running.

    SPEC names a job in Python, as MODULE.NAME; without it, monarch.toml says what is wanted. Hosts
    of the allocation that have ended are brought up again, and the others go on. If another
    allocation than the wanted one is up, it is ended first; where something runs on it, only if you
    agree.
    """


@cli.command()
@click.option("--watch", is_flag=True, help="go on, once a second, until Ctrl-C")
@calls("monarch.cli.allocation.allocation:status")
def status() -> None:
    """Hosts, procs, and the generation of code that each host has."""


@cli.command()
@click.option("--yes", "-y", is_flag=True, help="do not ask, though something runs on it")
@calls("monarch.cli.allocation.allocation:kill")
def kill() -> None:
    """End the allocation and everything that runs on it.

    At a terminal it asks first if a run is going on; in a script it prints what it ended. Without
    an allocation it says so and does nothing.
    """


@cli.command(
    context_settings={
        "ignore_unknown_options": True,
        "allow_extra_args": True,
        "allow_interspersed_args": False,  # `--` is for the run
    }
)
@click.argument("arguments", nargs=-1, required=True, metavar="RECIPE [KEY=VALUE]...")
@click.option("--open", "opens", is_flag=True, help="open the dashboard, too; the key o does later")
@click.pass_context
def dev(context: click.Context, arguments: tuple[str, ...], opens: bool) -> None:
    """Bring the hosts up, follow your saves, and run RECIPE, all in this terminal.

    It is `monarch apply`, `monarch sync --watch` and `monarch run` in one, with all options of the
    last; lines of the watch begin with `sync`. Ctrl-C saves and stops the run, and ends the watch;
    the hosts stay. On a terminal the keys of the watch work here, too: h tells which.
    """
    from monarch.cli.run.dev import dev

    words = [*arguments, *context.args]
    end = words.index("--") if "--" in words else len(words)
    if "--open" in words[:end]:  # Click leaves all options behind RECIPE to the run.
        opens = True
        words.remove("--open")
    dev(
        lambda: context.invoke(apply),
        lambda: run.main(words, DEV, standalone_mode=False),
        opens=opens,
    )


_OF_TORCHRUN = {
    "nproc-per-node": "is `--procs` here: the processes on each host",
    "nnodes": "is not needed: `hosts` in monarch.toml says which hosts there are",
    "node-rank": "is not needed: each host knows its rank",
    "standalone": "is not needed: without a monarch.toml all runs on this machine",
    "max-restarts": "is a key of recipes; a plain script begins once",
    **dict.fromkeys(
        ("rdzv-endpoint", "rdzv-backend", "rdzv-id", "master-addr", "master-port"),
        "is not needed: ranks find each other by the mesh",
    ),
}  # fmt: skip
"""Options of torchrun, and what to type instead."""


class _RunCommand(click.Command):
    """The command `run`, with a longer error for an unknown option of a plain script.

    It says where the script's own flags belong, and what to type instead of a flag of torchrun.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, list(args))
        except click.NoSuchOption as error:
            from monarch.runs.recipe.script_source import is_plain_script

            scripts = [word for word in args if is_plain_script(word)]
            if not scripts:
                raise
            replacement = _OF_TORCHRUN.get(error.option_name.lstrip("-").replace("_", "-"))
            if replacement:
                text = f"torchrun's {error.option_name} {replacement}."
                raise click.UsageError(text, ctx=ctx) from None
            raise click.NoSuchOption(
                error.option_name,
                f"{error.message} Flags of {scripts[0]} itself go behind `--`: "
                f"monarch {(ctx.info_name or '').removeprefix('monarch ')} {scripts[0]} -- "
                f"{error.option_name} ...",
                ctx=ctx,
            ) from None


cli.add_command(sync)
for _command in (*HOST_COMMANDS, top, dashboard, query, hang, trace, profile, tui):
    cli.add_command(_command)


@cli.command(cls=_RunCommand)
@click.argument("recipe", required=False)
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]... [-- FLAG...]")
@config_file
@click.option(
    "--procs",
    type=click.IntRange(min=1),
    help="procs on each host [default: its GPUs; without any 1, or 2 on a single host]",
)
@click.option(
    "--attach/--local",
    default=None,
    help="on the allocation that is up [default, if one is], or on this machine alone",
)
@click.option(
    "--hosts",
    type=click.IntRange(min=1),
    help="how many hosts of the allocation to take [default: all]",
)
@click.option(
    "--roles", metavar="NAME=N,...", help="procs of each role, as in train=4,eval=2, in all"
)
@click.option("--plan", is_flag=True, help="only show meshes, ranks, parameters, memory")
@click.option("--show-origin", is_flag=True, help="only show each value and where it is from")
@click.option(
    "--resume",
    is_flag=False,
    flag_value="latest",
    metavar="[RUN]",
    help="go on with a run, by its name or the beginning of it [default: the latest]",
)
@click.option("--new", is_flag=True, help="begin anew, though such a run was left unfinished")
@agreed_to_send
@click.option(
    "--detach", "-d", is_flag=True, help="on a host of the allocation, whatever becomes of this one"
)
@click.option(
    "--on-edit-error",
    type=click.Choice(["hold", "rollback", "end"]),
    help="what to do where new code fails: wait for a fix [default in a terminal], go back to "
    "the code that worked [default elsewhere], or end",
)
@click.option(
    "--on-host-loss",
    type=click.Choice(["fewer", "wait", "end"]),
    help="what to do where a host is lost and cannot be brought up again: go on with fewer, wait "
    "for it, or end [default: ask in a terminal, end elsewhere]",
)
@click.option(
    "--on-error",
    is_flag=False,
    flag_value="all",
    type=click.Choice(["first", "all"]),
    help="hold calls where they raise, for `monarch debug`: those of all ranks, or the first",
)
@click.option(
    "--fast-dev-run",
    is_flag=True,
    help="only try whether all works: a few steps, an evaluation and a checkpoint, then the end",
)
@click.option("--traceback", is_flag=True, help="show the whole traceback of what ends the run")
def run(**options: Any) -> None:
    """Run RECIPE: a plain script, a built-in name such as ddp, a recipe's file, or module:name.

    A Python file without a recipe in it runs as it is, one copy a proc, in the environment that
    torchrun gives; its own flags go behind `--`: `monarch run train.py --procs 4 -- --lr 0.1`.

    Runs on the allocation that `monarch apply` brought up in this folder, else on this machine
    alone. Sends the workspace of monarch.toml to the hosts first. Everything about the run is
    kept in runs/NAME-STAMP. A run that was left unfinished goes on when the same command is
    given again, with as many --hosts as it gets then. Ctrl-C saves and stops; a second one stops
    at once. With --detach, it goes on when this terminal is closed: `monarch runs attach` shows it.
    """
    if options["resume"] and options["new"]:
        raise click.UsageError(
            "--resume goes on with a run, and --new begins one: give one of them"
        )
    if options.pop("detach"):
        from monarch.cli.run.detached import start

        start(options)
        return
    from monarch.cli.run.run import run

    run(**options)


@cli.command()
@click.argument("name", metavar="RECIPE")
@click.argument("overrides", nargs=-1, required=True, metavar="KEY=VALUE[,VALUE]...")
@config_file
@click.option("--procs", type=click.IntRange(min=1), help="procs on each host, shared by the runs")
@click.option(
    "--slices", type=click.IntRange(min=1), help="how many runs at a time [default: one a host]"
)
@click.option(
    "--metric", help="what the best run is judged by [default: the held-out loss, if any]"
)
@click.option(
    "--goal", type=click.Choice(["min", "max"]), help="of the metric [default: by its name]"
)
@click.option(
    "--random", "num_random", type=click.IntRange(min=1), metavar="N", help="N runs at random"
)
@click.option(
    "--tpe",
    "num_tpe",
    type=click.IntRange(min=1),
    metavar="N",
    help="N runs, proposed by Optuna's TPE from those before (pip install optuna)",
)
@click.option("--seed", type=int, default=0, help="of --random and --tpe [default: 0]")
@agreed_to_send
@calls("monarch.cli.sweep.sweep:sweep")
def sweep() -> None:
    """Run RECIPE once for each choice of values, and compare.

    Keys with several values, as in learning_rate=1e-3,3e-3, are combined. With --random and --tpe,
    dropout=0..0.5 is a range, and learning_rate=1e-4..1e-2:log one by order of magnitude. The runs
    share the mesh: each has some of the hosts, or, where there are fewer hosts than slices, some of
    a host's procs. Each is a run of its own in runs/.
    """


cli.add_command(runs)


@cli.group()
def recipe() -> None:
    """Recipes: what there is, and how to make one your own."""


@recipe.command("ls")
@calls("monarch.cli.run.recipe:ls")
def recipe_ls() -> None:
    """List the recipes that are installed."""


@recipe.command("show")
@click.argument("name", metavar="RECIPE")
@click.option("--toml", "is_toml", is_flag=True, help="only the config, as a file to begin with")
@calls("monarch.cli.run.recipe:show")
def recipe_show() -> None:
    """Show what a recipe does, and its config with all defaults.

    What is printed after the description is a config file with what each key means; keys marked
    (live) may change while a run goes on: edit the file that the run was given, and save.
    """


@recipe.command("cp")
@click.argument("name", metavar="RECIPE")
@click.argument("file", required=False, type=_PATH)
@click.option("--force", is_flag=True, help="write over a file that is there")
@calls("monarch.cli.run.recipe:cp")
def recipe_cp() -> None:
    """Copy a recipe to FILE, which runs as it is: `monarch run FILE`.

    FILE is my_RECIPE.py if not given; for a recipe that is a folder, the folder my_RECIPE. One that
    ends with .toml gets the config instead.
    """


@recipe.command("validate")
@click.argument("name", metavar="RECIPE")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@config_file
@click.option("--procs", type=click.IntRange(min=1), help="procs on each host")
@calls("monarch.cli.run.recipe:validate")
def recipe_validate() -> None:
    """Check a recipe and its config, without running it. Exits with 2 if something is wrong."""


@recipe.command("prepare")
@click.argument("name")
@click.argument("folder", required=False, type=_PATH)
@calls("monarch.cli.run.recipe:prepare")
def recipe_prepare() -> None:
    """Make what a recipe needs before it can run: data, a tokenizer, a config.

    NAME is a recipe, or a recipe with a variant of it, as in titan-tiny. It goes into FOLDER,
    which is NAME if not given.
    """


@recipe.command("export")
@click.argument("name", metavar="RECIPE")
@click.argument("run_or_checkpoint", metavar="[RUN|CHECKPOINT]", default="latest")
@click.argument("file", type=_PATH, default=Path("model.safetensors"))
@click.option("--force", is_flag=True, help="write over a file that is there")
@calls("monarch.cli.run.recipe:export")
def recipe_export() -> None:
    """Write the weights of a run to FILE, as plain safetensors.

    They are the run's best ones, if it kept these (extras.keep_best), else those it saved last.
    """


for _command in (debug, env, stacks):
    cli.add_command(_command)


@cli.command()
@click.option("--address", required=True, help="tcp://HOST:PORT or ipc://PATH to listen at")
@calls("monarch.cli.allocation.allocation:host")
def host() -> None:
    """Be the host agent of this machine, until ended.

    Beyond loopback the job's secret is needed, in MONARCH_JOB_SECRET.
    """


with_volume(cli)
