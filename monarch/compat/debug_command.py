"""Upstream's debugger commands as objects, read from what was typed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from monarch.core.rank_sets import BadRanks, RanksType, parse_ranks


class _Puts(Protocol):
    async def output(self, msg: str) -> None: ...


class DebugCommand:
    """One command; `parse` makes it from a line."""

    @staticmethod
    async def parse(debug_io: _Puts, line: str) -> DebugCommand | None:
        """The command that ``line`` is; of one that is none, the error is put out."""
        try:
            return read_command(line)
        except ValueError as error:
            await debug_io.output(f"Error parsing input: {error}\n")
            return None


@dataclass
class DebugAttach(DebugCommand):
    """To the session of one rank."""

    actor_name: str
    rank: int


@dataclass
class ListCommand(DebugCommand):
    """All sessions."""


@dataclass
class Quit(DebugCommand):
    """Leave; sessions stay."""


@dataclass
class DebugCast(DebugCommand):
    """A line to several ranks."""

    actor_name: str
    ranks: RanksType
    command: str


@dataclass
class Help(DebugCommand):
    """Lists the commands."""


@dataclass
class Continue(DebugCommand):
    """All go on, without breakpoints."""


# By upstream's names; messages of ours have these, too.
Attach = DebugAttach
Cast = DebugCast

_ALONE: dict[str, type[DebugCommand]] = {
    "list": ListCommand, "l": ListCommand, "quit": Quit, "q": Quit, "help": Help, "h": Help,
    "continue": Continue, "c": Continue,
}  # fmt: skip
_ATTACH = re.compile(r"(?:attach|a)\s+([-_a-zA-Z0-9]+)\s+([0-9]+)")
_CAST = re.compile(
    r"cast\s+([-_a-zA-Z0-9]+?)\s*(?<![-_a-zA-Z0-9]r)ranks\(((?:[^()]|\([^()]*\))*)\)\s*(\w.*)"
)


def read_command(line: str) -> DebugCommand:
    """Raises ``ValueError`` for what is none."""
    line = line.strip()
    alone = _ALONE.get(line)
    if alone is not None:
        return alone()
    if match := _ATTACH.fullmatch(line):
        return Attach(match[1], int(match[2]))
    if match := _CAST.fullmatch(line):
        try:
            return Cast(match[1], parse_ranks(match[2]), match[3].strip())
        except BadRanks as error:
            raise ValueError(str(error)) from None
    raise ValueError(
        f"{line!r} is none of: attach NAME RANK, list, quit, cast NAME ranks(...) COMMAND, "
        "continue, help"
    )
