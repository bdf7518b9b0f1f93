"""The held calls of this process: it holds calls, and answers questions of consoles about them."""

from __future__ import annotations

import linecache
import os
import socket
import sys
import threading
import time
from types import FrameType

from monarch.config import settings
from monarch.net.cork import flush
from monarch.runtime.context import Running, running
from monarch.runtime.debugger.held_call import HeldCall
from monarch.runtime.procs.proc_agent import ProcAgent
from monarch.wire.hold import HoldNote
from monarch.wire.message import (
    HoldLine,
    HoldNames,
    HoldOutput,
    HoldsChanged,
    HoldText,
    SourceAsked,
)

_MOST_SECONDS = 60.0
_GRACE_SECONDS = 0.3
_LOOK_SECONDS = 1.0
_SOURCE_SECONDS = 3.0


class ProcHolds:
    """The held calls of one process. ``mesh``, ``name`` and ``rank`` are the proc's."""

    def __init__(self, agent: ProcAgent, mesh: str, name: str, rank: int) -> None:
        self._agent = agent
        self._node = agent.node
        self._mesh, self._name, self._rank = mesh, name, rank
        #: The held calls by their id, for consoles.
        self._calls: dict[str, HeldCall] = {}
        #: The same calls by `_key`, for the threads that run them.
        self._by_key: dict[int, HeldCall] = {}
        #: Guards both, and `_reported`.
        self._lock = threading.Lock()
        #: How many calls were held so far: their ids count them.
        self._num_calls = 0
        #: The actors for whose call `redo now` was typed.
        self._hasty: set[str] = set()
        #: The files whose lines nobody has.
        self._unknown: set[str] = set()
        #: The consoles' questions that wait for more output.
        self._questions: list[HoldText] = []
        #: Whether the I/O loop looks for calls that no console has touched for too long.
        self._is_watching = False
        #: The calls as they were reported last.
        self._reported: tuple[HoldNote, ...] = ()
        node = agent.node
        node.on(HoldLine, self._on_line)
        node.on(HoldText, self._on_text)
        node.on(HoldNames, self._on_names)

    # On the thread of a call.

    def at_breakpoint(self, frame: FrameType) -> None:
        """Hold the call at a ``breakpoint()`` in ``frame``."""
        if settings().breakpoint == "off":
            return
        self._begin("breakpoint()").set_trace(frame)

    def at_line(self, frame: FrameType, reason: str) -> bool:
        """Hold the current call at the line of ``frame``. Returns whether to keep tracing it."""
        call = self._begin(reason)
        call.stand_here(frame, reason)
        return not call.pdb.goes_on

    def at_start(self, reason: str) -> None:
        """Hold the call that is about to run at its first line."""
        self._begin(reason).stand_next(reason)

    def at_error(self, error: BaseException) -> bool:
        """Handle a call on this thread that has raised; return whether it must be run again."""
        return self._begin("error").stand_at_error(error)

    def has_call(self) -> bool:
        """Return whether the call on this thread was held before."""
        return bool(self._by_key) and self._key() in self._by_key

    def ended(self) -> None:
        """Forget the call on this thread, which is over."""
        call = self._by_key.pop(self._key(), None) if self._by_key else None
        if call is not None:
            if call.pdb.runs_again and call.pdb.is_hasty and (current := running.get()) is not None:
                self._hasty.add(current.record.uid)
            call.end(sys._getframe().f_back)
            with self._lock:
                self._calls.pop(call.about.id, None)
            self._tell()

    def runs_now(self, actor: str) -> bool:
        """Return whether `redo now` was typed for this actor's call, which is over."""
        is_hasty = actor in self._hasty
        self._hasty.discard(actor)
        return is_hasty

    def _key(self) -> int:
        """Return a number that identifies the call on this thread.

        Outside of actors it identifies the thread.
        """
        current = running.get()
        return threading.get_ident() if current is None else id(current)

    def _begin(self, reason: str) -> HeldCall:
        flush()
        key = self._key()
        call_before = self._by_key.get(key)
        if call_before is not None:
            return call_before
        current = running.get()
        call = HeldCall(
            self._describe(current, reason),
            self._changed,
            self._more_text,
            self._learn,
            is_loose=current is None,
        )
        with self._lock:
            self._calls[call.about.id] = self._by_key[key] = call
        if not self._is_watching:
            self._is_watching = True
            self._node.loop.call_soon(self._look)
        return call

    def _learn(self, file: str) -> bool:
        """Return whether the lines of a file are known here; load them from the client if this host
        lacks the file."""
        if linecache.getlines(file):
            return True
        if file in self._unknown:
            return False
        node = self._node
        answer = node.ask(self._agent.root, SourceAsked(file))
        flush()
        text = answer.value.or_else("") if answer.wait(_SOURCE_SECONDS) else ""
        if not text:
            self._unknown.add(file)
            return False
        lines = text.splitlines(keepends=True)
        linecache.cache[file] = (len(text), None, lines, file)
        return True

    def _describe(self, current: Running | None, reason: str) -> HoldNote:
        self._num_calls += 1
        cell = None
        if current is not None:
            cells = self._agent.cells
            cell = next((c for c in cells if c.record.uid == current.record.uid), None)
        return HoldNote(
            id=f"{self._node.uid}/{self._num_calls}",
            actor=self._name if current is None else current.record.name,
            rank=self._rank if current is None else current.record.rank,
            labels=() if current is None else current.record.labels,
            sizes=() if current is None else current.record.sizes,
            mesh=self._mesh,
            proc=self._node.uid,
            host=socket.gethostname(),
            pid=os.getpid(),
            method="" if cell is None else cell.method,
            reason=reason,
            file="",
            function="",
            line=0,
            since=time.time(),
            is_waiting=False,
            generation=self._agent.generation,
        )

    # On any thread.

    def _mark(self) -> None:
        """Set ``held_at`` of each actor to the line where its call is held; "" if none is held."""
        places = {call.about.actor: call.about.place for call in list(self._calls.values())}
        for cell in self._agent.cells:
            cell.held_at = places.get(cell.record.name, "")

    def _changed(self) -> None:
        """Report a call that was held or released, unless it is held again within a moment."""
        with self._lock:
            calls = list(self._calls.values())
        if all(call.about.is_waiting for call in calls):
            self._tell()
        else:
            self._node.loop.call_later(_GRACE_SECONDS, self._tell)
        self._more_text()

    def _tell(self) -> None:
        with self._lock:
            for key, call in list(self._by_key.items()):
                # Outside of actors nothing reports the end of a call: forget it once it goes on.
                if call.is_loose and not call.about.is_waiting and call.pdb.goes_on:
                    del self._by_key[key], self._calls[call.about.id]
            notes = tuple(call.about for call in self._calls.values())
            if notes == self._reported:
                return
            self._reported = notes
        self._mark()
        message = HoldsChanged(self._node.uid, notes)
        self._node.send(self._agent.host, message)
        if self._agent.root.uid != self._agent.host.uid:
            self._node.send(self._agent.root, message)
        flush()

    def _more_text(self) -> None:
        if self._questions:
            self._node.loop.call_soon(self._answer_asked)

    def close(self) -> None:
        """Release held calls with an error, because the process ends."""
        with self._lock:
            calls = list(self._calls.values())
        for call in calls:
            call.text.write("the process is being stopped\n")
            call.text.close()

    # On the I/O loop.

    def _look(self) -> None:
        """Release the calls that no console has touched for too long."""
        patience = _patience()
        now = time.monotonic()
        with self._lock:
            calls = list(self._calls.values())
        for call in calls:
            if patience and call.text.is_waiting and now - call.last_touch > patience:
                call.text.write(f"nobody came for {patience:g} s: it goes on\n")
                sys.stderr.write(
                    f"held at {call.about.place} for {patience:g} s, and nobody came: it goes on "
                    "(MONARCH_BREAKPOINT says how long to wait)\n"
                )
                call.type("continue")
        if calls:
            self._node.loop.call_later(_LOOK_SECONDS, self._look)
        else:
            self._is_watching = False

    def _on_line(self, order: HoldLine) -> None:
        call = self._calls.get(order.hold)
        if call is None:
            self._node.answer(order, error="the call has ended")
            return
        call.type(order.line, "" if order.is_quiet else order.who)
        self._node.answer(order)

    def _on_text(self, order: HoldText) -> None:
        if not self._answer_text(order):
            self._questions.append(order)
            seconds = min(order.seconds, _MOST_SECONDS)
            self._node.loop.call_later(seconds, lambda: self._give_up(order))
            self._answer_asked()

    def _answer_asked(self) -> None:
        questions, self._questions = self._questions, []
        self._questions += [order for order in questions if not self._answer_text(order)]

    def _give_up(self, order: HoldText) -> None:
        if order in self._questions:
            self._questions.remove(order)
            self._answer_text(order, is_last=True)

    def _answer_text(self, order: HoldText, *, is_last: bool = False) -> bool:
        call = self._calls.get(order.hold)
        if call is None:
            output = HoldOutput(order.number, "", is_waiting=False, is_over=True)
            self._node.answer(order, output)
            return True
        is_waiting = call.text.is_waiting
        number, text, cuts = call.text.since(order.number)
        is_news = bool(text) or is_waiting != order.was_waiting or order.number < 0
        if not (is_news or is_last or call.is_over):
            return False
        output = HoldOutput(
            number, text, is_waiting, call.is_over, place=call.about.place, cuts=cuts
        )
        self._node.answer(order, output)
        return True

    def _on_names(self, order: HoldNames) -> None:
        call = self._calls.get(order.hold)
        names = [] if call is None else call.pdb.names(order.text)
        self._node.answer(order, tuple(names[:500]))


def _patience() -> float:
    """Return how many seconds a hold waits for a person; 0: without limit."""
    try:
        return float(settings().breakpoint)
    except ValueError:
        return 0.0
