"""Upstream's debugger commands as objects, parsed from typed lines."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from monarch.core.rank_sets import BadRanks, RanksType, parse_ranks


class _Puts(Protocol):
    async def output(self, msg: str) -> None: ...


class DebugCommand:
    """One debugger command; `parse` makes it from a line."""

    @staticmethod
    async def parse(debug_io: _Puts, line: str) -> DebugCommand | None:
        """Parse a line; print an error and return ``None`` if it is no command."""
        try:
            return read_command(line)
        except ValueError as error:
            await debug_io.output(f"Error parsing input: {error}\n")
            return None


@dataclass
class DebugAttach(DebugCommand):
    """Attach to the session of one rank."""

    actor_name: str
    rank: int


@dataclass
class ListCommand(DebugCommand):
    """List all sessions."""


@dataclass
class Quit(DebugCommand):
    """Leave the console; the sessions stay."""


@dataclass
class DebugCast(DebugCommand):
    """Send a line to the sessions of several ranks."""

    actor_name: str
    ranks: RanksType
    command: str


@dataclass
class Help(DebugCommand):
    """List the commands."""


@dataclass
class Continue(DebugCommand):
    """Continue all held calls, and clear their breakpoints."""


# Upstream's names. Messages of ours have the same names, so that the classes differ.
Attach = DebugAttach
Cast = DebugCast

_WORDS: dict[str, type[DebugCommand]] = {
    "list": ListCommand,
    "quit": Quit,
    "help": Help,
    "continue": Continue,
}
_WORDS |= {word[0]: command for word, command in _WORDS.items()}
_ATTACH = re.compile(r"(?:attach|a)\s+([-_a-zA-Z0-9]+)\s+([0-9]+)")
_CAST = re.compile(
    r"cast\s+([-_a-zA-Z0-9]+?)\s*(?<![-_a-zA-Z0-9]r)ranks\(((?:[^()]|\([^()]*\))*)\)\s*(\w.*)"
)


def read_command(line: str) -> DebugCommand:
    """Parse a line. Raises ``ValueError`` if it is no command."""
    line = line.strip()
    if line in _WORDS:
        return _WORDS[line]()
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
