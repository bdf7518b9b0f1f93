"""``monarch sync``: the workspace to the hosts, once or at every save, and what came of it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, NoReturn

from monarch.cli.interrupts import asked_to_end
from monarch.cli.keys import Keys
from monarch.cli.large_files import LargeFiles
from monarch.cli.options import SyncOptions
from monarch.cli.project import OWN_RUNS
from monarch.cli.sync.output import JsonLines, Lines, Output, errors, telling_progress
from monarch.cli.sync.preview import (
    Preview,
    first_sync,
    over_hosts,
    preview_lines,
    previews,
    why_refused,
)
from monarch.cli.sync.project_workspace import find_project, whole_of, workspace_of
from monarch.cli.sync.pusher import Pusher, find_pusher, interruptions, pusher_here
from monarch.cli.sync.watching import Watching
from monarch.cli.terminal import Terminal
from monarch.cli.volume import is_quiet, is_verbose
from monarch.core.holds import named
from monarch.errors import JobError
from monarch_sync import Scanner
from monarch_sync.report import Problem
from monarch_sync.scanning.explain import explain
from monarch_sync.words import printable

_NOT_WHOLE = 3  # the exit code where something could not be read, and stays as hosts have it


def sync(
    options: SyncOptions, *, watch: bool, dry_run: bool, lists_all: bool, explained: str | None,
    best_effort: bool, allow_empty: bool, env: bool, has_keys: bool, yes: bool, no_wait: bool,
) -> None:  # fmt: skip
    """Push the workspace once or at every save, or only tell what would be pushed."""
    output: Output = JsonLines() if options.is_json else Lines(Terminal())
    large = LargeFiles(
        lambda text, files: output.note("large-files", text, files=files),
        is_agreed=yes, may_ask=not (options.is_json or is_quiet()),
    )  # fmt: skip
    how: Any = {
        "best_effort": best_effort, "allow_empty": allow_empty, "env": env, "large": large,
    }  # fmt: skip
    with errors(is_json=options.is_json):
        if explained is not None:
            _explain(options, output, explained)
        elif dry_run:
            _preview(options, output, allow_empty=allow_empty, lists_all=lists_all or is_verbose())
        elif watch:
            project = find_project(options.file)
            workspace_of(project)
            pusher = pusher_here(partly=best_effort)
            # A program that gives us keys by a pipe shows the run in the same terminal, and all
            # about it.
            keys, tells_runs = Keys(is_piped=has_keys), not has_keys
            pusher.tells_waits = not has_keys  # The run says it.
            watching = Watching(project, pusher, output, keys=keys, tells_runs=tells_runs, **how)
            with asked_to_end():
                watching.run()
        else:
            if no_wait:
                check_nobody_stands()
            _push(options, output, **how)


def check_nobody_stands() -> None:
    """Raise ``JobError`` where a push would wait for a call that stands."""
    from monarch.cli.debug import visit_here

    holds = [hold for hold in visit_here().holds() if hold.is_waiting]
    if holds:
        raise JobError(
            f"nothing was pushed: {named(holds)} at {holds[0].place} is held for `monarch debug`, "
            "and a push would wait for that; without --no-wait it does"
        )


def _push(
    options: SyncOptions, output: Output, *, large: LargeFiles,
    best_effort: bool, allow_empty: bool, env: bool,
) -> NoReturn:  # fmt: skip
    workspace = workspace_of(find_project(options.file))
    pusher = pusher_here(partly=best_effort)
    with interruptions(pusher, output):
        report = pusher.push(
            workspace, None, output, large=large,
            best_effort=best_effort, allow_empty=allow_empty, env=env,
        )  # fmt: skip
    output.pushed(report)
    sys.exit(1 if not report.ok else 0 if report.is_whole else _NOT_WHOLE)


def _explain(options: SyncOptions, output: Output, path: str) -> NoReturn:
    project = find_project(options.file)
    with telling_progress(output) as progress:
        progress.step = "scan"
        found = explain(whole_of(project), path)
    rule = found.rule
    if rule and rule.pattern == OWN_RUNS and OWN_RUNS not in project.file.workspace.ignore:
        kept = OWN_RUNS.strip("/")
        reason = (
            f"`monarch run` keeps its runs in {kept}, and they stay here; to bring them along, "
            f"change {kept}/.gitignore"
        )
        found = found._replace(code="runs", reason=reason)
    if options.is_json:
        shown = rule._asdict() if rule else None
        JsonLines().say("explain", {**found._asdict(), "rule": shown})
    else:
        Terminal().prose(printable(str(found)))
    sys.exit(0 if found.is_in else 1)


def _preview(
    options: SyncOptions, output: Output, *, allow_empty: bool, lists_all: bool
) -> NoReturn:
    refused = ""
    with telling_progress(output) as progress:
        workspace = whole_of(find_project(options.file))
        pusher = find_pusher(partly=True)
        scan = Scanner(workspace).scan()
        progress.step = "compare"
        answers = pusher.answering() if pusher is not None else {}
        if pusher and answers:
            past = pusher.past(answers)
            states = past.states()
            scan = over_hosts(states, scan)
            found = previews(past, states, scan)
            refused = "" if allow_empty else why_refused(workspace, states, scan)
        else:
            found = [first_sync(scan)]
    if options.is_json:
        problems = [problem.__dict__ for problem in scan.problems]
        data = {"hosts": [one.to_dict() for one in found], "problems": problems, "refused": refused}
        JsonLines().say("dry-run", data)
    else:
        _show_previews(found, scan.problems, pusher, lists_all=lists_all)
        if refused:
            Terminal().prose(f"it would be refused: {refused}", "red")
    sys.exit(1 if refused else 0 if scan.is_whole else _NOT_WHOLE)


def _show_previews(
    found: Iterable[Preview], problems: Iterable[Problem], pusher: Pusher | None, *, lists_all: bool
) -> None:
    terminal = Terminal()
    for preview in found:
        for line in preview_lines(preview, lists_all=lists_all):
            terminal.prose(line)
    for problem in problems:
        terminal.prose(problem.line(), "yellow")
    for line in pusher.silence() if pusher is not None else ():
        terminal.prose(line, "yellow")
