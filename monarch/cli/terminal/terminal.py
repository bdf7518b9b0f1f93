"""A command's output stream, with what can be shown there: colours, a changing line."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Mapping
from typing import TextIO

import click

from monarch_sync.words import clipped, plain, wrapped

_GLYPHS = "✓✗→×…"
_COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "bright_cyan", "bright_yellow")
_ERASE = "\r\x1b[K"


class LabelledLines:
    """Prints lines after a label each; each label has its own colour, if the output has colours.

    ``form`` shows a label, as ``{} | `` does; "" shows none.
    """

    def __init__(self, form: str) -> None:
        self._form = form
        self._terminal = Terminal()
        self._colours: dict[str, str] = {}

    def print(self, *lines: tuple[str, str]) -> None:
        """Print pairs of a label and a text."""
        for label, text in lines:
            colour = self._colours.setdefault(label, _COLOURS[len(self._colours) % len(_COLOURS)])
            self._terminal.line(self._form.format(label), colour, end="")
            # A file or a pipe gets the bytes that were printed.
            self._terminal.line(text, is_exact=self._terminal.width is None)


class Terminal:
    """Prints lines and, on a terminal, a changing line below them.

    Other outputs get plain lines: no colour, no control codes, nothing cut off. ``NO_COLOR`` turns
    colour off, ``TERM=dumb`` colour and the changing line. Characters that the encoding lacks are
    escaped, never an error.
    """

    def __init__(self, out: TextIO | None = None, environ: Mapping[str, str] | None = None) -> None:
        self._out = sys.stdout if out is None else out
        environ = os.environ if environ is None else environ
        is_terminal = self._out.isatty()
        self.is_live = is_terminal and environ.get("TERM") != "dumb"
        self._has_colour = self.is_live and not environ.get("NO_COLOR")
        self._is_terminal = is_terminal
        self._encoding = self._out.encoding or "ascii"
        self.ascii_only = not self._can_show(_GLYPHS)
        self._changing = ""
        self._lock = threading.Lock()

    @property
    def width(self) -> int | None:
        """Return the columns; ``None`` if the output is no terminal, so lines may be long."""
        return shutil.get_terminal_size().columns if self._is_terminal else None

    def prose(self, text: str, colour: str | None = None, *, dim: bool = False) -> None:
        """Print a text whose lines may be broken between words."""
        width = self.width
        self.line(wrapped(text, width) if width else text, colour, dim=dim)

    def line(
        self,
        text: str,
        colour: str | None = None,
        *,
        dim: bool = False,
        is_exact: bool = False,
        end: str = "\n",
    ) -> None:
        """Print a text, of one line or more.

        Characters that could steer a terminal are escaped, unless the text should stay exactly as
        it is.
        """
        output = self._encodable(text if is_exact else plain(text))
        if self._has_colour and (colour or dim):
            output = click.style(output, fg=colour, dim=dim or None)
        with self._lock:
            self._write(self._erased() + output + end)

    def change(self, text: str) -> None:
        """Show a text for the moment, in place of the last one; "" for none."""
        if not self.is_live:
            return
        width = self.width or 80
        output = clipped(self._encodable(plain(text)), width - 1, "..." if self.ascii_only else "…")
        with self._lock:
            self._write(self._erased() + output)
            self._changing = output

    def _erased(self) -> str:
        """Return the characters that erase the changing line."""
        erase, self._changing = (_ERASE if self._changing else ""), ""
        return erase

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()

    def _can_show(self, text: str) -> bool:
        try:
            text.encode(self._encoding)
        except (UnicodeEncodeError, LookupError):
            return False
        return True

    def _encodable(self, text: str) -> str:
        if self._can_show(text):
            return text
        return text.encode(self._encoding, "backslashreplace").decode(self._encoding)
