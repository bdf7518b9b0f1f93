"""Detached runs: their client program runs on a host of the allocation, not in a person's terminal.

``detached.json`` in a run's folder says which program of which host it is. If that host is another
machine, the folder is there, and the person has a copy of it without checkpoints; ``remote.json``
in the copy has the run's status at the last look.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from monarch.runs.record.folder import DETACHED, REMOTE, RUNS, RunFolder, read_json

# The host's program that is the run's client, and the URL of the host's agent.
PROGRAM_VARIABLE = "MONARCH_DETACHED"
# Set if the run's client is on another machine than its author: the hosts have the code.
THERE_VARIABLE = "MONARCH_DETACHED_THERE"


class DetachedRun(NamedTuple):
    """The program ``uid`` of the host agent at ``url``; ``folder`` is the run's folder on that
    host."""

    uid: str
    url: str
    folder: str

    @classmethod
    def of(cls, run: RunFolder) -> DetachedRun | None:
        """Return how a run was detached; ``None`` if it was not."""
        note = read_json(run.path / DETACHED)
        return cls(note["uid"], note["url"], note["folder"]) if "uid" in note else None


def note_detached(folder: RunFolder) -> None:
    """Record, before a detached run begins, which program of which host runs it.

    The record is a file in the run's ``folder``. A program that is not detached removes the file.
    """
    uid, _, url = os.environ.get(PROGRAM_VARIABLE, "").partition(" ")
    if uid:
        about = {"uid": uid, "url": url, "folder": str(folder.path.absolute())}
        folder.write_json(DETACHED, about)
    else:
        (folder.path / DETACHED).unlink(missing_ok=True)  # It continues in a terminal.


def copies_of_running() -> list[RunFolder]:
    """Return the local copies of runs on other machines that were still running when they were last
    looked at.
    """
    copies = [RunFolder(path.parent) for path in sorted(RUNS.glob(f"*/{REMOTE}"))]
    return [run for run in copies if read_json(run.path / REMOTE).get("is_running")]


def note_remote(run: RunFolder, *, is_running: bool, **about: Any) -> None:
    """Record in a copy of a run folder whether the run is still running, as its host has said."""
    run.write_json(REMOTE, read_json(run.path / REMOTE) | about | {"is_running": is_running})
