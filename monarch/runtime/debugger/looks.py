"""Answers visitors of a running proc: stacks, values, its environment, and stops at a line."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from monarch.core.rank_sets import is_in, parse_set
from monarch.runtime.context import running
from monarch.runtime.debugger.break_places import BreakPlaces
from monarch.runtime.debugger.editor_session import EditorSession
from monarch.runtime.debugger.environment import change_environment, shown_environment, versions
from monarch.runtime.debugger.stop_at import Stops
from monarch.runtime.observe.live_stacks import (
    frame_of,
    is_users,
    shown_value,
    stacks_of,
    users_frames,
)
from monarch.runtime.observe.process_groups import abort_groups, rank_connections
from monarch.runtime.procs.proc_agent import ProcAgent
from monarch.wire.message import (
    AbortGroups,
    BreakAnswer,
    BreakPlace,
    DapOpened,
    EnvAsked,
    EnvSet,
    Message,
    Peeked,
    PeekLine,
    StacksAsked,
    StopAt,
)


class Looks:
    """Answers questions on the I/O thread, so also while actors are busy. ``holds`` has the held
    calls of this process; ``member`` is its rank in its mesh, with the mesh's labels and sizes.
    """

    def __init__(
        self,
        agent: ProcAgent,
        holds: Callable[[], Any],
        member: tuple[int, Sequence[str], Sequence[int]],
    ) -> None:
        self._agent = agent
        self._node = agent.node
        self._holds = holds
        self._member = member
        self._breaks = BreakPlaces(self._stand, lambda: agent.generation)
        self._stops = Stops(self._stand)
        self._answers: dict[type[Message], Callable[[Any], None]] = {
            EnvAsked: self._tell_environment,
            EnvSet: self._set_environment,
            StacksAsked: self._tell_stacks,
            PeekLine: self._peek,
            StopAt: self._stop,
            DapOpened: EditorSession(agent.node).open,
            BreakPlace: self._answer_break,
            AbortGroups: self._end_groups,
        }

    def take(self, question: Message) -> None:
        """Answer one question."""
        self._answers[type(question)](question)

    def _set_environment(self, order: EnvSet) -> None:
        change_environment(order.values)
        self._node.answer(order, {})

    def _tell_stacks(self, order: StacksAsked) -> None:
        self._node.answer(order, stacks_of(self._agent, with_locals=order.with_locals))

    def arm(self, place: BreakPlace) -> str:
        """Set or remove a breakpoint at a line; return the line's text.

        "" if it was removed, or if the file is not known here.
        """
        self._holds()  # From now on, calls are watched.
        return self._breaks.change(place)

    # On the thread of a call.

    def call_begins(self) -> None:
        """Handle the begin of a call on this thread; hold it if someone asked to stop its actor."""
        current = running.get()
        reason = ""
        if self._stops.has_any and current is not None:
            reason = self._stops.reason_at_call(current.record.uid)
        if reason:
            self._holds().at_start(reason)
        else:
            self._breaks.trace_call()

    def call_ends(self) -> None:
        """Stop tracing a call that has ended."""
        if sys.version_info < (3, 12) and self._breaks.has_any:
            sys.settrace(None)

    def _stand(self, frame: FrameType, reason: str) -> bool:
        if running.get() is None:
            return False  # New code that is tried out, say, which no call waits for.
        return bool(self._holds().at_line(frame, reason))

    # On the I/O thread.

    def _tell_environment(self, order: EnvAsked) -> None:
        def answer() -> None:
            self._node.answer(order, versions() if order.versions else shown_environment(order))

        if order.versions:
            threading.Thread(target=answer, name="monarch-versions", daemon=True).start()
        else:
            answer()

    def _answer_break(self, order: BreakPlace) -> None:
        is_meant = order.is_gone or is_in(parse_set(order.ranks), *self._member)
        text = self.arm(order) if is_meant else ""
        self._node.answer(order, BreakAnswer(text, is_meant))

    def _end_groups(self, order: AbortGroups) -> None:
        """Abort process groups, on a thread of its own, because NCCL's abort takes some time."""
        if order.only_tells:
            self._node.answer(order, tuple(rank_connections(self._node.address.urls)))
            return

        def end() -> None:
            abort_groups(order.connections)
            self._node.answer(order, ())

        threading.Thread(target=end, name="monarch-abort", daemon=True).start()

    def _stop(self, order: StopAt) -> None:
        self._holds()  # From now on, calls are watched.
        how: dict[str, str] = {}
        error = ""
        for cell in self._agent.cells:
            name = cell.record.name
            is_ours = cell.record.class_name.startswith("monarch.")
            if is_ours or order.actor not in ("", name):
                continue
            try:
                how[name] = self._stops.stop(cell, f"stopped by {order.who}")
            except RuntimeError as refused:
                error = str(refused)
        self._node.answer(order, how, error)

    def _peek(self, order: PeekLine) -> None:
        """Answer with the result of a line, and the number of its frame. Number 0 is the user's
        own innermost frame, as a call that waits in a collective has torch's frames below it."""
        frames: list[FrameType] = []
        for cell in self._agent.cells:
            if cell.record.name == order.actor:
                frames = users_frames(frame_of(cell, sys._current_frames()))
        if not frames:
            self._node.answer(order, Peeked("it runs no call at this moment\n", 0))
            return
        users = (n for n, frame in enumerate(frames) if is_users(frame.f_code.co_filename))
        first = next(users, 0)
        index = min(max(0, first + order.number), len(frames) - 1)
        self._node.answer(order, Peeked(_seen(frames, index, order.line), index - first))


def _seen(frames: Sequence[FrameType], index: int, line: str) -> str:
    """Run a debugger command, such as ``p x`` or ``w``, in a running call; return its output.

    ``index`` selects the frame; ``frames[0]`` is the innermost.
    """
    frame = frames[index]
    word, _, rest = line.strip().partition(" ")
    code = frame.f_code
    if word in ("p", "pp"):
        try:
            return f"{eval(rest, frame.f_globals, frame.f_locals)!r}\n"
        except Exception as error:
            return f"*** {type(error).__name__}: {error}\n"
    if word in ("locals", "args", "a"):
        names = code.co_varnames[: code.co_argcount] if word != "locals" else frame.f_locals
        names_there = [n for n in names if n in frame.f_locals]
        return "".join(f"{n} = {shown_value(n, frame.f_locals[n])}\n" for n in names_there)
    if word in ("w", "where", "bt"):
        chain = reversed(frames)
        return "".join(f"  {_place(f)}{'  <-' if f is frame else ''}\n" for f in chain)
    if word in ("up", "down", "u", "d", ""):
        return f"> {_place(frame)}\n"
    return "it runs: up, down, w, p, pp, args, locals; `stop` holds it\n"


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}({frame.f_lineno}){frame.f_code.co_name}()"
