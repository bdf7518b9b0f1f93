"""``monarch env``: environment variables of all ranks; ranks that differ are marked."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence

import click

from monarch.cli.debug.debug import by_mesh, in_words, nothing_runs, procs_here, tell_silence
from monarch.core.environment import EnvRow, counts_when, lines_of, rows_of
from monarch.core.rank_sets import in_ranges
from monarch.debugger.visit import SeenProc, Visit
from monarch.errors import JobError
from monarch.net.machine import user_name
from monarch.runtime.debugger.environment import shown
from monarch.wire.message import EnvAsked, EnvSet

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RANKS = re.compile(r"all|ranks\(.*\)|[0-9:][0-9:,-]*")
_SECONDS = 3.0
_VERSIONS_SECONDS = 20.0
_LOCAL = -1  # the "rank" of this shell's environment


def get(names: Sequence[str], ranks: str, mesh: str, at_start: bool) -> None:
    """Print the variables of these names or patterns: one row for each value."""
    exact = [name for name in names if not any(sign in name for sign in "*?[")]
    _show(names, exact, ranks, mesh, at_start)


def list_all(patterns: Sequence[str], ranks: str, mesh: str, at_start: bool) -> None:
    """Print all variables, or those that match one of ``patterns``."""
    _show(patterns, (), ranks, mesh, at_start)


def _show(
    patterns: Sequence[str], exact: Sequence[str], ranks: str, mesh: str, at_start: bool
) -> None:
    visit, procs = procs_here(ranks, mesh)
    notes = visit.env_notes()
    for procs_of_mesh in _each_mesh(procs):
        question = EnvAsked(tuple(patterns), at_start, secrets.token_hex(8), False)
        lines = lines_of(rows_of(_ask(visit, procs_of_mesh, question), exact), notes)
        click.echo("\n".join(lines) if lines else f"no variable matches {' '.join(patterns)}")


def versions(ranks: str, mesh: str) -> None:
    """Print the versions of Python, torch and the driver, and the limits, of each proc."""
    visit, procs = procs_here(ranks, mesh)
    for procs_of_mesh in _each_mesh(procs):
        question = EnvAsked((), False, secrets.token_hex(8), True)
        answers = _ask(visit, procs_of_mesh, question, _VERSIONS_SECONDS)
        click.echo("\n".join(lines_of(rows_of(answers))))


def diff(pair: Sequence[str], mesh: str, against: str | None) -> None:
    """Print the variables that differ between all ranks, or between the two ranks of ``pair``.

    With ``against``, print those that differ between a rank and this shell.
    """
    if len(pair) not in (0, 2) or not all(map(str.isdigit, pair)):
        raise click.UsageError("give two ranks, as in `monarch env diff 0 3`, or none for all")
    visit, procs = procs_here(",".join(pair) or "all", mesh)
    if missing := set(map(int, pair)) - {proc.rank for proc in procs}:
        raise JobError(f"no proc of rank {min(missing)} runs: {in_words(visit.procs())}")
    salt = secrets.token_hex(8)
    for procs_of_mesh in _each_mesh(procs):
        answers = _ask(visit, procs_of_mesh, EnvAsked((), False, salt, False))
        if against:
            answers[_LOCAL] = shown(os.environ, (), salt)
        rows = [row for row in rows_of(answers) if row.differs]
        lines = _against(rows) if against else lines_of(rows)
        click.echo("\n".join(lines) if lines else "no variable differs")


def _against(rows: Iterable[EnvRow]) -> list[str]:
    lines = []
    for row in rows:
        for index, answer in enumerate(row.values):
            ranks = [rank for rank in answer.ranks if rank != _LOCAL]
            sides = [*(["here"] if _LOCAL in answer.ranks else []), *(["ranks"] if ranks else [])]
            text = " and ".join(sides) + (f" {in_ranges(ranks)}" if ranks else "")
            lines.append(f"{row.name if index == 0 else '':<28}   {answer.answer:<48}   {text}")
    return lines


def change(words: Sequence[str], mesh: str, *, new_only: bool, is_unset: bool) -> None:
    """Set variables, or unset them, in procs that run, and in those that start later."""
    ranks = words[-1] if len(words) > 1 and _RANKS.fullmatch(words[-1]) else "all"
    assignments = words[:-1] if ranks is words[-1] else words
    values: dict[str, str | None] = {}
    for word in assignments:
        name, equals, value = word.partition("=")
        if not _VARIABLE.fullmatch(name) or bool(equals) == is_unset:
            usage = "NAME..." if is_unset else "NAME=VALUE..."
            raise click.UsageError(f"{word!r}: give {usage}, and then, if you like, RANKS")
        values[name] = None if is_unset else value
    visit, procs = procs_here(ranks, mesh, may_be_none=True)
    order_ranks = () if ranks == "all" else tuple(sorted({proc.rank for proc in procs}))
    order = EnvSet(values, user_name(), order_ranks)
    if not visit.hosts():
        raise JobError("no allocation is up for this folder, and no program of yours runs here")
    if not visit.ask_hosts(order):
        raise nothing_runs()
    tell_silence(visit)
    failed = {}
    if not new_only:
        answers = visit.ask_many(procs, order)
        failed = {
            f"{proc.mesh} {proc.rank}": answers[proc.uid].error
            for proc in procs
            if answers[proc.uid].error
        }
    verb = "unset" if is_unset else "set"
    procs_named = "no proc that runs" if new_only or not procs else in_words(procs)
    for name in values:
        when = "" if new_only else f"; {counts_when(name)}"
        click.echo(f"{name} {verb} in {procs_named}, and in procs that start later{when}")
    for proc_name, error in failed.items():
        click.echo(f"{proc_name}: {error}", err=True)
    if failed:
        raise click.exceptions.Exit(1)


def _each_mesh(procs: Sequence[SeenProc]) -> Iterator[list[SeenProc]]:
    """Yield the procs of each mesh; if there are several meshes, print each one's name first."""
    meshes = by_mesh(procs)
    for name, procs_of_mesh in meshes.items():
        if len(meshes) > 1:
            click.echo(f"{name}:")
        yield procs_of_mesh


def _ask(
    visit: Visit, procs: Sequence[SeenProc], question: EnvAsked, seconds: float = _SECONDS
) -> dict[int, dict[str, str]]:
    """Return the variables of procs, by rank; print the errors of procs that give none."""
    answers = visit.ask_many(procs, question, seconds)
    variables = {}
    for proc in procs:
        answer = answers[proc.uid]
        if answer.error:
            click.echo(f"{proc.mesh} {proc.rank} (pid {proc.pid}): {answer.error}", err=True)
        else:
            variables[proc.rank] = answer.answer
    return variables
