"""The note of how the last job in a folder was ended, since its state is gone by then.

A program that still runs on the job sees its hosts end, and reads the reason here if it has no
other.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path


def note_end(state_file: Path, apply_id: str | None, ending: dict[str, str] | None) -> None:
    """Record how a job was ended, beside the path of its state.

    Errors are ignored: then programs on the job only cannot show the reason.
    """
    with contextlib.suppress(OSError):
        _note(state_file).write_text(json.dumps({"apply_id": apply_id, "ending": ending}))


def how_ended(state_file: Path, apply_id: str | None) -> dict[str, str]:
    """Return ``how`` the job was ended, and ``by`` which command; empty if that is not known."""
    try:
        note = json.loads(_note(state_file).read_text())
        return dict(note["ending"]) if note["apply_id"] == apply_id else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _note(state_file: Path) -> Path:
    return state_file.with_name(f"ended_{state_file.name}")
