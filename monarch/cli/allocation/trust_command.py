"""``monarch trust``: the user agrees to the code that project files run."""

from __future__ import annotations

from pathlib import Path

import click

from monarch.cli.project import PROJECT_FILE, load_project
from monarch.cli.terminal.volume import say
from monarch.cli.trust import note_trust, powers_of, take_back, trusted_files


def trust(path: Path | None, is_list: bool, revokes: bool) -> None:
    """Record the user's agreement to what a project file makes us run.

    ``is_list`` prints the trusted files instead; ``revokes`` takes the agreement back.
    """
    if is_list:
        for trusted in trusted_files():
            click.echo(trusted)
        return
    file = path or Path(PROJECT_FILE)
    if file.is_dir():
        file /= PROJECT_FILE
    if revokes:
        take_back(file)
        say(f"{file} is trusted no more")
        return
    project = load_project(str(file))
    powers = powers_of(project)
    if not powers.keys:
        say(f"{file} has nothing run that its author chose: it needs no trust")
        return
    note_trust(project)
    say(f"{file} is trusted to have this run, until one of these lines is edited:")
    say("\n".join(powers.lines()))
