"""``monarch sync``: the workspace to the hosts, once or at every save, and what came of it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import NamedTuple, NoReturn

import click

from monarch.cli.sync.difference import differences
from monarch.cli.sync.ending import asked_to_end
from monarch.cli.sync.preview import Preview, first_sync, over_hosts, preview_lines, previews
from monarch.cli.sync.setting import find_project, whole_of, workspace_of
from monarch.cli.sync.status import standings, status_lines
from monarch.cli.sync.terminal import Terminal
from monarch.cli.sync.timeline import goal, timeline, timeline_lines
from monarch.cli.sync.visitor import WHOLE_HISTORY, Visitor, find_visitor, visit
from monarch.cli.sync.voice import JsonLines, Lines, Voice
from monarch.cli.sync.watching import Watching
from monarch.config_file import ConfigError
from monarch.errors import MonarchError
from monarch_sync import Scanner, SyncError
from monarch_sync.entry import Entry
from monarch_sync.errors import ContentGone
from monarch_sync.explain import explain
from monarch_sync.report import Problem
from monarch_sync.words import printable

__all__ = ["sync"]


_NOT_WHOLE = 3  # the exit code where something could not be read, and stays as hosts have it


class _Chosen(NamedTuple):
    """What was said before the name of a subcommand."""

    file: str | None
    is_json: bool


@click.group(invoke_without_command=True)
@click.option("--watch", is_flag=True, help="go on, and push at every save")
@click.option("--dry-run", is_flag=True, help="only say what would move")
@click.option("--explain", "explained", metavar="PATH", help="say why a path is synced, or is not")
@click.option("--best-effort", is_flag=True, help="go on without hosts that cannot follow")
@click.option("--env", is_flag=True, help="first install what the lock file asks for, for hosts")
@click.option("--json", "is_json", is_flag=True, help="an object a push, for programs")
@click.option("--file", "file", help="the project file [default: monarch.toml]")
@click.option("--verbose", "-v", is_flag=True, help="the whole report of each push")
@click.pass_context
def sync(
    context: click.Context, watch: bool, dry_run: bool, explained: str | None, best_effort: bool,
    env: bool, is_json: bool, file: str | None, verbose: bool,
) -> None:  # fmt: skip
    """Bring the workspace to all hosts, and its code into what runs there.

    Live processes switch to the new code between the same two messages on every rank. Code that
    does not compile, or does not run, changes nobody. Exits with 1 if the push was refused, with 3
    if it was made without something that cannot be read here.
    """
    context.obj = _Chosen(file, is_json)
    if context.invoked_subcommand is not None:
        if watch or dry_run or best_effort or env or explained is not None:
            raise click.UsageError("this option goes without a command behind it", context)
        return
    if sum((watch, dry_run, explained is not None)) > 1:
        raise click.UsageError("choose one of --watch, --dry-run and --explain", context)
    voice: Voice = JsonLines() if is_json else Lines(Terminal(), verbose)
    with _errors(context.obj):
        if explained is not None:
            _explain(context.obj, explained)
        elif dry_run:
            _preview(context.obj)
        elif watch:
            project = find_project(file)
            workspace_of(project)
            visitor = visit(partly=best_effort)
            watching = Watching(project, visitor, voice, best_effort=best_effort, env=env)
            with asked_to_end():
                watching.run()
        else:
            _push(context.obj, voice, best_effort=best_effort, env=env)


def _push(chosen: _Chosen, voice: Voice, *, best_effort: bool, env: bool) -> NoReturn:
    workspace = workspace_of(find_project(chosen.file))
    visitor = visit(partly=best_effort)
    with _interruptions(visitor, voice):
        report = visitor.push(workspace, None, voice, best_effort=best_effort, env=env)
    voice.pushed(report)
    sys.exit(1 if not report.ok else 0 if report.is_whole else _NOT_WHOLE)


@contextmanager
def _interruptions(visitor: Visitor, voice: Voice) -> Iterator[None]:
    """A push that is interrupted within has put all back, and says where that is."""
    with asked_to_end():
        try:
            yield
        except KeyboardInterrupt:
            voice.note("interrupted", f"interrupted; {visitor.generations()}", ok=False)
            sys.exit(130)


def _end_with(error: Exception, is_json: bool) -> NoReturn:
    """Programs read of errors where they read of all else."""
    if not is_json:
        raise error
    JsonLines().failed(str(error))
    sys.exit(2 if isinstance(error, ConfigError) else 1)


@contextmanager
def _errors(chosen: _Chosen) -> Iterator[None]:
    try:
        yield
    except (MonarchError, SyncError, ConfigError) as error:
        _end_with(error, chosen.is_json)


def _silence(visitor: Visitor) -> list[str]:
    """Which hosts have said nothing to what is shown, and why."""
    return [f"{url}: {error}" for url, error in visitor.silent.items()]


def _explain(chosen: _Chosen, path: str) -> NoReturn:
    found = explain(whole_of(find_project(chosen.file)), path)
    if chosen.is_json:
        rule = found.rule._asdict() if found.rule else None
        JsonLines().say("explain", {**found._asdict(), "rule": rule})
    else:
        Terminal().prose(printable(str(found)))
    sys.exit(0 if found.is_in else 1)


def _preview(chosen: _Chosen) -> NoReturn:
    workspace = whole_of(find_project(chosen.file))
    visitor = find_visitor(partly=True)
    scan = Scanner(workspace).scan()
    answers = visitor.answering() if visitor is not None else {}
    if visitor and answers:
        past = visitor.past(answers)
        states = past.states()
        scan = over_hosts(states, scan)
        found = previews(past, states, scan)
    else:
        found = [first_sync(scan)]
    if chosen.is_json:
        problems = [problem.__dict__ for problem in scan.problems]
        data = {"hosts": [one.to_dict() for one in found], "problems": problems}
        JsonLines().say("dry-run", data)
    else:
        _show_previews(found, scan.problems, visitor)
    sys.exit(0 if scan.is_whole else _NOT_WHOLE)


def _show_previews(
    found: Iterable[Preview], problems: Iterable[Problem], visitor: Visitor | None
) -> None:
    terminal = Terminal()
    for preview in found:
        for line in preview_lines(preview):
            terminal.prose(line)
    for problem in problems:
        terminal.prose(problem.line(), "yellow")
    for line in _silence(visitor) if visitor is not None else ():
        terminal.prose(line, "yellow")


def _also_here(context: click.Context, _: click.Parameter, is_json: bool) -> None:
    if is_json:
        context.obj = context.obj._replace(is_json=True)


_json_too = click.option(
    "--json", is_flag=True, expose_value=False, callback=_also_here, help="an object, for programs"
)


@sync.command("status")
@_json_too
@click.pass_obj
def _status(chosen: _Chosen) -> None:
    """Which host and which proc runs which generation, and what is stale."""
    with _errors(chosen):
        visitor = visit(partly=True)
        found = visitor.ask()
        standing = standings(found, visitor.proc_generations(found), visitor.like_now(found))
    if chosen.is_json:
        hosts = [
            {
                "host": one.host, "generation": one.generation, "digest": one.digest,
                "error": one.error,
                "procs": [
                    {"name": name, "generation": generation}
                    for generation, names in one.procs.items()
                    for name in names
                ],
            }
            for one in standing
        ]  # fmt: skip
        JsonLines().say("status", {"hosts": hosts})
        return
    _lines(status_lines(standing))


@sync.command("history")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True)
@_json_too
@click.pass_obj
def _history(chosen: _Chosen, limit: int) -> None:
    """The generations that the hosts remember: when, who, what.

    A `*` marks the one that is there now, a `-` those that no host has all contents of any more.
    """
    with _errors(chosen):
        visitor = visit(partly=True)
        past = visitor.past(visitor.answering())
        rows = timeline(past.histories(limit))[:limit]
    now = datetime.now().astimezone()
    if chosen.is_json:
        JsonLines().say("history", {"generations": [row.to_dict(now) for row in rows]})
        return
    if not rows:
        _lines(["nothing was pushed yet: `monarch sync` brings your files to the hosts"])
        return
    _lines([*timeline_lines(rows, now, len(past.hosts), Terminal().width), *_silence(visitor)])


@sync.command("rollback")
@click.argument("generation", required=False, type=click.IntRange(min=1))
@click.option("--best-effort", is_flag=True, help="go on without hosts that cannot follow")
@click.option("--verbose", "-v", is_flag=True, help="the whole report")
@_json_too
@click.pass_obj
def _rollback(chosen: _Chosen, generation: int | None, best_effort: bool, verbose: bool) -> None:
    """Have all hosts go back to a generation, or none of them.

    Without GENERATION: to the state before the one that is there. What runs on the hosts reloads;
    your own files stay as they are, so that `monarch sync` goes forward again.
    """
    voice: Voice = JsonLines() if chosen.is_json else Lines(Terminal(), verbose)
    with _errors(chosen):
        workspace = whole_of(find_project(chosen.file))
        visitor = visit(partly=best_effort)
        found = visitor.answering() if best_effort else visitor.inspect()
        rows = timeline(visitor.past(found).histories(WHOLE_HISTORY))
        current = next((row for row in rows if row.is_current), None)
        wanted = goal(rows, generation)
        with _interruptions(visitor, voice):
            report = visitor.roll_back(workspace, wanted, voice, best_effort=best_effort)
    voice.pushed(report)
    if report.ok and report.changed_files:
        was = current.told.generation if current else report.generation - 1
        voice.note(
            "rolled-back",
            f"generation {report.generation} is what {wanted} was; your own files stay as they "
            "are.\n`monarch sync` brings them to the hosts again (so does a `--watch`, at the "
            f"next save), `monarch sync rollback {was}` goes back to what was there",
            generation=wanted, before=was,
        )  # fmt: skip
    elif report.ok:
        voice.note("rolled-back", f"the hosts have what generation {wanted} was", generation=wanted)
    sys.exit(0 if report.ok else 1)


@sync.command("diff")
@click.argument("generation", required=False, type=click.IntRange(min=1))
@click.option("--exit-code", is_flag=True, help="exit with 1 if there are differences")
@_json_too
@click.pass_obj
def _diff(chosen: _Chosen, generation: int | None, exit_code: bool) -> None:
    """How your files differ from what the hosts have, or had as GENERATION.

    Lines with a `-` are there, those with a `+` are yours.
    """
    with _errors(chosen):
        workspace = whole_of(find_project(chosen.file))
        visitor = visit(partly=True)
        past = visitor.past(visitor.answering())
        held = past.state(generation or 0)
        scanner = Scanner(workspace)
        scan = scanner.scan().over(held.manifest)

    def theirs(entry: Entry) -> bytes | None:
        try:
            return past.content(entry)
        except ContentGone:
            return None

    def ours(entry: Entry) -> bytes | None:
        return bytes(scanner.contents.whole(entry))

    name = f"gen {held.generation}"
    with _errors(chosen):
        found = differences(held.manifest, scan.manifest, theirs, ours, name)
        if chosen.is_json:
            text = "\n".join(found)
            unread = [problem.__dict__ for problem in scan.problems if problem.is_unreadable]
            data = {
                "generation": held.generation, "differs": bool(text), "diff": text,
                "problems": unread,
            }  # fmt: skip
            JsonLines().say("diff", data)
            sys.exit(1 if exit_code and text else 0)
    terminal = Terminal()
    any_found = False
    for line in found:
        any_found = True
        shown = (
            "\t".join(printable(part) for part in line.split("\t")) if terminal.is_live else line
        )
        colour = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1])
        terminal.line(shown, colour)
    for problem in scan.problems:
        if problem.is_unreadable:
            click.echo(f"not compared: {problem}", err=True)
    for line in _silence(visitor):
        click.echo(line, err=True)  # The rest can be given to `patch`.
    sys.exit(1 if exit_code and any_found else 0)


def _lines(lines: Iterable[str]) -> None:
    terminal = Terminal()
    for line in lines:
        terminal.prose(line)
