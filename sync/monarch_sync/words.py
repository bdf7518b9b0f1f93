"""Numbers and names as texts for people."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 file``, ``3 files``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def some(names: Sequence[str], limit: int = 3) -> str:
    """Return the first names, and how many more there are: ``a, b, c and 4 more``."""
    rest = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {rest:,} more" if rest > 0 else "")


def byte_size(number: float) -> str:
    """Return a number of bytes: ``812 B``, ``1.2 KB``, ``34 MB``."""
    if number < 1000:
        return f"{number:.0f} B"
    power = next((power for power in (1, 2) if number < 999.5 * 1000**power), 3)
    number /= 1000**power
    unit = ("KB", "MB", "GB")[power - 1]
    return f"{number:.1f} {unit}" if number < 10 else f"{number:.0f} {unit}"


def took(seconds: float) -> str:
    """Return a duration: ``0.4 ms``, ``38 ms``, ``2.4 s``, ``3 min 20 s``."""
    if seconds < 0.0005:
        return "0 ms"
    if seconds < 1:
        milliseconds = seconds * 1000
        return f"{milliseconds:.1f} ms" if milliseconds < 1 else f"{milliseconds:.0f} ms"
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s"


def printable(text: str) -> str:
    """Return a name that cannot control a terminal: control characters, and bytes that are not
    text, are escaped."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def plain(text: str) -> str:
    """Return a text of several lines that cannot control a terminal; line ends and tabs stay."""
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n"))


def _escaped(char: str) -> str:
    if "\udc80" <= char <= "\udcff":  # a byte that is no UTF-8, as file names have it
        return f"\\x{ord(char) - 0xDC00:02x}"
    return char.encode("unicode_escape", "surrogatepass").decode()


def num_cells(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    return sum(_cells(char) for char in text)


def clipped(text: str, width: int, mark: str = "…") -> str:
    """Return at most ``width`` columns of a text, with ``mark`` in place of the cut-off end."""
    if num_cells(text) <= width:
        return text
    width_left = max(0, width - len(mark))
    kept = ""
    for char in text:
        width_left -= _cells(char)
        if width_left < 0:
            break
        kept += char
    return (kept.rstrip() + mark)[: max(width, 0)]


def clipped_around(text: str, at: int, width: int, mark: str = "…") -> tuple[str, int]:
    """Return at most ``width`` columns of a text, cut so that the column ``at`` is visible, and the
    column at which it is in the result.

    The text's indent is kept. Of the text before ``at``, as much is cut as is needed for the rest
    to fit.
    """
    indent = len(text) - len(text.lstrip(" "))
    ahead = at + len(mark) + 2 - width
    if num_cells(text) <= width or ahead <= 0 or at < indent:
        return clipped(text, width, mark), at
    rest, num_cut = text[indent:], 0
    while rest and num_cut < ahead + len(mark):
        num_cut += _cells(rest[0])
        rest = rest[1:]
    return clipped(f"{text[:indent]}{mark}{rest}", width, mark), at - num_cut + len(mark)


def wrapped(text: str, width: int) -> str:
    """Return a text with its long lines broken between words; the continued lines keep the line's
    indent.

    A word that is longer than a line, a path, say, stays whole.
    """
    lines: list[str] = []
    for line in text.split("\n"):
        words = line.split(" ")
        indent = line[: len(line) - len(line.lstrip(" "))]
        continued = words[0]
        for word in words[1:]:
            if not continued.strip() or num_cells(continued) + 1 + num_cells(word) <= width:
                continued += f" {word}"
            else:
                lines.append(continued)
                continued = indent + word
        lines.append(continued)
    return "\n".join(lines)


def _cells(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
