"""Where the user called an operation: captured for every operation, made text only for errors.

Torch captures a stack in a third of a microsecond, and resolves names only on request. Its function
for that is private; without it this module walks the frames.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any

import torch

_OURS = os.path.dirname(os.path.dirname(os.path.dirname(__file__))) + os.sep
_TORCH = os.path.dirname(torch.__file__) + os.sep
_profiler = getattr(torch._C, "_profiler", None)
_gather: Any = getattr(_profiler, "gather_traceback", None)
_symbolize: Any = getattr(_profiler, "symbolize_tracebacks", None)


def _walk(*_: Any) -> Any:
    frames = []
    frame: Any = sys._getframe(1)
    while frame is not None:
        frames.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return frames


capture: Any = _gather if _gather and _symbolize else _walk
"""``capture(True, False, False)`` returns the current stack of Python frames."""


def frames_of(captured: Any) -> list[traceback.FrameSummary]:
    """Return the user's frames of a captured stack, the innermost last."""
    if isinstance(captured, list):
        rows = [(code.co_filename, line, code.co_name) for code, line in captured]
    else:
        rows = [(f["filename"], f["line"], f["name"]) for f in _symbolize([captured])[0]]
    return [
        traceback.FrameSummary(filename, line, name)
        for filename, line, name in reversed(rows)
        if not filename.startswith(_OURS) and not filename.startswith(_TORCH)
    ]


def here() -> str:
    """Return the user's part of the current stack as text."""
    return "".join(traceback.format_list(frames_of(capture(True, False, False))))
