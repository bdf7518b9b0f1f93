"""Finds the user's code in a stack of frames: its file and line, with a short path."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

from monarch.version import OUR_FOLDER

_LIBRARY = os.path.dirname(os.__file__) + os.sep


def users_frame(frames: Sequence[traceback.FrameSummary]) -> traceback.FrameSummary | None:
    """Return the innermost frame that is not of an installed package, or ``None``."""
    return next((frame for frame in reversed(frames) if not is_installed(frame.filename)), None)


def users_place(frames: Sequence[traceback.FrameSummary]) -> tuple[str, int]:
    """Return file and line of the user's innermost frame; ("", 0) if there is none."""
    frame = users_frame(frames)
    return ("", 0) if frame is None else (in_short(frame.filename), frame.lineno or 0)


def in_short(path: str) -> str:
    """Return the path of a file relative to the folder from which it is imported, so that the path
    is the same on all hosts.
    """
    folders = [os.path.join(folder, "") for folder in sys.path if folder]
    above = max((folder for folder in folders if path.startswith(folder)), key=len, default="")
    return path.removeprefix(above)


def is_installed(path: str) -> bool:
    """Whether a file is Python's own, of an installed package, or of the runtime."""
    return path.startswith((_LIBRARY, OUR_FOLDER, "<frozen", "<string>")) or "site-packages" in path
