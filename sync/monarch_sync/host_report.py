"""The report of one host about a push, and the table of all hosts that received files."""

from __future__ import annotations

from dataclasses import dataclass, field

from monarch_sync.words import byte_size, num_cells


@dataclass
class HostReport:
    """The changes of one push on one host. ``kept``: files that a program had changed on the host,
    by the new names under which they were saved.

    ``num_written``, ``num_deleted``, ``num_moved`` and ``num_unchanged`` count files.
    ``num_links``: links that were made, changed or deleted; ``num_modes``: files and folders of
    which only the mode changed; ``num_folders``: empty folders that were made or deleted.
    """

    host: str
    num_written: int = 0
    num_deleted: int = 0
    num_moved: int = 0
    num_unchanged: int = 0
    bytes_sent: int = 0
    kept: list[str] = field(default_factory=list)
    error: str = ""
    num_links: int = 0
    num_modes: int = 0
    num_folders: int = 0

    def add(self, other: HostReport) -> None:
        """Add the counts of another folder on the same host to this report."""
        for name in _COLUMNS.values():
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.kept += other.kept


# The columns of the table, with the attributes that they show.
_COLUMNS = {
    "written": "num_written",
    "moved": "num_moved",
    "deleted": "num_deleted",
    "unchanged": "num_unchanged",
    "links": "num_links",
    "modes": "num_modes",
    "folders": "num_folders",
    "sent": "bytes_sent",
}
_SHOWN_IF_ANY = ("links", "modes", "folders")


def host_rows(hosts: list[HostReport]) -> list[str]:
    """Return a table of the hosts; hosts with the same changes share a row."""
    groups: dict[tuple[str, ...], list[str]] = {}
    titles = [
        title
        for title, name in _COLUMNS.items()
        if title not in _SHOWN_IF_ANY or any(getattr(host, name) for host in hosts)
    ]
    for host in hosts:
        cells = tuple(
            byte_size(host.bytes_sent) if title == "sent" else f"{getattr(host, _COLUMNS[title]):,}"
            for title in titles
        )
        groups.setdefault(cells, []).append(host.host)
    if not groups:
        return []
    rows = [("", *titles), *((_named(names), *cells) for cells, names in groups.items())]
    widths = [max(map(num_cells, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        padded = [f"  {cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append(f"  {row[0].ljust(widths[0])}{''.join(padded)}")
    return lines


def _named(hosts: list[str]) -> str:
    if len(hosts) <= 2:
        return ", ".join(hosts)
    return f"{hosts[0]} .. {hosts[-1]} ({len(hosts)})"
