"""The project and the workspace of a ``monarch sync`` command, or an error that says what is
missing."""

from __future__ import annotations

import difflib
from pathlib import Path

from monarch.cli.own_output import without_own_output
from monarch.cli.project import PROJECT_FILE, Project, load_project
from monarch.config_file import ConfigError
from monarch.job import DEFAULT_JOB_PATH
from monarch.job.places import has_state
from monarch.runtime.workspace.packages.surroundings import Surroundings
from monarch_sync import Workspace

_EXAMPLE = """
    [job]
    hosts = { hosts = 2 }

    [workspace]
    dirs = ["."]
"""


def find_project(file: str | None) -> Project:
    """Return the project of this folder. Raises ``ConfigError`` if there is none.

    A folder whose allocation was started without a ``monarch.toml`` is a project too.
    """
    folder = Path.cwd()
    if file is None and not Path(PROJECT_FILE).exists() and not has_state(DEFAULT_JOB_PATH):
        above = next((p for p in folder.parents if (p / PROJECT_FILE).exists()), None)
        if above is not None:
            raise ConfigError(
                f"there is no {PROJECT_FILE} in {folder}; the nearest is in {above}: "
                f"`cd {above}` first"
            )
        raise ConfigError(
            f"there is no {PROJECT_FILE} in {folder}, so nothing says which folders to bring to "
            f"which hosts. Write one, for example\n{_EXAMPLE}\n"
            "then `monarch apply` brings the hosts up, and `monarch sync --watch` follows your "
            "saves"
        )
    return load_project(file)


def workspace_of(project: Project) -> Workspace:
    """Return the project's workspace.

    Raises ``ConfigError``, with the line in the file, for a folder that does not exist. No folders
    are an error too: a push would empty the hosts.
    """
    if not project.file.workspace.dirs:
        raise ConfigError(
            f"{PROJECT_FILE}: [workspace] dirs is empty, so there is nothing to bring to the "
            'hosts. Name the folders; ["."], the default, is the one that it lies in'
        )
    for name in project.file.workspace.dirs:
        folder = project.directory / name
        if folder.is_dir():
            continue
        toml = project.directory / PROJECT_FILE
        problem = "is a file, not a folder" if folder.exists() else "does not exist"
        raise ConfigError(
            f"{PROJECT_FILE}{_line_of(toml, name)}: [workspace] dirs names {name!r}, but "
            f"{folder} {problem}.{_meant(project.directory, name)}"
        )
    return without_own_output(project.make_workspace())


def whole_of(project: Project) -> Workspace:
    """Return the project's workspace with all that a push sends: editable installs, an
    environment."""
    return Surroundings(workspace_of(project)).whole()


def _line_of(toml: Path, name: str) -> str:
    try:
        lines = toml.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return ""
    numbers = (
        number for number, line in enumerate(lines, 1) if f'"{name}"' in line or f"'{name}'" in line
    )
    return next((f":{number}" for number in numbers), "")


def _meant(directory: Path, name: str) -> str:
    folder = directory / name
    try:
        siblings = [path.name for path in folder.parent.iterdir() if path.is_dir()]
    except OSError:
        siblings = []
    close = difflib.get_close_matches(folder.name, siblings, 1)
    if not close:
        return " Create it, or take it out of dirs"
    suggestion = (folder.parent / close[0]).relative_to(directory)
    return f' Did you mean "{suggestion}"?'
