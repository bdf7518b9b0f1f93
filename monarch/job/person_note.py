"""A file in a project that says which job runs there, and where its state is kept.

It has no effect: nothing reads it, except to remove it. So a note that came with an archive or a
clone does nothing.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from monarch.job.places import OUR_FOLDER, path_for_people
from monarch.whole_file import write_whole

_ABOUT = (
    "For people. Nothing reads this file: what counts is kept in `state`, for this very folder on "
    "this machine, and not for a copy of it."
)
_MOST_BYTES = 1 << 20


def write_note(path: Path, record: Path, job: Mapping[str, Any]) -> None:
    """Write the note of a job at a path in a project, if a file can be written there.

    Links are not followed: they may have come with the project.
    """
    folder = path.parent
    with contextlib.suppress(OSError):
        if path.absolute() == record or folder.is_symlink() or path.is_symlink() or path.is_dir():
            return
        if folder.name == OUR_FOLDER:
            folder.mkdir(exist_ok=True)
            keep_from_git(folder)
        about = {"about": _ABOUT, **job, "state": str(record)}
        write_whole(path, json.dumps(about, indent=2))


def remove_note(record: Path, apply_id: str | None) -> None:
    """Remove the note of the job ``apply_id`` whose state was at ``record``.

    Another job's note stays.
    """
    path = path_for_people(record)
    if path is None or path.is_symlink() or path.parent.is_symlink() or not path.is_file():
        return
    with contextlib.suppress(OSError, ValueError, AttributeError, RecursionError):
        with open(path, "rb") as file:
            about = json.loads(file.read(_MOST_BYTES))
        if about.get("apply_id") == apply_id:
            path.unlink()


def keep_from_git(folder: Path) -> None:
    """Make git ignore the folder, since its contents apply to one machine only."""
    with contextlib.suppress(FileExistsError), open(folder / ".gitignore", "x") as file:
        file.write("*\n")
