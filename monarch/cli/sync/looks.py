"""``monarch sync --dry-run`` and ``--explain``: print a line at once, then what a push would do.

Importing the code that asks hosts takes longest, so the scan begins before.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, NoReturn

from monarch.cli.options import SyncOptions
from monarch.cli.project import OWN_RUNS
from monarch.cli.sync.output import JsonLines, Lines, Output, errors, telling_progress
from monarch.cli.terminal.terminal import Terminal
from monarch.cli.terminal.volume import is_verbose
from monarch_sync.report import Problem
from monarch_sync.words import printable

if TYPE_CHECKING:
    from monarch.cli.sync.preview import Preview

NOT_WHOLE = 3  # the exit status if a file could not be read, so that hosts keep theirs


def explain(options: SyncOptions, path: str) -> NoReturn:
    """Say why a path is synced, or is not; exit with 1 if it is not."""
    output = _output(options)
    with errors(is_json=options.is_json), telling_progress(output) as progress:
        from monarch.cli.sync.project_workspace import find_project, whole_of
        from monarch_sync.scanning.explain import explain

        project = find_project(options.file)
        progress.step = "scan"
        explanation = explain(whole_of(project), path)
    rule = explanation.rule
    if rule and rule.pattern == OWN_RUNS and OWN_RUNS not in project.file.workspace.ignore:
        runs_folder = OWN_RUNS.strip("/")
        reason = (
            f"`monarch run` keeps its runs in {runs_folder}, and they stay here; to bring them "
            f"along, change {runs_folder}/.gitignore"
        )
        explanation = explanation._replace(code="runs", reason=reason)
    if options.is_json:
        rule_data = rule._asdict() if rule else None
        JsonLines().say("explain", {**explanation._asdict(), "rule": rule_data})
    else:
        Terminal().prose(printable(str(explanation)))
    sys.exit(0 if explanation.is_in else 1)


def preview(options: SyncOptions, *, allow_empty: bool, lists_all: bool) -> NoReturn:
    """Print what a push would send, and to which hosts; exit with 1 if it would be refused."""
    output, refused = _output(options), ""
    with errors(is_json=options.is_json), telling_progress(output) as progress:
        from monarch.cli.sync.preview import first_sync, over_hosts, previews, why_refused
        from monarch.cli.sync.project_workspace import find_project, whole_of
        from monarch.cli.sync.pusher import find_pusher
        from monarch_sync import Scanner

        workspace = whole_of(find_project(options.file))
        pusher = find_pusher(partly=True)
        scan = Scanner(workspace).scan()
        progress.step = "compare"
        answers = pusher.answering() if pusher is not None else {}
        if pusher and answers:
            past = pusher.past(answers)
            states = past.states()
            scan = over_hosts(states, scan)
            results = previews(past, states, scan)
            refused = "" if allow_empty else why_refused(workspace, states, scan)
        else:
            results = [first_sync(scan)]
    if options.is_json:
        hosts = [result.to_dict() for result in results]
        problems = [problem.__dict__ for problem in scan.problems]
        JsonLines().say("dry-run", {"hosts": hosts, "problems": problems, "refused": refused})
    else:
        _show(results, scan.problems, lists_all=lists_all or is_verbose())
        for line in pusher.silence() if pusher is not None else ():
            Terminal().prose(line, "yellow")
        if refused:
            Terminal().prose(f"it would be refused: {refused}", "red")
    sys.exit(1 if refused else 0 if scan.is_whole else NOT_WHOLE)


def _show(results: Iterable[Preview], problems: Iterable[Problem], *, lists_all: bool) -> None:
    from monarch.cli.sync.preview import preview_lines

    terminal = Terminal()
    for result in results:
        for line in preview_lines(result, lists_all=lists_all):
            terminal.prose(line)
    for problem in problems:
        terminal.prose(problem.line(), "yellow")


def _output(options: SyncOptions) -> Output:
    return JsonLines() if options.is_json else Lines(Terminal())
