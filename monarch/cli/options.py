"""What declarations of commands share: options of several commands, and `calls`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

import click

DEV = "monarch dev"  # the name under which it calls `monarch run`
config_file = click.option("--config", "config_file", help="a TOML file for the recipe")
project_file = click.option("--file", "file", help="the project file [default: monarch.toml]")
agreed_to_send = click.option(
    "--yes", "-y", is_flag=True, help="do not ask before large files are sent"
)


def calls(target: str, **fixed: Any) -> Callable[[Callable[[], None]], Callable[..., None]]:
    """Make a declared command call ``target`` (MODULE:NAME) with its options and ``fixed`` ones.

    The module is imported when the command runs, so that help and usage errors do not wait for it.
    """

    def bind(declared: Callable[[], None]) -> Callable[..., None]:
        @functools.wraps(declared)
        def call(*context: Any, **options: Any) -> None:
            module, _, name = target.partition(":")
            getattr(import_module(module), name)(*context, **options, **fixed)

        return call

    return bind


class SyncOptions(NamedTuple):
    """The options that all subcommands of ``monarch sync`` have.

    ``file`` is the project file (None: the default one); ``is_json`` asks for objects, for
    programs.
    """

    file: str | None
    is_json: bool


def _also_here(context: click.Context, _: click.Parameter, is_json: bool) -> None:
    if is_json:
        context.obj = context.obj._replace(is_json=True)


json_too = click.option(
    "--json", is_flag=True, expose_value=False, callback=_also_here, help="an object, for programs"
)
