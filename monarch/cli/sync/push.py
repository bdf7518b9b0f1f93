"""``monarch sync``: push the workspace to the hosts, once or at every save, and report the
result."""

from __future__ import annotations

import sys
from typing import Any, NoReturn

from monarch.cli.large_files import LargeFiles
from monarch.cli.options import SyncOptions
from monarch.cli.sync.looks import NOT_WHOLE
from monarch.cli.sync.output import JsonLines, Lines, Output, errors
from monarch.cli.sync.project_workspace import find_project, workspace_of
from monarch.cli.sync.pusher import interruptions, pusher_here
from monarch.cli.sync.watching import Watching
from monarch.cli.terminal.interrupts import asked_to_end
from monarch.cli.terminal.keys import Keys
from monarch.cli.terminal.terminal import Terminal
from monarch.cli.terminal.volume import is_quiet
from monarch.core.holds import named
from monarch.errors import JobError


def sync(
    options: SyncOptions, *, watch: bool,
    best_effort: bool, allow_empty: bool, env: bool, has_keys: bool, yes: bool, no_wait: bool,
) -> None:  # fmt: skip
    """Push the workspace once or at every save."""
    output: Output = JsonLines() if options.is_json else Lines(Terminal())
    large = LargeFiles(
        lambda text, files: output.note("large-files", text, files=files),
        is_agreed=yes, may_ask=not (options.is_json or is_quiet()),
    )  # fmt: skip
    options_of_push: Any = {
        "best_effort": best_effort, "allow_empty": allow_empty, "env": env, "large": large,
    }  # fmt: skip
    with errors(is_json=options.is_json):
        if watch:
            project = find_project(options.file)
            workspace_of(project)
            pusher = pusher_here(partly=best_effort)
            # A program that gives us keys by a pipe shows the run in the same terminal, and all
            # about it.
            keys, tells_runs = Keys(is_piped=has_keys), not has_keys
            pusher.tells_waits = not has_keys  # The run says it.
            watching = Watching(
                project, pusher, output, keys=keys, tells_runs=tells_runs, **options_of_push
            )
            with asked_to_end():
                watching.run()
        else:
            if no_wait:
                check_nobody_stands()
            _push(options, output, **options_of_push)


def check_nobody_stands() -> None:
    """Raise ``JobError`` if a push would wait for a held call."""
    from monarch.cli.debug.debug import visit_here

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
    sys.exit(1 if not report.ok else 0 if report.is_whole else NOT_WHOLE)
