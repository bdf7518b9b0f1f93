"""What was chosen before the name of a subcommand, and what all subcommands do alike."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, NoReturn

import click

from monarch.cli.sync.ending import asked_to_end
from monarch.cli.sync.terminal import Terminal
from monarch.cli.sync.visitor import Visitor
from monarch.cli.sync.voice import JsonLines, Voice
from monarch.config_file import ConfigError
from monarch.errors import MonarchError
from monarch_sync import SyncError

__all__ = ["Chosen", "errors", "interruptions", "json_too", "silence", "tell"]


class Chosen(NamedTuple):
    """What was said before the name of a subcommand."""

    file: str | None
    is_json: bool


@contextmanager
def errors(chosen: Chosen) -> Iterator[None]:
    """Has errors of ours end the command, told where all else is."""
    try:
        yield
    except (MonarchError, SyncError, ConfigError) as error:
        _end_with(error, chosen.is_json)


def _end_with(error: Exception, is_json: bool) -> NoReturn:
    """Programs read of errors where they read of all else."""
    if not is_json:
        raise error
    JsonLines().failed(str(error))
    sys.exit(2 if isinstance(error, ConfigError) else 1)


@contextmanager
def interruptions(visitor: Visitor, voice: Voice) -> Iterator[None]:
    """A push that is interrupted within has put all back, and says where that is."""
    with asked_to_end():
        try:
            yield
        except KeyboardInterrupt:
            voice.note("interrupted", f"interrupted; {visitor.generations()}", ok=False)
            sys.exit(130)


def silence(visitor: Visitor) -> list[str]:
    """Which hosts have said nothing to what is shown, and why."""
    return [f"{visitor.name_of(url)}: {error}" for url, error in visitor.silent.items()]


def tell(lines: Iterable[str]) -> None:
    """Print them for people."""
    terminal = Terminal()
    for line in lines:
        terminal.prose(line)


def _also_here(context: click.Context, _: click.Parameter, is_json: bool) -> None:
    if is_json:
        context.obj = context.obj._replace(is_json=True)


json_too = click.option(
    "--json", is_flag=True, expose_value=False, callback=_also_here, help="an object, for programs"
)
