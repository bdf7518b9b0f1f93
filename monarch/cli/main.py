"""``monarch``: the commands, and how their errors reach a person."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from monarch import __version__
from monarch.cli.streams import Told, open_missing
from monarch.cli.sync.ending import at_once_from_here
from monarch.cli.sync.terminal import Terminal
from monarch.cli.volume import is_verbose, options, reset, with_volume
from monarch.errors import JobError, MonarchError

__all__ = ["cli", "main"]

_OUR_FOLDER = ".monarch"

# In the order of the help: the module of each, under `monarch.cli`, and what the help says of it,
# which is the beginning of what the command says of itself.
_COMMANDS = {
    "init": ("init", "Begin a project: write a monarch.toml, a task to edit, and a config."),
    "apply": ("allocation", "Bring the allocation up, or find it running."),
    "status": ("allocation", "Hosts, procs, and the generation of code that each host has."),
    "kill": ("allocation", "End the allocation and all that runs on it."),
    "dev": ("dev", "Bring the hosts up, follow your saves, and run RECIPE, all in this terminal."),
    "sync": (
        "sync.command",
        "Bring the workspace to all hosts, and its code into what runs there.",
    ),
    "run": ("run", "Run RECIPE: a built-in name such as ddp, a Python file, or module:name."),
    "sweep": ("sweep", "Run RECIPE once for each choice of values, and compare."),
    "runs": ("runs", "Runs: what was run here, how it went, and how runs differ."),
    "recipe": ("recipe", "Recipes: what there is, and how to make one your own."),
    "host": ("allocation", "Be the host agent of this machine, until ended."),
}


class _Imported(Mapping[str, click.Command]):
    """Each is imported when it is asked for: all together take longer than most take to run."""

    def __getitem__(self, name: str) -> click.Command:
        module = importlib.import_module(f"monarch.cli.{_COMMANDS[name][0]}")
        return with_volume(getattr(module, name))

    def __iter__(self) -> Iterator[str]:
        return iter(_COMMANDS)

    def __len__(self) -> int:
        return len(_COMMANDS)


class _Commands(click.Group):
    """Lists them without importing them."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        reset()
        return super().make_context(*args, **kwargs)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in _COMMANDS.items()])


@click.group(
    cls=_Commands,
    commands=_Imported(),
    context_settings={"help_option_names": ["-h", "--help"]},
)
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


cli.params += options()  # The commands of it get theirs when they are imported.


def main() -> None:
    """The entry point. Errors of ours end with one message and status 1, not a traceback."""
    open_missing()
    with Told() as told:
        try:
            _run()
            status: str | int | None = 0
        except SystemExit as end:
            status = end.code
        except OSError as error:
            if not told.fault and not _is_ours(error):
                raise
            if not told.fault:
                _say(
                    f"{error.filename}: {error.strerror}. In {_OUR_FOLDER} is noted which hosts "
                    "are up, so it has to be a folder that you may read and write"
                )
            status = 1
        told.end()
    if told.fault:
        _say(f"cannot write to standard output: {told.fault}")
        status = status or 1
    sys.exit(status)


def _run() -> None:
    try:
        cli(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        if _has_ended_by_fault():
            # What happened has been told; a fault wakes this thread as Ctrl-C does.
            sys.exit(1)
        print("interrupted", file=sys.stderr)
        at_once_from_here()
        sys.exit(130)
    except Exception as error:
        # Imported when there is something to tell.
        from monarch.config_file import ConfigError
        from monarch_sync.errors import SyncError

        if not isinstance(error, (ConfigError, MonarchError, SyncError)):
            raise
        if is_verbose():
            import traceback

            traceback.print_exc()
        _tell(error)
        sys.exit(2 if isinstance(error, ConfigError) else 1)


def _has_ended_by_fault() -> bool:
    process = sys.modules.get("monarch.runtime.process")
    return (
        process is not None
        and process.is_bootstrapped()
        and (process.current().faults.has_ended_program)
    )


def _is_ours(error: OSError) -> bool:
    """Whether it is about a file of ours; those of a recipe are for its author to see."""
    return isinstance(error.filename, str) and _OUR_FOLDER in Path(error.filename).parts


def _tell(error: Exception) -> None:
    _say(str(error))


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # The status tells, too.
        Terminal(sys.stderr).prose(f"monarch: {text}")


if __name__ == "__main__":
    main()
