"""Places in the user's code: the file and line at which a stack of frames is, in short."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

from monarch.version import OUR_FOLDER

_LIBRARY = os.path.dirname(os.__file__) + os.sep


def users_frame(frames: Sequence[traceback.FrameSummary]) -> traceback.FrameSummary | None:
    """The innermost frame of no installed package."""
    return next((one for one in reversed(frames) if not is_installed(one.filename)), None)


def users_place(frames: Sequence[traceback.FrameSummary]) -> tuple[str, int]:
    """File and line of that frame; nowhere where there is none."""
    frame = users_frame(frames)
    return ("", 0) if frame is None else (in_short(frame.filename), frame.lineno or 0)


def in_short(path: str) -> str:
    """The path of a file in its import folder, wherever that lies on this host."""
    folders = [os.path.join(folder, "") for folder in sys.path if folder]
    folder = max((one for one in folders if path.startswith(one)), key=len, default="")
    return path.removeprefix(folder)


def is_installed(path: str) -> bool:
    """Whether a file is Python's, of an installed package, or of the runtime."""
    return path.startswith((_LIBRARY, OUR_FOLDER, "<frozen", "<string>")) or "site-packages" in path
