"""The layout of many ranks' lines on one screen."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from monarch.core.log_aggregation import LineSource, Summary
from monarch.mesh.ranges import ranges_of

_RESET = "\x1b[0m"
_YELLOW = "\x1b[33m"
_CYAN = "\x1b[36m"
_RANK_COLOURS = tuple(f"\x1b[{code}m" for code in (36, 32, 35, 34, 96, 92, 95, 94))
_MAX_RANGES = 6
_LEAST_ROOM = 20


class Style:
    """The style of printed text. In a terminal, ``width`` is its number of columns, and
    ``has_colours`` says whether it shows colours; elsewhere the text is plain.

    ``is_of_run``: the lines are those of a run, which have their own kind of margin.
    """

    def __init__(
        self, has_colours: bool, width: int | None = None, *, is_of_run: bool = False
    ) -> None:
        self.has_colours = has_colours
        self.width = width
        self._is_of_run = is_of_run

    def paint(self, colour: str, text: str) -> str:
        return f"{colour}{text}{_RESET}" if self.has_colours else text

    def prefix(self, label: str) -> str:
        """Return the text to put before a line, in the rank's colour: ``[name rank] ``, or ``name
        rank | `` in a run.
        """
        rank = label.rpartition(" ")[2]
        colour = _RANK_COLOURS[(int(rank) if rank.isdigit() else 0) % len(_RANK_COLOURS)]
        return self.paint(colour, f"{label} |" if self._is_of_run else f"[{label}]") + " "


def line_text(label: str, lines: str, style: Style) -> str:
    """Return ``lines``, which end with a newline, each with the label of its printer in front."""
    prefix = style.prefix(label)
    return prefix + lines[:-1].replace("\n", "\n" + prefix) + "\n"


def run_text(label: str, lines: Iterable[str], style: Style) -> str:
    """Return lines of a rank of a run, each as ``titan 0 | text``. In a terminal, long lines are
    broken, and the continued lines have the same margin.
    """
    first, rest = style.prefix(label), " " * len(label) + " | "
    shown = [
        (first if number == 0 else rest) + part
        for line in lines
        for number, part in enumerate(_fitting(line, style.width, len(rest)))
    ]
    return "".join(f"{line}\n" for line in shown)


def _fitting(line: str, width: int | None, margin: int) -> list[str]:
    # A line with colours has characters that take no room: the terminal breaks it.
    if width is None or len(line) + margin <= width or "\x1b" in line:
        return [line]
    room = max(width - margin, _LEAST_ROOM)
    return textwrap.wrap(line, room, drop_whitespace=False, replace_whitespace=False)


def drop_text(label: str, count: int, path: str, style: Style) -> str:
    """Return the text to show in place of ``count`` lines that were dropped.

    ``path`` is the file that has these lines, or "".
    """
    where = f"; they are in {path}" if path else ""
    lines = "line" if count == 1 else "lines"
    text = f"... {count:,} {lines} dropped here, faster than they could be shown{where}"
    return style.prefix(label) + style.paint(_YELLOW, text) + "\n"


def aggregate_text(summary: Summary, start: str, end: str, style: Style) -> str:
    """Return the lines of a window as text; ``start`` and ``end`` are its times, in words."""
    parts = [style.paint(_CYAN, f">>> Aggregated Logs ({start}) >>>")]
    for aggregate in summary.aggregates:
        count = style.paint(_YELLOW, f"[{aggregate.num_lines} similar log lines]")
        parts.append(f"{count} {style.prefix(rank_list(aggregate.sources))}{aggregate.text}")
    if summary.num_more:
        count = style.paint(_YELLOW, f"[{summary.num_more:,} other log lines]")
        parts.append(f"{count} ... too many to compare; they are in the log files")
    parts += [style.prefix(rank_list([source])) + text for source, text in summary.last]
    parts.append(style.paint(_CYAN, f"<<< Aggregated Logs ({end}) <<<"))
    return "\n".join(parts) + "\n"


def rank_list(sources: Iterable[LineSource]) -> str:
    """Return the names and ranks of the sources, in few words: ``trainer 0-3,7``."""
    by_name: dict[str, set[int]] = {}
    for source in sources:
        by_name.setdefault(source.name, set()).add(source.rank)
    return "; ".join(f"{name} {_ranges(ranks)}" for name, ranks in by_name.items())


def _ranges(ranks: set[int]) -> str:
    shown = ranges_of(ranks)
    if len(shown) > _MAX_RANGES:
        shown[_MAX_RANGES - 1 :] = ["..."]
    return ",".join(shown)
