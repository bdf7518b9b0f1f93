"""The two lines of a traceback that a person needs: the error, and its place in the user's code."""

from __future__ import annotations

import re
import traceback
from typing import NamedTuple

from monarch.config_file import ConfigError
from monarch.errors import ActorError, MonarchError
from monarch.runs.record.error_text import in_words
from monarch.runs.record.places import in_short, is_installed

_PLACE = re.compile(r'^ +File "(.+)", line (\d+)')
_RANK = re.compile(r"^\[rank\d+\]: ", re.MULTILINE)  # torch puts it before each line
_BEGINS = re.compile(r"^Traceback .*\(most recent call last\):$", re.MULTILINE)


class ErrorLines(NamedTuple):
    """An error from a Python traceback: ``error`` is the error in one line, ``traceback`` the whole
    traceback. ``file`` and ``line`` are the place in the user's code that raised. ``on`` says which
    rank it was; "" if that is not known.
    """

    error: str
    file: str = ""
    line: int = 0
    traceback: str = ""
    on: str = ""

    def told(self, on: str = "") -> str:
        """Return the error, and below it the place and ``on``, for example the rank."""
        place = f"{in_short(self.file)}:{self.line}" if self.file else ""
        below = ", ".join(part for part in (place, on or self.on) if part)
        return f"{self.error}\n{below}".rstrip()


def lines_of(error: BaseException) -> ErrorLines | None:
    """Return the lines of an error that ended a run, if the user's code raised it.

    Returns ``None`` if the error's own text says everything.
    """
    lines = getattr(error, "lines", None)
    if isinstance(lines, ErrorLines):
        return lines
    if isinstance(error, ActorError):
        lines = error_in(error.exception_formatted)
        on = "" if error.rank is None else f"on rank {error.rank}"
        return lines and lines._replace(on=on, error=_first_line(in_words(error.exception)))
    if isinstance(error, (MonarchError, ConfigError)):
        return _within(str(error))
    if type(error).__module__.startswith("monarch"):
        return None
    text = "".join(traceback.format_exception(error))
    lines = error_in(text)
    return lines and lines._replace(error=_first_line(in_words(error)))


def _within(text: str) -> ErrorLines | None:
    """Return the error of the user's code whose traceback is in the text of one of our errors;
    ``None`` if it has no traceback.

    The rest of that text becomes part of the returned error.
    """
    begins = _BEGINS.search(text)
    lines = error_in(text) if begins is not None else None
    if begins is None or lines is None:
        return None
    head, tail = text[: begins.start()].rstrip(), text.partition(lines.traceback)[2].strip("\n")
    if "\n" in head or tail:
        rest = "\n".join(part for part in (head, tail) if part)
        return ErrorLines(rest, traceback=lines.traceback)
    return lines._replace(error=head or lines.error)


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


def error_in(text: str) -> ErrorLines | None:
    """Return the last Python error that a process has printed; ``None`` if it printed none."""
    text = _RANK.sub("", text)
    heads = [match.start() for match in _BEGINS.finditer(text)]
    if not heads:
        return _syntax_error(text)
    lines = text[heads[-1] :].splitlines()
    places = []
    end = 1
    while end < len(lines) and (lines[end].startswith(" ") or not lines[end].strip()):
        if match := _PLACE.match(lines[end]):
            places.append((match[1], int(match[2])))
        end += 1
    if end == len(lines):
        return None
    of_user = [place for place in places if not is_installed(place[0])] or places or [("", 0)]
    return ErrorLines(lines[end], *of_user[-1], "\n".join(lines[: end + 1]))


def _syntax_error(text: str) -> ErrorLines | None:
    """Return the error of a script that does not compile; ``None`` if the text ends with no such
    error.

    Python prints such an error without the line ``Traceback (most recent call last)``.
    """
    lines = text.rstrip().splitlines()
    if lines and re.match(r"(Syntax|Indentation|Tab)Error: ", lines[-1]):
        for index in range(len(lines) - 2, -1, -1):
            if match := _PLACE.match(lines[index]):
                return ErrorLines(lines[-1], match[1], int(match[2]), "\n".join(lines[index:]))
    return None
