"""Connects a console to one held call: shows its debugger's output, and sends it lines."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial

from monarch.debugger.screen import ReadInterrupted, Screen
from monarch.debugger.visit import NotAnswered, Visit
from monarch.wire.hold import HoldNote
from monarch.wire.message import HoldLine, HoldText

PDB_PROMPT = "(Pdb) "
_LISTEN_SECONDS = 20.0
_DETACH = ("detach", "quit session")


class Attachment:
    """A console at one held call.

    ``why_no_redo`` returns why held calls cannot run again, or "".
    """

    def __init__(
        self,
        visit: Visit,
        screen: Screen,
        hold: HoldNote,
        why_no_redo: Callable[[Sequence[HoldNote]], str],
    ) -> None:
        self._visit = visit
        self._screen = screen
        self._hold = hold
        self._why_no_redo = why_no_redo
        #: The number of the last output that was shown.
        self._number = -1
        #: Guards ``_is_waiting``, ``is_over`` and ``why``, which the listening thread sets.
        self._state = threading.Condition()
        #: Whether the debugger waits for a line.
        self._is_waiting = False
        #: Whether this console reads a line, which the listening thread may interrupt.
        self._is_reading = False
        self._detached = threading.Event()
        #: Whether the call has ended.
        self.is_over = False
        #: Whether the person has asked for a redo, so that the call runs again on new code.
        self.waits_for_code = False
        #: Why the call has ended; "" if it has not, or in order.
        self.why = ""

    def run(self) -> None:
        """Serve the console until the person detaches, or the call ends."""
        hold = self._hold
        named = f"{hold.actor} {hold.rank}"
        self._screen.write(f"Attached to debug session for {named} ({hold.host})\n")
        listening = threading.Thread(target=self._listen, name="monarch-hold", daemon=True)
        with self._screen.shown():
            listening.start()
            try:
                self._type()
            finally:
                self._detached.set()
        self._screen.write(f"Detaching from debug session for {named} ({hold.host})\n")
        if self.why:
            self._screen.write(f"{self.why}\n")
        self._screen.write(f"Detached from debug session for {named} ({hold.host})\n")

    def _type(self) -> None:
        while True:
            try:
                if not self._await_turn():
                    return
            except KeyboardInterrupt:
                if not self._screen.is_terminal:
                    raise
                self._screen.write("\n")
                return
            try:
                line = self._screen.read(PDB_PROMPT, partial(self._visit.names, self._hold))
            except ReadInterrupted:
                continue
            except KeyboardInterrupt:
                if not self._screen.is_terminal:
                    raise
                self._screen.write("`detach`, or Ctrl-D, leaves the call held\n")
                continue
            except EOFError:
                self._screen.write("\n")
                return
            finally:
                self._is_reading = False
            if line.strip() in _DETACH:
                return
            if line.strip() == "redo" and (refusal := self._why_no_redo([self._hold])):
                self._screen.write(f"{refusal}\n")
                continue
            self.waits_for_code = line.strip() == "redo"
            with self._state:
                self._is_waiting = False
            self._send(line)

    def _await_turn(self) -> bool:
        """Wait until the debugger waits for a line; return False if the call ends instead."""
        with self._state:
            while not (self._is_waiting or self.is_over):
                self._state.wait(0.2)
            self._is_reading = is_turn = not self.is_over
            return is_turn

    def _send(self, line: str) -> None:
        visit, hold = self._visit, self._hold
        try:
            visit.ask(hold.proc, HoldLine(hold.id, line, visit.who))
        except NotAnswered as error:
            with self._state:
                self.is_over, self.why = True, f"{hold.actor} {hold.rank}: {error}"

    def _listen(self) -> None:
        """Show the debugger's output until the call ends. It runs on a thread of its own."""
        visit, hold = self._visit, self._hold
        was_waiting, seconds = False, 0.0  # There is output at first, so a wait is for a rank.
        while not self._detached.is_set():
            question = HoldText(hold.id, self._number, was_waiting, seconds)
            try:
                output = visit.ask(hold.proc, question, seconds)
            except NotAnswered as error:
                self._end(f"{hold.actor} {hold.rank}: {error}")
                return
            seconds = _LISTEN_SECONDS
            if self._detached.is_set():
                return
            self._number, was_waiting = output.number, output.is_waiting
            self._show(output.text, is_waiting=was_waiting)
            if output.is_over:
                self._end("")
                return

    def _show(self, text: str, *, is_waiting: bool) -> None:
        """Show output without the debugger's prompt; the console prints its own when the debugger
        waits."""
        own_mark = f"[{self._visit.who}] "
        lines = [line for line in text.splitlines(keepends=True) if not _is_echo(line, own_mark)]
        text_shown = "".join(lines)
        if is_waiting:
            text_shown = text_shown.removesuffix(PDB_PROMPT)
        if text_shown:
            self._screen.write(text_shown.replace(PDB_PROMPT, ""))
        with self._state:
            self._is_waiting = is_waiting
            self._state.notify_all()
        if not is_waiting and self._is_reading:
            self._screen.interrupt()

    def _end(self, why: str) -> None:
        with self._state:
            self.is_over, self.why = True, self.why or why
            self._state.notify_all()
        if self._is_reading:
            self._screen.interrupt()


def _is_echo(line: str, own_mark: str) -> bool:
    """Whether the line was typed at this console; lines of other consoles are shown."""
    return line.removeprefix(PDB_PROMPT).startswith(own_mark)
