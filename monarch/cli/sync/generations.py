"""Present and past states of hosts: ``monarch sync status``, ``history``, ``rollback``,
``diff``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from datetime import datetime

import click

from monarch.cli.options import SyncOptions
from monarch.cli.sync.difference import differences
from monarch.cli.sync.output import (
    JsonLines,
    Lines,
    Output,
    errors,
    tell,
    tell_push,
    telling_progress,
)
from monarch.cli.sync.project_workspace import find_project, whole_of
from monarch.cli.sync.pusher import WHOLE_HISTORY, Pusher, interruptions, pusher_here
from monarch.cli.sync.status import standings, status_lines
from monarch.cli.sync.timeline import goal, good_for, timeline, timeline_lines
from monarch.cli.terminal.terminal import Terminal
from monarch_sync import Scanner, Workspace
from monarch_sync.errors import ContentGone
from monarch_sync.scanning.scanner import Scan
from monarch_sync.tree.entry import Entry


def status(options: SyncOptions) -> None:
    """Print which host and which proc runs which generation."""
    with errors(is_json=options.is_json):
        pusher = pusher_here(partly=True)
        responses = pusher.ask()
        procs, like_now = pusher.proc_generations(responses), pusher.like_now(responses)
        standing = standings(responses, procs, like_now, pusher.name_of)
    if options.is_json:
        hosts = [
            {
                "host": host.host,
                "generation": host.generation,
                "digest": host.digest,
                "error": host.error,
                "procs": [
                    {"name": name, "generation": generation}
                    for generation, names in host.procs.items()
                    for name in names
                ],
            }
            for host in standing
        ]
        JsonLines().say("status", {"hosts": hosts})
        return
    tell(status_lines(standing))


def history(options: SyncOptions, limit: int) -> None:
    """Print the generations that hosts remember, at most ``limit``."""
    with errors(is_json=options.is_json):
        pusher = pusher_here(partly=True)
        past = pusher.past(pusher.answering())
        rows = timeline(past.histories(limit))[:limit]
    now = datetime.now().astimezone()
    if options.is_json:
        JsonLines().say("history", {"generations": [row.to_dict(now) for row in rows]})
        return
    if not rows:
        tell(["nothing was pushed yet: `monarch sync` brings your files to the hosts"])
        return
    tell([*timeline_lines(rows, now, len(past.hosts), Terminal().width), *pusher.silence()])


def rollback(options: SyncOptions, generation: int | None, best_effort: bool) -> None:
    """Roll all hosts back to ``generation``; exit with 1 if they do not follow.

    ``None`` is the last generation that succeeded in the run that holds, if one does. Otherwise it
    is the latest generation that differs from the current one. With ``best_effort``, hosts that do
    not answer are left out.
    """
    output: Output = JsonLines() if options.is_json else Lines(Terminal())
    with errors(is_json=options.is_json):
        workspace = whole_of(find_project(options.file))
        pusher = pusher_here(partly=best_effort)
        with interruptions(pusher, output):
            generation_reached = go_back(
                pusher, workspace, generation, output, best_effort=best_effort
            )
    sys.exit(0 if generation_reached else 1)


def go_back(
    pusher: Pusher,
    workspace: Workspace,
    generation: int | None,
    output: Output,
    *,
    best_effort: bool = False,
) -> int:
    """Roll back, as `rollback` says, and report it; return the generation that all hosts then have,
    0 if they did not follow. Raises ``JobError`` if there is no generation to go back to.
    """
    states = pusher.answering() if best_effort else pusher.inspect()
    rows = timeline(pusher.past(states).histories(WHOLE_HISTORY))
    current = next((row for row in rows if row.is_current), None)
    if generation is None:
        held = (bulletin for state in states.values() for bulletin in state.bulletins)
        generation = good_for(held, {row.entry.generation for row in rows if row.can_go_back})
    target = goal(rows, generation)
    report = pusher.roll_back(workspace, target, output, best_effort=best_effort)
    tell_push(output, report)
    if report.ok and report.is_change:
        was = current.entry.generation if current else report.generation - 1
        output.note(
            "rolled-back",
            f"generation {report.generation} is what {target} was; your own files stay as they "
            "are.\n`monarch sync` brings them to the hosts again (so does a `--watch`, at the "
            f"next save), `monarch sync rollback {was}` goes back to what was there",
            generation=target,
            before=was,
        )
    elif report.ok:
        output.note(
            "rolled-back", f"the hosts have what generation {target} was", generation=target
        )
    return report.generation if report.ok else 0


def diff(options: SyncOptions, generation: int | None, exit_code: bool) -> None:
    """Print how the author's files differ from ``generation``, or from what hosts have."""
    with errors(is_json=options.is_json):
        workspace = whole_of(find_project(options.file))
        pusher = pusher_here(partly=True)
        output: Output = JsonLines() if options.is_json else Lines(Terminal(sys.stderr))
        with telling_progress(output):
            scan, held_generation, lines = compared(pusher, workspace, generation or 0)
        if options.is_json:
            text = "\n".join(lines)
            unread = [problem.__dict__ for problem in scan.problems if problem.is_unreadable]
            data = {
                "generation": held_generation, "differs": bool(text), "diff": text,
                "problems": unread,
            }  # fmt: skip
            JsonLines().say("diff", data)
            sys.exit(1 if exit_code and text else 0)
    any_found = show_differences(lines, Terminal())
    for problem in scan.problems:
        if problem.is_unreadable:
            click.echo(f"not compared: {problem}", err=True)
    for line in pusher.silence():
        click.echo(line, err=True)  # The rest can be given to `patch`.
    sys.exit(1 if exit_code and any_found else 0)


def compared(
    pusher: Pusher, workspace: Workspace, generation: int
) -> tuple[Scan, int, Iterator[str]]:
    """Return the scan of the folders here, the generation it is compared with, and the diff's
    lines.

    ``generation`` 0 is the hosts' current one.
    """
    past = pusher.past(pusher.answering())
    held = past.state(generation)
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
    return scan, held.generation, differences(held.manifest, scan.manifest, theirs, ours, name)


def show_differences(lines: Iterable[str], terminal: Terminal) -> bool:
    """Print the lines; return whether there are any."""
    any_found = False
    for line in lines:
        any_found = True
        colour = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1])
        # The text can be written to a file, or piped, and applied with `patch`.
        terminal.line(line, colour, is_exact=terminal.width is None)
    return any_found
