"""``monarch sync``: the workspace to the hosts, once or at every save, and what came of it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, NoReturn

import click

from monarch.cli.large_files import LargeFiles
from monarch.cli.project import OWN_RUNS
from monarch.cli.sync.chosen import Chosen, errors, interruptions, silence
from monarch.cli.sync.ending import asked_to_end
from monarch.cli.sync.generations import diff, history, rollback, status
from monarch.cli.sync.keys import Keys
from monarch.cli.sync.preview import (
    Preview,
    first_sync,
    over_hosts,
    preview_lines,
    previews,
    why_refused,
)
from monarch.cli.sync.setting import find_project, whole_of, workspace_of
from monarch.cli.sync.terminal import Terminal
from monarch.cli.sync.visitor import Visitor, find_visitor, visit
from monarch.cli.sync.voice import JsonLines, Lines, Voice
from monarch.cli.sync.watching import Watching
from monarch.cli.volume import is_quiet
from monarch_sync import Scanner
from monarch_sync.report import Problem
from monarch_sync.scanning.explain import explain
from monarch_sync.words import printable

__all__ = ["sync"]


_NOT_WHOLE = 3  # the exit code where something could not be read, and stays as hosts have it


@click.group(invoke_without_command=True)
@click.option("--watch", is_flag=True, help="go on, and push at every save")
@click.option("--dry-run", is_flag=True, help="only say what would move")
@click.option("--explain", "explained", metavar="PATH", help="say why a path is synced, or is not")
@click.option("--best-effort", is_flag=True, help="go on without hosts that cannot follow")
@click.option(
    "--allow-empty", is_flag=True, help="empty a folder on the hosts, too, that is empty here"
)
@click.option(
    "--env", is_flag=True, help="bring the packages of the lock file, too, for hosts to install"
)
@click.option("--json", "is_json", is_flag=True, help="an object a push, for programs")
@click.option("--keys", "has_keys", is_flag=True, hidden=True, help="keys come by stdin")
@click.option("--file", "file", help="the project file [default: monarch.toml]")
@click.option("--yes", "-y", is_flag=True, help="do not ask before large files are sent")
@click.pass_context
def sync(
    context: click.Context, watch: bool, dry_run: bool, explained: str | None, best_effort: bool,
    allow_empty: bool, env: bool, is_json: bool, has_keys: bool, file: str | None, yes: bool,
) -> None:  # fmt: skip
    """Bring the workspace to all hosts, and its code into what runs there.

    Live processes switch to the new code between the same two messages on every rank. Code that
    does not compile, or does not run, changes nobody. Exits with 1 if the push was refused, with 3
    if it was made without something that cannot be read here.
    """
    context.obj = Chosen(file, is_json)
    if context.invoked_subcommand is not None:
        if any((watch, dry_run, best_effort, allow_empty, env, yes, explained is not None)):
            raise click.UsageError("this option goes without a command behind it", context)
        return
    if sum((watch, dry_run, explained is not None)) > 1:
        raise click.UsageError("choose one of --watch, --dry-run and --explain", context)
    voice: Voice = JsonLines() if is_json else Lines(Terminal())
    large = LargeFiles(
        lambda text, files: voice.note("large-files", text, files=files),
        is_agreed=yes, may_ask=not (is_json or is_quiet()),
    )  # fmt: skip
    how: Any = {
        "best_effort": best_effort, "allow_empty": allow_empty, "env": env, "large": large,
    }  # fmt: skip
    with errors(context.obj):
        if explained is not None:
            _explain(context.obj, explained)
        elif dry_run:
            _preview(context.obj, allow_empty=allow_empty)
        elif watch:
            project = find_project(file)
            workspace_of(project)
            visitor = visit(partly=best_effort)
            # Who gives us keys by a pipe shows the run in the same terminal, and all about it.
            keys, tells_runs = Keys(is_piped=has_keys), not has_keys
            watching = Watching(project, visitor, voice, keys=keys, tells_runs=tells_runs, **how)
            with asked_to_end():
                watching.run()
        else:
            _push(context.obj, voice, **how)


def _push(
    chosen: Chosen, voice: Voice, *, large: LargeFiles,
    best_effort: bool, allow_empty: bool, env: bool,
) -> NoReturn:  # fmt: skip
    workspace = workspace_of(find_project(chosen.file))
    visitor = visit(partly=best_effort)
    with interruptions(visitor, voice):
        report = visitor.push(
            workspace, None, voice, large=large,
            best_effort=best_effort, allow_empty=allow_empty, env=env,
        )  # fmt: skip
    voice.pushed(report)
    sys.exit(1 if not report.ok else 0 if report.is_whole else _NOT_WHOLE)


def _explain(chosen: Chosen, path: str) -> NoReturn:
    project = find_project(chosen.file)
    found = explain(whole_of(project), path)
    rule = found.rule
    if rule and rule.pattern == OWN_RUNS and OWN_RUNS not in project.file.workspace.ignore:
        kept = OWN_RUNS.strip("/")
        reason = (
            f"`monarch run` keeps its runs in {kept}, and they stay here; to bring them along, "
            f"change {kept}/.gitignore"
        )
        found = found._replace(code="runs", reason=reason)
    if chosen.is_json:
        shown = rule._asdict() if rule else None
        JsonLines().say("explain", {**found._asdict(), "rule": shown})
    else:
        Terminal().prose(printable(str(found)))
    sys.exit(0 if found.is_in else 1)


def _preview(chosen: Chosen, *, allow_empty: bool) -> NoReturn:
    workspace = whole_of(find_project(chosen.file))
    visitor = find_visitor(partly=True)
    scan = Scanner(workspace).scan()
    answers = visitor.answering() if visitor is not None else {}
    refused = ""
    if visitor and answers:
        past = visitor.past(answers)
        states = past.states()
        scan = over_hosts(states, scan)
        found = previews(past, states, scan)
        refused = "" if allow_empty else why_refused(workspace, states, scan)
    else:
        found = [first_sync(scan)]
    if chosen.is_json:
        problems = [problem.__dict__ for problem in scan.problems]
        data = {"hosts": [one.to_dict() for one in found], "problems": problems, "refused": refused}
        JsonLines().say("dry-run", data)
    else:
        _show_previews(found, scan.problems, visitor)
        if refused:
            Terminal().prose(f"it would be refused: {refused}", "red")
    sys.exit(1 if refused else 0 if scan.is_whole else _NOT_WHOLE)


def _show_previews(
    found: Iterable[Preview], problems: Iterable[Problem], visitor: Visitor | None
) -> None:
    terminal = Terminal()
    for preview in found:
        for line in preview_lines(preview):
            terminal.prose(line)
    for problem in problems:
        terminal.prose(problem.line(), "yellow")
    for line in silence(visitor) if visitor is not None else ():
        terminal.prose(line, "yellow")


for command in (status, history, rollback, diff):
    sync.add_command(command)
