"""``monarch sync``: push the workspace to the hosts, once or at every save, and report the
result."""

from __future__ import annotations

import sys

from monarch.cli.large_files import LargeFiles
from monarch.cli.options import SyncOptions
from monarch.cli.sync.looks import NOT_WHOLE
from monarch.cli.sync.output import JsonLines, Lines, Output, errors, tell_push
from monarch.cli.sync.project_workspace import find_project, workspace_of
from monarch.cli.sync.pusher import PushOptions, interruptions, pusher_here
from monarch.cli.sync.watching import Watching
from monarch.cli.terminal.interrupts import asked_to_end
from monarch.cli.terminal.keys import Keys
from monarch.cli.terminal.terminal import Terminal
from monarch.cli.terminal.volume import is_quiet
from monarch.core.holds import named
from monarch.errors import JobError


def sync(
    options: SyncOptions,
    *,
    watch: bool,
    best_effort: bool,
    allow_empty: bool,
    env: bool,
    has_keys: bool,
    yes: bool,
    no_wait: bool,
) -> None:
    """Push the workspace once or at every save."""
    output: Output = JsonLines() if options.is_json else Lines(Terminal())
    large = LargeFiles(
        lambda text, files: output.note("large-files", text, files=files),
        is_agreed=yes,
        may_ask=not (options.is_json or is_quiet()),
    )
    push_options = PushOptions(large, best_effort, allow_empty, env)
    with errors(is_json=options.is_json):
        if watch:
            project = find_project(options.file)
            workspace_of(project)
            pusher = pusher_here(partly=best_effort)
            # A program that gives us keys by a pipe shows the run in the same terminal, and all
            # about it, also what a push waits for.
            pusher.tells_waits = not has_keys
            watching = Watching(project, pusher, output, push_options, Keys(is_piped=has_keys))
            with asked_to_end():
                watching.run()
            return
        if no_wait:
            check_no_call_is_held()
        workspace = workspace_of(find_project(options.file))
        pusher = pusher_here(partly=best_effort)
        with interruptions(pusher, output):
            report = pusher.push(workspace, None, output, push_options)
        tell_push(output, report)
        sys.exit(1 if not report.ok else 0 if report.is_whole else NOT_WHOLE)


def check_no_call_is_held() -> None:
    """Raise ``JobError`` if a push would wait for a held call."""
    from monarch.cli.debug.debug import visit_here

    holds = [hold for hold in visit_here().holds() if hold.is_waiting]
    if holds:
        raise JobError(
            f"nothing was pushed: {named(holds)} at {holds[0].place} is held for `monarch debug`, "
            "and a push would wait for that; without --no-wait it does"
        )
