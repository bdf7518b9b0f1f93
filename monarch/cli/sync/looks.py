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
    from monarch.cli.sync.pusher import Pusher

NOT_WHOLE = 3  # the exit code where something could not be read, and stays as hosts have it


def explain(options: SyncOptions, path: str) -> NoReturn:
    """Say why a path is synced, or is not."""
    with errors(is_json=options.is_json):
        _explain(options, _output(options), path)


def preview(options: SyncOptions, *, allow_empty: bool, lists_all: bool) -> NoReturn:
    """Print what a push would send, and to which hosts."""
    with errors(is_json=options.is_json):
        _preview(
            options,
            _output(options),
            allow_empty=allow_empty,
            lists_all=lists_all or is_verbose(),
        )


def _output(options: SyncOptions) -> Output:
    return JsonLines() if options.is_json else Lines(Terminal())


def _explain(options: SyncOptions, output: Output, path: str) -> NoReturn:
    with telling_progress(output) as progress:
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


def _preview(
    options: SyncOptions, output: Output, *, allow_empty: bool, lists_all: bool
) -> NoReturn:
    refused = ""
    with telling_progress(output) as progress:
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
            found_previews = previews(past, states, scan)
            refused = "" if allow_empty else why_refused(workspace, states, scan)
        else:
            found_previews = [first_sync(scan)]
    if options.is_json:
        problems = [problem.__dict__ for problem in scan.problems]
        data = {
            "hosts": [preview_of_hosts.to_dict() for preview_of_hosts in found_previews],
            "problems": problems,
            "refused": refused,
        }
        JsonLines().say("dry-run", data)
    else:
        _show_previews(found_previews, scan.problems, pusher, lists_all=lists_all)
        if refused:
            Terminal().prose(f"it would be refused: {refused}", "red")
    sys.exit(1 if refused else 0 if scan.is_whole else NOT_WHOLE)


def _show_previews(
    found_previews: Iterable[Preview],
    problems: Iterable[Problem],
    pusher: Pusher | None,
    *,
    lists_all: bool,
) -> None:
    from monarch.cli.sync.preview import preview_lines

    terminal = Terminal()
    for preview_of_hosts in found_previews:
        for line in preview_lines(preview_of_hosts, lists_all=lists_all):
            terminal.prose(line)
    for problem in problems:
        terminal.prose(problem.line(), "yellow")
    for line in pusher.silence() if pusher is not None else ():
        terminal.prose(line, "yellow")
