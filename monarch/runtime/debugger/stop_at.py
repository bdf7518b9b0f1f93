"""Stops running actors: at their next line from Python 3.12 on, before at their next call."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from monarch.runtime.cells.actor_cell import ActorCell
from monarch.runtime.observe.live_stacks import frame_of, is_users

Stand = Callable[[FrameType, str], bool]

CAN_STOP_NOW = sys.version_info >= (3, 12)


class Stops:
    """Decides at which calls to stop. ``stand`` holds the call at a frame for ``reason``."""

    def __init__(self, stand: Stand) -> None:
        self._stand = stand
        self._wanted: dict[int, str] = {}  # by thread
        self._next: dict[str, str] = {}  # by actor
        self._lock = threading.Lock()

    @property
    def has_any(self) -> bool:
        """Whether any actor must stop at its next call."""
        return bool(self._next)

    def stop(self, cell: ActorCell, reason: str) -> str:
        """Stop an actor; return ``now`` if it stops at its next line, or ``call`` if at its next
        call. Raises ``RuntimeError`` if it must not be stopped."""
        frames = sys._current_frames()
        frame = frame_of(cell, frames)
        if frame is None or not CAN_STOP_NOW:
            self._next[cell.record.uid] = reason
            return "call"
        if any(map(_is_compiled_in, frames.values())):
            raise RuntimeError("torch.compile traces at this moment: stop it when that is over")
        with self._lock:
            self._wanted[cell.thread_id] = reason
        if sys.version_info >= (3, 12):
            threading.settrace_all_threads(self._trace)
        caller: FrameType | None = frame
        while caller is not None:
            if is_users(caller.f_code.co_filename):
                caller.f_trace = self._trace_lines
            caller = caller.f_back
        return "now"

    def reason_at_call(self, actor: str) -> str:
        """Return why the call that begins must be held; empty if it must not."""
        return self._next.pop(actor, "")

    def _trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        is_meant = threading.get_ident() in self._wanted and is_users(frame.f_code.co_filename)
        return self._trace_lines if is_meant else None

    def _trace_lines(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event != "line":
            return self._trace_lines
        with self._lock:
            reason = self._wanted.pop(threading.get_ident(), "")
            is_last = not self._wanted
        if not reason:
            return None
        if is_last and sys.version_info >= (3, 12):
            # They would stay slow.
            threading.settrace_all_threads(None)
        self._stand(frame, reason)
        return frame.f_trace


def _is_compiled_in(frame: FrameType | None) -> bool:
    """Return whether torch.compile is compiling the code that this thread runs. Torch's own flag
    for it is set in some versions only during an export."""
    while frame is not None:
        if frame.f_code.co_filename.endswith("torch/_dynamo/convert_frame.py"):
            return True
        frame = frame.f_back
    return False
