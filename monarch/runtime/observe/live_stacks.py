"""Returns where the threads and actors of this process are. The I/O thread answers; nothing
stops."""

from __future__ import annotations

import asyncio
import linecache
import os
import sys
import threading
from types import CodeType, FrameType
from typing import Any

import monarch
from monarch.core.environment import is_secret
from monarch.runtime.cells.actor_cell import ActorCell
from monarch.runtime.procs.proc_agent import ProcAgent

_OURS = os.path.dirname(os.path.abspath(monarch.__file__)) + os.sep
_LIBRARY = os.path.dirname(os.__file__)
_LONGEST_REPR = 200
_MOST_LOCALS = 30


def stacks_of(agent: ProcAgent, *, with_locals: bool) -> dict[str, Any]:
    """Return the stacks of this process: ``pid``, ``threads`` and ``actors``.

    Each thread and actor has ``name`` and ``frames``, the innermost last. An actor also has its
    ``rank``, its current ``method``, whether it ``waits`` for an answer, and the line where it is
    ``held_at``.
    """
    frames = sys._current_frames()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return {
        "pid": os.getpid(),
        "actors": [_actor(cell, frames, with_locals) for cell in agent.cells],
        "threads": [
            {"name": names.get(ident, str(ident)), "frames": _frames(frame, with_locals)}
            for ident, frame in frames.items()
            if names.get(ident) != "monarch-io"
        ],
    }


def _actor(cell: ActorCell, frames: dict[int, FrameType], with_locals: bool) -> dict[str, Any]:
    wait = cell.wait_in_hand()
    frame = frame_of(cell, frames)
    return {
        "name": cell.record.name,
        "rank": cell.record.rank,
        "labels": cell.record.labels,
        "sizes": cell.record.sizes,
        "method": "" if frame is None else cell.method,
        "waits": wait is not None,
        "held_at": cell.held_at,
        "frames": [] if frame is None else _frames(frame, with_locals, users_only=True),
    }


def frame_of(cell: ActorCell, frames: dict[int, FrameType]) -> FrameType | None:
    """Return the innermost frame of an actor's current call, wherever it waits; ``None`` for an
    idle actor."""
    task = cell.task
    if task is not None:
        stack = task.get_stack(limit=64) if not task.done() else []
        running = frames.get(cell.thread_id)
        if running is not None and _has_cell(running):
            return running
        chain = _awaited(task)
        return chain[-1] if len(chain) > 1 else (stack[-1] if len(stack) > 1 else None)
    frame = frames.get(cell.thread_id)
    return frame if frame is not None and _has_cell(frame) else None


def _has_cell(frame: FrameType | None) -> bool:
    """Return whether a frame has an actor's call among its callers."""
    while frame is not None:
        if frame.f_code is _CALL:
            return True
        frame = frame.f_back
    return False


_CALL: CodeType = ActorCell._call.__code__


def _awaited(task: asyncio.Task[Any]) -> list[FrameType]:
    """Return the frames of the coroutines that a task waits in, from its endpoint call inwards.

    Empty if the task runs no call.
    """
    frames: list[FrameType] = []
    coroutine: Any = task.get_coro()
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is not None:
            frames.append(frame)
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
    calls = [index for index, frame in enumerate(frames) if frame.f_code is _CALL]
    return frames[calls[-1] :] if calls else []


def users_frames(frame: FrameType | None) -> list[FrameType]:
    """Return the user's frames among a frame and its callers, the innermost first.

    It stops at the actor's call. ``frame`` may be None; frames of a suspended coroutine are not
    found.
    """
    frames = []
    while frame is not None:
        if not frame.f_code.co_filename.startswith((_OURS, "<frozen")):
            frames.append(frame)
        if frame.f_code is _CALL:
            break
        frame = frame.f_back
    return frames


def is_users(file: str) -> bool:
    """Return whether a file is the user's own, and neither ours nor a library's."""
    is_library = file.startswith((_OURS, _LIBRARY, "<frozen")) or "site-packages" in file
    return not is_library


def _frames(
    frame: FrameType | None, with_locals: bool, *, users_only: bool = False
) -> list[dict[str, Any]]:
    chain = users_frames(frame) if users_only else _callers(frame)
    return [_described(caller, with_locals) for caller in reversed(chain)]


def _callers(frame: FrameType | None) -> list[FrameType]:
    callers = []
    while frame is not None:
        callers.append(frame)
        frame = frame.f_back
    return callers


def _described(frame: FrameType, with_locals: bool) -> dict[str, Any]:
    code = frame.f_code
    described: dict[str, Any] = {
        "file": code.co_filename,
        "line": frame.f_lineno,
        "function": getattr(code, "co_qualname", code.co_name),
        "text": linecache.getline(code.co_filename, frame.f_lineno).strip(),
        "is_users": is_users(code.co_filename),
    }
    if with_locals and described["is_users"]:
        values = list(frame.f_locals.items())[:_MOST_LOCALS]
        described["locals"] = {name: shown_value(name, value) for name, value in values}
    return described


def shown_value(name: str, value: object) -> str:
    """Return a value as text of about 200 characters at most.

    The text is "(hidden)" if ``name`` looks like a secret's.
    """
    if is_secret(name, ""):
        return "(hidden)"
    try:
        text = repr(value)
    except Exception as error:
        text = f"<its repr raised {type(error).__name__}>"
    return text if len(text) <= _LONGEST_REPR else f"{text[:_LONGEST_REPR]}..."
