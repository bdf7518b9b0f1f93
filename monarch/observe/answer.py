"""The answer to a query: named columns, and rows."""

from __future__ import annotations

import csv
import html
import io
import shutil
from collections.abc import Iterator, Sequence
from typing import Any

from monarch.observe.json_rows import json_text

_SHOWN_ROWS = 60
_WIDEST = 60


class QueryTable(Sequence[dict[str, Any]]):
    """The answer to a query: a sequence of rows, each a dictionary, which is displayed as a
    table."""

    def __init__(self, columns: Sequence[str], values: Sequence[Sequence[Any]]) -> None:
        self.columns = list(columns)
        self._values = values

    @property
    def rows(self) -> list[dict[str, Any]]:
        return list(self)

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return dict(zip(self.columns, self._values[index], strict=True))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (dict(zip(self.columns, row, strict=True)) for row in self._values)

    def df(self) -> Any:
        """Return a pandas ``DataFrame``. Raises ``ImportError`` if pandas is not installed."""
        import pandas

        return pandas.DataFrame(self._values, columns=self.columns)

    def to_json(self) -> str:
        """Return a JSON list with one object for each row."""
        return json_text(self.rows, indent=1)

    def to_jsonl(self) -> str:
        """Return JSON lines: one object for each row."""
        return "".join(f"{json_text(row)}\n" for row in self.rows)

    def to_csv(self) -> str:
        """Return CSV whose first line has the column names."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(self._values)
        return text.getvalue()

    def __repr__(self) -> str:
        return self.in_text(shutil.get_terminal_size().columns)

    def in_text(self, width: int = 0) -> str:
        """Return a table for a terminal of ``width`` columns; 0 is no limit."""
        shown = [[_short(value) for value in row] for row in self._values[:_SHOWN_ROWS]]
        widths = [
            max([len(name), *(len(row[column]) for row in shown)])
            for column, name in enumerate(self.columns)
        ]
        is_number = [
            bool(self._values)
            and all(
                isinstance(row[column], int | float) or row[column] is None for row in self._values
            )
            for column in range(len(self.columns))
        ]

        def line(cells: Sequence[str]) -> str:
            text = "  ".join(
                cell.rjust(size) if right else cell.ljust(size)
                for cell, size, right in zip(cells, widths, is_number, strict=True)
            ).rstrip()
            return text if not width or len(text) <= width else f"{text[: width - 1]}…"

        lines = [line(self.columns), *map(line, shown)]
        num_more = len(self) - len(shown)
        if num_more > 0:
            lines.append(f"... and {num_more:,} rows more")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.columns)
        rows = "".join(
            "<tr>" + "".join(f"<td>{html.escape(_short(value))}</td>" for value in row) + "</tr>"
            for row in self._values[:_SHOWN_ROWS]
        )
        num_more = len(self) - _SHOWN_ROWS
        more = f"<p>... and {num_more:,} rows more</p>" if num_more > 0 else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{more}"


def _short(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.3f}" if 1e5 <= abs(value) < 1e15 else f"{value:.6g}"  # Times since 1970.
    text = str(value).replace("\n", "⏎")
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"
