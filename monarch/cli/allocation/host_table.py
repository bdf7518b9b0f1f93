"""The table of an allocation's hosts, for a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from monarch.cli.allocation.users import named
from monarch.mesh.ranges import ranges_in_words
from monarch.runtime.answers import Response
from monarch.wire.message import HostState

_NOTHING = "-"


def show_hosts(
    responses: Mapping[str, Response[HostState]],
    names: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Print the host agents' answers, by URL, or why they have not answered.

    ``names``, by URL, are those of hosts that cannot say their own.
    """
    table = Table(box=None, pad_edge=False)
    for column in ("host", "pid", "generation", "procs"):
        table.add_column(column, overflow="fold")
    users: dict[str, str] = {}
    for url, response in responses.items():
        if response.error:
            table.add_row(
                Text(names.get(url, url)),
                _NOTHING,
                _NOTHING,
                Text(response.error, style="red"),
            )
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
    ranks: dict[str, list[int] | None] = {}
    for name in names:
        stem, _, rank = name.rpartition(" ")
        ranks_of_stem = ranks.setdefault(stem, []) if stem and rank.isdecimal() else None
        if ranks_of_stem is None:
            ranks[name] = None
        else:
            ranks_of_stem.append(int(rank))
    return ", ".join(
        stem if numbers is None else f"{stem} {ranges_in_words(numbers)}"
        for stem, numbers in ranks.items()
    )


def usage(users: Mapping[str, str]) -> list[str]:
    """Say in sentences which user has which host; the user "" is nobody."""
    if not users:
        return []
    hosts = "1 host" if len(users) == 1 else f"{len(users)} hosts"
    if len(set(users.values())) == 1:
        (client,) = set(users.values())
        return [f"{hosts}, used by {client}" if client else f"{hosts}, free"]
    return [
        f"{f'used by {client}' if client else 'free'}: "
        + ", ".join(name for name, user in users.items() if user == client)
        for client in dict.fromkeys(users.values())
    ]
