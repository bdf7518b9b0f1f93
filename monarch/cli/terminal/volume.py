"""The amount of a command's output: `--quiet` and `--verbose`, which every command accepts.

A quiet command prints errors, and what it was asked for (a list, a table, a plan), but not its
progress. A verbose command prints more: whole reports, every step of a run, where an error came
from.
"""

from __future__ import annotations

import click

_QUIET, _VERBOSE = "quiet", "verbose"
_said: set[str] = set()


def is_quiet() -> bool:
    return _QUIET in _said


def is_verbose() -> bool:
    return _VERBOSE in _said


def louder() -> list[str]:
    """Return this command's options --quiet and --verbose, to pass them on to another command."""
    return [f"--{name}" for name in _said]


def say(text: str = "") -> None:
    """Print a message that was not asked for, unless the command is quiet."""
    if not is_quiet():
        click.echo(text)


def reset() -> None:
    """Forget the options of an earlier command line."""
    _said.clear()


def _note(context: click.Context, option: click.Parameter, is_given: bool) -> None:
    if is_given:
        assert option.name is not None
        _said.add(option.name)
    if len(_said) > 1:
        raise click.UsageError("choose one of --quiet and --verbose", context)


def with_volume(command: click.Command) -> click.Command:
    """Add --quiet and --verbose to the command and to its subcommands; return the command."""
    if not any(option.name == _QUIET for option in command.params):
        command.params += options()
        if isinstance(command, click.Group):
            for inner in command.commands.values():
                with_volume(inner)
    return command


def options() -> list[click.Option]:
    """Return the options ``--quiet`` and ``--verbose``."""
    return [
        click.Option(
            [f"--{name}", f"-{name[0]}"],
            is_flag=True,
            expose_value=False,
            callback=_note,
            is_eager=True,
            help=text,
        )
        for name, text in (
            (_QUIET, "say only what went wrong, and what was asked for"),
            (_VERBOSE, "say more"),
        )
    ]
