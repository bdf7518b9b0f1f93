"""Where every rank is: the Python stacks of a mesh whose actors do not answer.

Spawn a ``Witness`` beside the actors that are to be watched. It is async, and so lives on its
proc's main thread, where it can answer while a sync actor is stuck on a thread of its own.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from monarch.actor import Actor, endpoint

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_LIBRARY = os.path.dirname(os.__file__) + os.sep
_INSTALLED = f"{os.sep}site-packages{os.sep}"  # within the library, where there is no venv
_SHOWN_FRAMES = 12
_IDLE = "it does nothing"
# Where torch waits for other ranks: collectives, and the backward pass that DDP hides them in;
# and where TorchFT does, and what is built on it.
_WAITS = (
    "torch/distributed/", "torch/autograd/graph.py", "torch/nn/parallel/distributed.py",
    "torch/futures/", "torchtitan/distributed/", "/torchft",
)  # fmt: skip
_OPERATOR = "/torch/_ops.py"  # The caller says what it is.


@dataclass(frozen=True)
class RankStack:
    """The stacks of one rank's threads that run user code. ``text`` is empty if it did not
    answer."""

    rank: int
    text: str
    is_waiting: bool

    @property
    def hangs(self) -> bool:
        """Whether the others wait for this one; a rank that does nothing has answered."""
        return not self.is_waiting and self.text != _IDLE


class Witness(Actor):
    """Says what its process is doing."""

    @endpoint
    async def stack(self) -> tuple[str, bool]:
        """The stacks, innermost frame last, and whether the process waits for other ranks."""
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        here = threading.get_ident()
        texts, is_waiting = [], False
        for thread, frame in sys._current_frames().items():
            frames = [f for f in traceback.extract_stack(frame) if not _is_runtime(f.filename)]
            if thread == here or all(_is_background(f.filename) for f in frames):
                continue
            is_waiting = is_waiting or waits_for_others(frames)
            lines = traceback.format_list(frames[-_SHOWN_FRAMES:])
            texts.append(f"thread {names.get(thread, thread)}:\n" + "".join(lines))
        return "".join(texts).rstrip() or _IDLE, is_waiting


def stacks_of(witnesses: Any, seconds: float = 3.0) -> list[RankStack]:
    """Ask all; a rank that does not answer within ``seconds`` holds the GIL, or is stopped."""
    flat = witnesses.flatten("rank")
    questions = [flat.slice(rank=rank).stack.call_one() for rank in range(len(flat))]
    found = []
    for rank, question in enumerate(questions):
        text, is_waiting = "", False
        with contextlib.suppress(Exception):
            text, is_waiting = question.get(timeout=seconds)
        found.append(RankStack(rank, text, is_waiting))
    return found


def tell_hang(stacks: Sequence[RankStack], doing: str, seconds: float) -> str:
    """The story of a hang for a person: which ranks, since when, and the stack of every rank."""
    names = [str(stack.rank) for stack in stacks if stack.hangs]
    if not names:
        who = "all ranks wait for each other: they are in collectives that do not match"
    elif len(names) == 1:
        who = f"rank {names[0]} hangs, and the others wait for it"
    else:
        who = f"ranks {', '.join(names)} hang"
    return f"{doing} has not ended within {seconds:g} s: {who}\n{tell_stacks(stacks)}"


def tell_stacks(stacks: Sequence[RankStack]) -> str:
    """A text that says of each rank whether it waits or hangs, and where."""
    parts = []
    for stack in stacks:
        state = "hangs" if stack.hangs else "waits" if stack.is_waiting else "has answered"
        if not stack.text:
            state = "does not answer: it is stopped, or holds the GIL"
        parts.append(f"rank {stack.rank} {state}" + (f"\n{stack.text}" if stack.text else ""))
    return "\n".join(parts)


def waits_for_others(frames: Sequence[traceback.FrameSummary]) -> bool:
    """Whether a thread with these frames, the innermost last, is in a collective."""
    places = [
        frame.filename
        for frame in frames
        if not (frame.filename.endswith(_OPERATOR) or _is_library(frame.filename))
    ]
    return bool(places) and any(part in places[-1] for part in _WAITS)


def _is_library(path: str) -> bool:
    return path.startswith(_LIBRARY) and _INSTALLED not in path


def _is_background(path: str) -> bool:
    return _is_library(path) or "/torch/" in path or "/torchft/" in path


def _is_runtime(path: str) -> bool:
    return path.startswith((_OURS, "<frozen")) or path.endswith("/threading.py")
