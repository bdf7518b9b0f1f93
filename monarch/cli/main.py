"""``monarch``: the commands, and how their errors reach a person."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import click

from monarch import __version__
from monarch.cli.allocation import apply, host, kill, status
from monarch.cli.recipe import recipe
from monarch.cli.run import run
from monarch.cli.runs import runs
from monarch.cli.streams import Told, open_missing
from monarch.cli.sweep import sweep
from monarch.cli.sync import sync
from monarch.cli.sync.ending import at_once_from_here
from monarch.cli.sync.terminal import Terminal
from monarch.config_file import ConfigError
from monarch.errors import JobError, MonarchError
from monarch.job import DEFAULT_JOB_PATH
from monarch.runtime import process
from monarch.runtime.client_agent import client
from monarch_sync import SyncError

__all__ = ["cli", "main"]

_OUR_FOLDER = Path(DEFAULT_JOB_PATH).parent.name


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="monarch")
def cli() -> None:
    """Edit code here, run it there: an allocation that stays, code that follows your editor.

    \b
    monarch apply                bring the hosts of monarch.toml up
    monarch sync --watch         keep their code equal to yours, in one terminal
    monarch run ddp --config F   train, in another
    monarch runs show            how it went
    """
    try:
        os.getcwd()
    except FileNotFoundError:
        raise JobError(
            "the folder that this terminal is in was deleted, or another one has its name now: "
            "`cd` to it again"
        ) from None


for command in (apply, status, kill, sync, run, sweep, runs, recipe, host):
    cli.add_command(command)


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
        if process.is_bootstrapped() and client().faults.has_ended_program:
            # What happened has been told; a fault wakes this thread as Ctrl-C does.
            sys.exit(1)
        print("interrupted", file=sys.stderr)
        at_once_from_here()
        sys.exit(130)
    except ConfigError as error:
        _tell(error)
        sys.exit(2)
    except (MonarchError, SyncError) as error:
        _tell(error)
        sys.exit(1)


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
