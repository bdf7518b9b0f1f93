"""``monarch env``: environment variables of all ranks; ranks that differ are marked."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterable, Sequence

import click

from monarch.cli.debug.debug import nothing_runs, visit_here
from monarch.core.environment import EnvRow, counts_when, lines_of, rows_of
from monarch.core.rank_sets import BadRanks, RanksType, in_ranges, is_in, parse_set
from monarch.debugger.visit import SeenProc, Visit
from monarch.errors import JobError
from monarch.runtime.debugger.environment import shown
from monarch.wire.message import EnvAsked, EnvSet

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RANKS = re.compile(r"all|ranks\(.*\)|[0-9:][0-9:,-]*")
_VERSIONS_SECONDS = 20.0


def get(names: Sequence[str], ranks: str, mesh: str, at_start: bool) -> None:
    """Print the variables of these names or patterns: one row for each value."""
    visit, procs = _procs(ranks, mesh)
    exact = [name for name in names if not any(sign in name for sign in "*?[")]
    _show(visit, procs, tuple(names), exact, at_start)


def list_all(patterns: Sequence[str], ranks: str, mesh: str, at_start: bool) -> None:
    """Print all variables, or those that match."""
    visit, procs = _procs(ranks, mesh)
    _show(visit, procs, tuple(patterns), (), at_start)


def versions(ranks: str, mesh: str) -> None:
    """Print the versions of Python, torch and the driver, and the limits, of each proc."""
    visit, procs = _procs(ranks, mesh)
    for name, of_mesh in _by_mesh(procs):
        _head(name, procs)
        answers = _ask(visit, of_mesh, (), versions=True)
        click.echo("\n".join(lines_of(rows_of(answers))))


def diff(pair: Sequence[str], mesh: str, against: str | None) -> None:
    """Print the variables that differ between ranks, between two, or from this shell's."""
    ranks = [rank for rank in pair if rank]
    if len(ranks) not in (0, 2) or not all(map(str.isdigit, ranks)):
        raise click.UsageError("give two ranks, as in `monarch env diff 0 3`, or none for all")
    visit, procs = _procs(",".join(ranks) or "all", mesh)
    if missing := set(map(int, ranks)) - {proc.rank for proc in procs}:
        raise JobError(f"no proc of rank {min(missing)} runs: {_named(visit.procs())}")
    salt = secrets.token_hex(8)
    for name, of_mesh in _by_mesh(procs):
        _head(name, procs)
        answers = _ask(visit, of_mesh, (), salt=salt)
        if against:
            environment = shown(os.environ, (), salt)
            rows = [row for row in rows_of({**answers, -1: environment}) if row.differs]
            lines = [line.replace("ranks -1", "local") for line in _against(rows)]
        else:
            lines = lines_of([row for row in rows_of(answers) if row.differs])
        click.echo("\n".join(lines) if lines else "no variable differs")


def _against(rows: Iterable[EnvRow]) -> list[str]:
    lines = []
    for row in rows:
        for index, answer in enumerate(row.values):
            ranks = [rank for rank in answer.ranks if rank >= 0]
            sides = [*(["here"] if -1 in answer.ranks else []), *(["ranks"] if ranks else [])]
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
    visit, procs = _procs(ranks, mesh, may_be_none=True)
    order_ranks = () if ranks == "all" else tuple(sorted({proc.rank for proc in procs}))
    user = visit.who.partition(":")[0]

    order = EnvSet(values, user, order_ranks)
    places = visit.places()
    if not places:
        raise JobError("no allocation is up for this folder, and no program of yours runs here")
    if not visit.ask_places(places, order):
        raise nothing_runs()
    failed = {}
    if not new_only:
        answers = visit.ask_many(procs, order)
        failed = {
            f"{proc.mesh} {proc.rank}": answers[proc.uid].error
            for proc in procs
            if answers[proc.uid].error
        }
    verb = "unset" if is_unset else "set"
    procs_named = "no proc that runs" if new_only or not procs else _named(procs)
    for name in values:
        when = "" if new_only else f"; {counts_when(name)}"
        click.echo(f"{name} {verb} in {procs_named}, and in procs that start later{when}")
    for proc_name, error in failed.items():
        click.echo(f"{proc_name}: {error}", err=True)
    if failed:
        raise click.exceptions.Exit(1)


def _named(procs: Sequence[SeenProc]) -> str:
    return " and ".join(
        f"{name} {in_ranges(proc.rank for proc in procs_of_mesh)}"
        for name, procs_of_mesh in _by_mesh(procs)
    )


def _procs(ranks: str, mesh: str, *, may_be_none: bool = False) -> tuple[Visit, list[SeenProc]]:
    try:
        rank_set: RanksType = parse_set(ranks)
    except BadRanks as error:
        raise click.UsageError(str(error)) from None
    visit = visit_here()
    all_procs = visit.procs()
    procs = [proc for proc in all_procs if mesh in ("", proc.mesh) and is_in(rank_set, proc.rank)]
    if not procs and not may_be_none:
        if all_procs:
            raise JobError(f"that is none of the procs that run: {_named(all_procs)}")
        raise nothing_runs()
    return visit, procs


def _by_mesh(procs: Iterable[SeenProc]) -> list[tuple[str, list[SeenProc]]]:
    meshes: dict[str, list[SeenProc]] = {}
    for proc in procs:
        meshes.setdefault(proc.mesh, []).append(proc)
    return list(meshes.items())


def _head(mesh: str, procs: Sequence[SeenProc]) -> None:
    if len({proc.mesh for proc in procs}) > 1:
        click.echo(f"{mesh}:")


def _ask(
    visit: Visit, procs: Sequence[SeenProc], patterns: tuple[str, ...],
    *, at_start: bool = False, versions: bool = False, salt: str = "",
) -> dict[int, dict[str, str]]:  # fmt: skip
    salt = salt or secrets.token_hex(8)
    answers = visit.ask_many(
        procs,
        EnvAsked(patterns=patterns, at_start=at_start, salt=salt, versions=versions),
        _VERSIONS_SECONDS if versions else 3.0,
    )
    answers_by_rank = {}
    for proc in procs:
        answer = answers[proc.uid]
        if answer.error:
            click.echo(f"{proc.mesh} {proc.rank} (pid {proc.pid}): {answer.error}", err=True)
        else:
            answers_by_rank[proc.rank] = answer.answer
    return answers_by_rank


def _show(
    visit: Visit, procs: Sequence[SeenProc], patterns: tuple[str, ...], exact: Sequence[str],
    at_start: bool,
) -> None:  # fmt: skip
    notes = visit.env_notes()
    for name, of_mesh in _by_mesh(procs):
        _head(name, procs)
        answers = _ask(visit, of_mesh, patterns, at_start=at_start)
        lines = lines_of(rows_of(answers, exact), notes)
        click.echo("\n".join(lines) if lines else f"no variable matches {' '.join(patterns)}")
