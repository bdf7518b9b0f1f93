"""The output of a process, cut into lines for people.

`LineBuffer.feed` takes bytes as they were read, with the time, and returns two texts. ``raw``, for
the log file, is the unchanged input up to the last line end. ``shown`` is for the screen:

- A line that is not finished waits for its end, up to 64 KiB; then it is cut.
- A progress bar (text that is overwritten with ``\\r``) shows its state once a second, and its last
  state when its line ends.
- Control sequences that would move the reader's cursor are left out, colours are not.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_MAX_LINE_BYTES = 64 * 1024
_PROGRESS_SECONDS = 1.0

_CONTROLS = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-ln-~]"  # a CSI sequence that does not end in m: cursor, erase, modes
    r"|\x1b[\]PX^_].*?(?:\x07|\x1b\\|$)"  # titles, links, and other strings for the terminal
    r"|\x1b[@-Z\\^_`-~0-?]"  # two characters
    r"|\x1b(?!\[[0-9;:]*m)"
    r"|[\x00-\x08\x0b-\x1a\x7f-\x9f]",
    re.MULTILINE,  # A string that is never closed is over with its line.
)
_COLOUR = "\x1b["
_RESET = "\x1b[0m"


class Written(NamedTuple):
    """Whole lines: ``raw`` for the log file, ``shown`` for people.

    ``shown`` ends with a newline, or is empty.
    """

    raw: bytes
    shown: bytes


class LineBuffer:
    """Cuts one stream into lines; keeps its unfinished last line."""

    def __init__(self) -> None:
        self._rest = b""
        self._progress = b""
        self._is_overwriting = False
        self._shown_at = float("-inf")

    def feed(self, data: bytes, now: float) -> Written:
        """Take bytes that were read at time ``now`` (seconds); return the lines to write."""
        data = self._rest + data
        end = data.rfind(b"\n") + 1
        raw, rest = data[:end], data[end:]
        shown = raw
        if end and (self._is_overwriting or b"\r" in raw):
            shown = self._collapse(raw)
        if b"\r" in rest:
            overwritten, rest = self._overwrite(rest)
            raw += overwritten
            shown += self._due(now)
        if len(rest) > _MAX_LINE_BYTES:
            cut = _character_boundary(rest)
            raw += rest[:cut]
            shown += rest[:cut] + b"\n"
            rest = rest[cut:]
        self._rest = rest
        return Written(raw, shown)

    def end(self) -> Written:
        """Return the unfinished line, because the stream has ended."""
        rest, self._rest = self._rest, b""
        line = rest.strip(b"\r") or self._progress
        self._progress = b""
        return Written(rest, line + b"\n" if line else b"")

    def _collapse(self, raw: bytes) -> bytes:
        first, *others = (_last_state(line) for line in raw[:-1].split(b"\n"))
        if self._is_overwriting:
            first = first or self._progress
            lines = [first, *others] if first else others
        else:
            lines = [first, *others]
        self._is_overwriting, self._progress = False, b""
        return b"".join(line + b"\n" for line in lines)

    def _overwrite(self, rest: bytes) -> tuple[bytes, bytes]:
        cut = rest.rfind(b"\r") + 1
        self._is_overwriting = True
        self._progress = _last_state(rest[:cut]) or self._progress
        return rest[:cut], rest[cut:]

    def _due(self, now: float) -> bytes:
        if not self._progress or now - self._shown_at < _PROGRESS_SECONDS:
            return b""
        line, self._progress = self._progress, b""
        self._shown_at = now
        return line + b"\n"


def _last_state(line: bytes) -> bytes:
    """Return the last state of a line that was overwritten, as a terminal would show it."""
    if b"\r" not in line:
        return line
    return next((part for part in reversed(line.split(b"\r")) if part.strip()), b"")


def _character_boundary(data: bytes) -> int:
    """Return the length at which to cut ``data`` so that no UTF-8 character is split."""
    end = len(data)
    while end > len(data) - 4 and data[end - 1] & 0xC0 == 0x80:
        end -= 1
    if data[end - 1] >= 0xC0:
        return end - 1
    return len(data)


def clean(text: str) -> str:
    """Remove control characters that would disturb the reader's terminal. Colours stay, and end
    with the line."""
    if _CONTROLS.search(text) is None and _COLOUR not in text:
        return text
    text = _CONTROLS.sub("", text)
    if _COLOUR not in text:
        return text
    return "\n".join(
        line + _RESET if _COLOUR in line and not line.endswith((_RESET, "\x1b[m")) else line
        for line in text.split("\n")
    )
