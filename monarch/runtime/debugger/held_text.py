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
        #: Whether the debugger waits for a line.
        self.is_waiting = False
        self.is_closed = False
        self._on_waiting = on_waiting
        self._on_text = on_text
        #: The lines that were typed and not read yet; None ends the input.
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        #: The output, without the first `_num_dropped` characters.
        self._text = ""
        self._num_dropped = 0
        #: The number of the first character after the last line that was typed.
        self._since_line = 0
        #: The numbers of the characters after each write.
        self._cuts: list[int] = []
        #: Guards the output.
        self._lock = threading.Lock()

    # For pdb, which uses it as a stream.
    encoding = "utf-8"

    def write(self, text: str) -> int:
        with self._lock:
            self._text += text
            self._cuts.append(self._num_dropped + len(self._text))
            if len(self._text) > _MOST_CHARACTERS:
                cut = len(self._text) - _MOST_CHARACTERS // 2
                self._text = self._text[cut:]
                self._num_dropped += cut
                self._cuts = [end for end in self._cuts if end > self._num_dropped]
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
        # The host and the client hear of the hold before a console does, so that a console that
        # was answered finds it in every list.
        self._on_waiting(True)
        self.is_waiting = True
        self._on_text()
        line = self._lines.get()
        self.is_waiting = False
        self._on_waiting(False)
        return "" if line is None else line

    # For consoles.

    def type(self, line: str, who: str = "") -> None:
        """Give a line to the debugger. If the typist ``who`` is known, other consoles see it, as
        ``[anna] n``. Any thread may call this.
        """
        with self._lock:
            self._since_line = self._num_dropped + len(self._text)
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
        """Return the output from the character with index ``number`` on.

        With -1 it begins where the last input line was typed. From any thread.
        """
        with self._lock:
            start = max(self._since_line if number < 0 else number, self._num_dropped)
            end = self._num_dropped + len(self._text)
            cuts = tuple(cut - start for cut in self._cuts if cut > start)
            return Shown(end, self._text[start - self._num_dropped :], cuts)
