"""``monarch``: runs a command, and shows its errors to the person."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import click

from monarch.cli.commands import cli
from monarch.cli.terminal.interrupts import INTERRUPTED, at_once_from_here
from monarch.cli.terminal.streams import WatchedStdout, open_missing
from monarch.cli.terminal.terminal import Terminal
from monarch.cli.terminal.volume import is_verbose
from monarch.errors import MonarchError

_OUR_FOLDER = ".monarch"


def main() -> None:
    """Run the command; our errors end it with a message and status 1, not a traceback."""
    open_missing()
    with WatchedStdout() as stdout:
        try:
            _run()
            status: str | int | None = 0
        except SystemExit as end:
            status = end.code
        except OSError as error:
            if not stdout.fault and not _is_ours(error):
                raise
            if not stdout.fault:
                _say(
                    f"{error.filename}: {error.strerror}. There is noted which hosts are up, so "
                    "it has to be a file in a folder that you may read and write"
                )
            status = 1
        stdout.end()
    if stdout.fault:
        _say(f"cannot write to standard output: {stdout.fault}")
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
            # The message has been printed; a fault wakes this thread as Ctrl-C does.
            sys.exit(1)
        print("interrupted", file=sys.stderr)
        at_once_from_here()
        sys.exit(INTERRUPTED)
    except Exception as error:
        # Imported only for an error.
        from monarch.config_file import ConfigError
        from monarch_sync.errors import SyncError

        if not isinstance(error, (ConfigError, MonarchError, SyncError)):
            raise
        if is_verbose():
            import traceback

            traceback.print_exc()
        _say(str(error))
        sys.exit(2 if isinstance(error, ConfigError) else 1)


def _has_ended_by_fault() -> bool:
    process = sys.modules.get("monarch.runtime.process")
    if process is None or not process.is_bootstrapped():
        return False
    return bool(process.current().faults.has_ended_program)


def _is_ours(error: OSError) -> bool:
    """Whether the error is about a file of monarch's own, in a run's folder or the state folder."""
    if not isinstance(error.filename, str):
        return False
    from monarch.job.state_folder import state_path

    path = Path(error.filename)
    return _OUR_FOLDER in path.parts or path.is_relative_to(state_path())


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # The exit status says it, too.
        Terminal(sys.stderr).prose(f"monarch: {text}")


if __name__ == "__main__":
    main()
