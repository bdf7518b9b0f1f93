"""The HTML with which notebooks show meshes and the values on them; its style is inline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from monarch.mesh.ranges import ranges_of

_CELL = "padding:2px 8px;text-align:left;vertical-align:top"
_TITLE = f"{_CELL};font-weight:bold;white-space:nowrap"
_MOST_ROWS = 50
_MOST_CHARACTERS = 400
_GOOD, _BAD = "#2e9e5b", "#d64545"


def table(caption: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return an HTML table of text cells. Of many rows it shows the first, and the number of the
    rest.
    """
    all_rows = [*rows]
    head = "".join(f'<th style="{_CELL}">{escape(heading)}</th>' for heading in headings)
    body = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}">{_cut(cell)}</td>' for cell in row) + "</tr>"
        for row in all_rows[:_MOST_ROWS]
    )
    if (num_more := len(all_rows) - _MOST_ROWS) > 0:
        body += f'<tr><td style="{_CELL}" colspan="9">and {num_more:,} more</td></tr>'
    return (
        f'<table style="border-collapse:collapse;font-family:monospace"><caption style="{_TITLE}">'
        f"{escape(caption)}</caption><tr>{head}</tr>{body}</table>"
    )


def grid(caption: str, rows: Mapping[str, Mapping[int, str]]) -> str:
    """Return an HTML grid with a square for each rank. ``rows`` has a row for each group of ranks.

    The text of a rank says why the rank is gone; "" means that it runs.
    """
    body = "".join(
        f'<tr><td style="{_CELL}">{escape(group)}</td>'
        f'<td style="{_CELL}">{"".join(_square(*item) for item in ranks.items())}</td>'
        f'<td style="{_CELL}">{",".join(ranges_of(ranks))}</td></tr>'
        for group, ranks in rows.items()
    )
    lost = sorted(rank for ranks in rows.values() for rank, why in ranks.items() if why)
    lost_text = f"; lost: {','.join(ranges_of(lost))}" if lost else ""
    return (
        f'<table style="border-collapse:collapse;font-family:monospace"><caption style="{_TITLE}">'
        f"{escape(caption + lost_text)}</caption>{body}</table>"
    )


def values(caption: str, by_rank: Mapping[int, object]) -> str:
    """Return an HTML table with a row for each value and the ranks that have it."""
    ranks: dict[str, list[int]] = {}
    for rank, value in by_rank.items():
        ranks.setdefault(_text_of(value), []).append(rank)
    rows = [(",".join(ranges_of(ranks_of_text)), text) for text, ranks_of_text in ranks.items()]
    return table(caption, ("ranks", "value"), rows)


def _square(rank: int, why: str) -> str:
    colour, text = (_BAD, f"{rank}: {why}") if why else (_GOOD, str(rank))
    return f'<span style="color:{colour}" title="{escape(text)}">■</span>'


def _text_of(value: object) -> str:
    """Return a value as short text; of an array or a tensor its type, shape, dtype and mean."""
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is None or dtype is None:
        return repr(value)
    try:
        mean = f", mean {float(value.mean()):.4g}"  # type: ignore[attr-defined]
    except Exception:  # Of integers, of none, or on a device that is gone.
        mean = ""
    return f"{type(value).__name__} {tuple(shape)} {dtype}{mean}"


def _cut(text: str) -> str:
    text = text if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS] + "…"
    return escape(text).replace("\n", "<br>")
