"""The input and output of a held call's debugger, which has no terminal."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import NamedTuple

_MOST_CHARACTERS = 1_000_000


class Shown(NamedTuple):
    """A piece of output: ``number`` is the index of the character after ``text``; ``cuts`` are the
    ends of single writes, from the beginning of the text.
    """

    number: int
    text: str
    cuts: tuple[int, ...] = ()


class HeldText:
    """Keeps the output and waits for input lines, with any number of consoles.

    ``on_waiting`` is called, on the held thread, when the debugger begins to wait for a line, and
    ``on_text`` when there is new output. ``readline`` returns "" after a close.
    """

    def __init__(self, on_waiting: Callable[[bool], None], on_text: Callable[[], None]) -> None:
        self.is_waiting = False
        self.is_closed = False
        self._on_waiting = on_waiting
        self._on_text = on_text
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._text = ""
        self._dropped = 0
        self._since_line = 0
        self._cuts: list[int] = []
        self._lock = threading.Lock()

    # As pdb wants its streams.
    encoding = "utf-8"

    def write(self, text: str) -> int:
        with self._lock:
            self._text += text
            self._cuts.append(self._dropped + len(self._text))
            if len(self._text) > _MOST_CHARACTERS:
                cut = len(self._text) - _MOST_CHARACTERS // 2
                self._text = self._text[cut:]
                self._dropped += cut
                self._cuts = [end for end in self._cuts if end > self._dropped]
        self._on_text()
        return len(text)

    def flush(self) -> None:
        """Does nothing: text is stored as it is written."""

    def isatty(self) -> bool:
        return False

    def readline(self) -> str:
        """Wait for the next line, and return it."""
        if self.is_closed:
            return ""
        # Others hear that it stands before consoles do: a console that was answered sees it in
        # every list.
        self._on_waiting(True)
        self.is_waiting = True
        self._on_text()
        line = self._lines.get()
        self.is_waiting = False
        self._on_waiting(False)
        return "" if line is None else line

    # As consoles want it.

    def type(self, line: str, who: str = "") -> None:
        """Give a line to the debugger. If the typist ``who`` is known, other consoles see it, as
        ``[anna] n``. Any thread may call this.
        """
        with self._lock:
            self._since_line = self._dropped + len(self._text)
            self.is_waiting = False
        if who:
            self.write(f"[{who}] {line}\n")
        self._lines.put(line + "\n")

    def close(self) -> None:
        """End the input: no line comes any more. From any thread."""
        self.is_closed = True
        self._lines.put(None)
        self._on_text()

    def since(self, number: int) -> Shown:
        """Return the output from that character on; -1: since the last line. From any thread."""
        with self._lock:
            start = max(self._since_line if number < 0 else number, self._dropped)
            end = self._dropped + len(self._text)
            cuts = tuple(at - start for at in self._cuts if at > start)
            return Shown(end, self._text[start - self._dropped :], cuts)
