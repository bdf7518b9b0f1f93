"""How the lines of many ranks look on one screen."""

from __future__ import annotations

from collections.abc import Iterable

from monarch.core.log_aggregation import LineSource, Summary
from monarch.mesh.ranges import ranges_of

_RESET = "\x1b[0m"
_YELLOW = "\x1b[33m"
_CYAN = "\x1b[36m"
_RANK_COLOURS = tuple(f"\x1b[{code}m" for code in (36, 32, 35, 34, 96, 92, 95, 94))
_MAX_RANGES = 6


class Style:
    """``has_colours`` on terminals; elsewhere the text is plain."""

    def __init__(self, has_colours: bool) -> None:
        self.has_colours = has_colours

    def paint(self, colour: str, text: str) -> str:
        return f"{colour}{text}{_RESET}" if self.has_colours else text

    def prefix(self, label: str) -> str:
        """``[name rank] ``, in the colour of the rank."""
        if not self.has_colours:
            return f"[{label}] "
        rank = label.rpartition(" ")[2]
        number = int(rank) if rank.isdigit() else 0
        return self.paint(_RANK_COLOURS[number % len(_RANK_COLOURS)], f"[{label}]") + " "


def line_text(label: str, lines: str, style: Style) -> str:
    """``lines``, which end with a newline, each with its printer in front."""
    prefix = style.prefix(label)
    return prefix + lines[:-1].replace("\n", "\n" + prefix) + "\n"


def drop_text(label: str, count: int, path: str, style: Style) -> str:
    """The text in the place of missing lines."""
    where = f"; they are in {path}" if path else ""
    lines = "line" if count == 1 else "lines"
    text = f"... {count:,} {lines} dropped here, faster than they could be shown{where}"
    return style.prefix(label) + style.paint(_YELLOW, text) + "\n"


def aggregate_text(summary: Summary, start: str, end: str, style: Style) -> str:
    """The lines of a window; ``start`` and ``end`` are its times, in words."""
    parts = [style.paint(_CYAN, f">>> Aggregated Logs ({start}) >>>")]
    for one in summary.aggregates:
        count = style.paint(_YELLOW, f"[{one.num_lines} similar log lines]")
        parts.append(f"{count} {style.prefix(rank_list(one.sources))}{one.text}")
    if summary.num_more:
        count = style.paint(_YELLOW, f"[{summary.num_more:,} other log lines]")
        parts.append(f"{count} ... too many to compare; they are in the log files")
    parts += [style.prefix(rank_list([source])) + text for source, text in summary.last]
    parts.append(style.paint(_CYAN, f"<<< Aggregated Logs ({end}) <<<"))
    return "\n".join(parts) + "\n"


def rank_list(sources: Iterable[LineSource]) -> str:
    """``trainer 0-3,7``: the names and ranks of the sources, in few words."""
    by_name: dict[str, set[int]] = {}
    for source in sources:
        by_name.setdefault(source.name, set()).add(source.rank)
    return "; ".join(f"{name} {_ranges(ranks)}" for name, ranks in by_name.items())


def _ranges(ranks: set[int]) -> str:
    shown = ranges_of(ranks)
    if len(shown) > _MAX_RANGES:
        shown[_MAX_RANGES - 1 :] = ["..."]
    return ",".join(shown)
