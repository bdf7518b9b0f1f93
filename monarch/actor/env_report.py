"""The environment variables of the procs of a mesh."""

from __future__ import annotations

import html
import secrets
from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec

from monarch.core.environment import EnvRow, lines_of, rows_of
from monarch.errors import SupervisionError
from monarch.net.machine import user_name
from monarch.runtime import process
from monarch.runtime.answers import Response, collect
from monarch.wire.address import ProcAddress
from monarch.wire.message import EnvAsked, EnvSet, Request

A = TypeVar("A")
_SECONDS = 5.0


class EnvReport(msgspec.Struct, frozen=True):
    """The environment of a mesh: ``ranks`` has the variables of each rank that answered, ``silent``
    the reason for each rank that did not.

    Values of variables that look like secrets are hidden; equal values are still shown as equal.
    """

    ranks: Mapping[int, Mapping[str, str]]
    silent: Mapping[int, str]

    @property
    def rows(self) -> list[EnvRow]:
        """Return a row for each variable, with the ranks of each value."""
        return rows_of(self.ranks)

    @property
    def odd(self) -> dict[int, dict[str, str]]:
        """Return the variables in which a rank differs from most of the others, by rank."""
        by_rank: dict[int, dict[str, str]] = {}
        for row in self.rows:
            for value in row.values:
                for rank in value.ranks if value.is_odd else ():
                    by_rank.setdefault(rank, {})[row.name] = value.answer
        return by_rank

    @property
    def differs(self) -> list[EnvRow]:
        """Return the rows of variables that are not the same on all ranks."""
        return [row for row in self.rows if row.differs]

    def __getitem__(self, name: str) -> dict[int, str | None]:
        """Return the value of one variable for each rank; ``None`` where it is not set."""
        return {rank: env.get(name) for rank, env in self.ranks.items()}

    def __str__(self) -> str:
        lines = lines_of(self.rows) or ["no rank has such a variable"]
        return "\n".join([*lines, *(f"rank {r}: {why}" for r, why in self.silent.items())])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def ask_environment(
    procs: Sequence[ProcAddress], patterns: Sequence[str], *, at_start: bool
) -> EnvReport:
    """Ask these procs for their variables; a proc's rank is its index in ``procs``."""
    salt = secrets.token_hex(8)
    request = EnvAsked(patterns=tuple(patterns), at_start=at_start, salt=salt, versions=False)
    replies = _ask(procs, request)
    answers = {rank: reply.answer for rank, reply in replies.items() if not reply.error}
    return EnvReport(answers, _errors_of(replies))


def change_environment_of(procs: Sequence[ProcAddress], values: Mapping[str, str | None]) -> None:
    """Set these variables in these procs."""
    for name, value in values.items():
        if not isinstance(name, str) or not (value is None or isinstance(value, str)):
            raise TypeError(f"{name!r} takes text, or None to unset it, not {value!r}")
    failed = _errors_of(_ask(procs, EnvSet(dict(values), user_name(), ())))
    if failed:
        raise SupervisionError("; ".join(f"rank {rank}: {why}" for rank, why in failed.items()))


def _errors_of(replies: Mapping[int, Response[A]]) -> dict[int, str]:
    return {rank: reply.error for rank, reply in replies.items() if reply.error}


def _ask(procs: Sequence[ProcAddress], request: Request[A]) -> dict[int, Response[A]]:
    node = process.current().node
    return collect({rank: node.ask(proc, request) for rank, proc in enumerate(procs)}, _SECONDS)
