"""The table of an allocation's hosts, for a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from monarch.cli.allocation.users import named
from monarch.mesh.ranges import ranges_in_words
from monarch.runtime.answers import Response
from monarch.wire.message import HostState
from monarch_sync.words import counted

_NOTHING = "-"


def show_hosts(responses: Mapping[str, Response[HostState]], names: Mapping[str, str]) -> None:
    """Print a row for each host: its answer, or why it has not answered.

    ``responses`` and ``names`` are by URL; the names are for hosts that cannot say their own.
    """
    table = Table(box=None, pad_edge=False)
    for column in ("host", "pid", "generation", "procs"):
        table.add_column(column, overflow="fold")
    users: dict[str, str] = {}
    for url, response in responses.items():
        if response.error:
            error = Text(response.error, style="red")
            table.add_row(Text(names.get(url, url)), _NOTHING, _NOTHING, error)
            continue
        state = response.answer
        # A host without a user's name is free.
        users[state.host] = named(state)
        procs = in_short([proc.label for proc in state.procs])
        generation = str(state.generation or _NOTHING)
        table.add_row(Text(state.host), str(state.pid), generation, Text(procs or _NOTHING))
    console = Console()
    with console.capture() as lines:
        console.print(table)
    for line in lines.get().splitlines():
        click.echo(line.rstrip())
    for line in usage(users):
        click.echo(line)


def in_short(names: Iterable[str]) -> str:
    """Join names, with the ranks at their ends as ranges: ``adder 0-3, 7``."""
    ranks: dict[str, list[int]] = {}
    for name in names:
        stem, _, rank = name.rpartition(" ")
        if stem and rank.isdecimal():
            ranks.setdefault(stem, []).append(int(rank))
        else:
            ranks[name] = []
    return ", ".join(
        f"{stem} {ranges_in_words(numbers)}" if numbers else stem for stem, numbers in ranks.items()
    )


def usage(users: Mapping[str, str]) -> list[str]:
    """Return sentences that say which user has which host; the user "" is nobody."""
    if not users:
        return []
    if len(set(users.values())) == 1:
        client = next(iter(users.values()))
        hosts = counted(len(users), "host")
        return [f"{hosts}, used by {client}" if client else f"{hosts}, free"]
    return [
        f"{f'used by {client}' if client else 'free'}: "
        + ", ".join(name for name, user in users.items() if user == client)
        for client in dict.fromkeys(users.values())
    ]
