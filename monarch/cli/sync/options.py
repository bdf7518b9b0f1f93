"""What is given before the name of a subcommand of ``monarch sync``."""

from __future__ import annotations

from typing import NamedTuple

import click


class SyncOptions(NamedTuple):
    """What all subcommands share: ``file`` is the project file (None: the default one), and
    ``is_json`` asks for objects, for programs."""

    file: str | None
    is_json: bool


def _also_here(context: click.Context, _: click.Parameter, is_json: bool) -> None:
    if is_json:
        context.obj = context.obj._replace(is_json=True)


json_too = click.option(
    "--json", is_flag=True, expose_value=False, callback=_also_here, help="an object, for programs"
)
