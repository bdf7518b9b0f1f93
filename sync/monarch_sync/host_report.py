"""The report of one host about a push, and the table of all hosts that received files."""

from __future__ import annotations

from dataclasses import dataclass, field

from monarch_sync.words import byte_size, num_cells


@dataclass
class HostReport:
    """The changes of one push on one host. ``kept`` are files that were changed on the host and
    were saved under other names.

    The first four numbers count files. ``num_links``: links that were made, changed or deleted;
    ``num_modes``: files and folders of which only the mode changed; ``num_folders``: empty folders
    that were made or deleted.
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
        for name in _NUMBERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.kept += other.kept


_NUMBERS = (
    "num_written", "num_deleted", "num_moved", "num_unchanged", "bytes_sent",
    "num_links", "num_modes", "num_folders",
)  # fmt: skip
_COLUMNS = ("written", "moved", "deleted", "unchanged", "links", "modes", "folders", "sent")
_BESIDE_FILES = range(4, 7)  # columns that are shown where there is anything to tell


def host_rows(hosts: list[HostReport]) -> list[str]:
    """Return a table of the hosts; hosts with the same changes share a row."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for host in hosts:
        numbers = (
            host.num_written, host.num_moved, host.num_deleted, host.num_unchanged,
            host.num_links, host.num_modes, host.num_folders,
        )  # fmt: skip
        row = (*(f"{number:,}" for number in numbers), byte_size(host.bytes_sent))
        groups.setdefault(row, []).append(host.host)
    if not groups:
        return []
    shown = [
        at
        for at in range(len(_COLUMNS))
        if at not in _BESIDE_FILES or any(row[at] != "0" for row in groups)
    ]
    rows = [
        (first, *(cells[at] for at in shown))
        for first, cells in (("", _COLUMNS), *((_named(n), row) for row, n in groups.items()))
    ]
    widths = [max(num_cells(row[at]) for row in rows) for at in range(len(rows[0]))]
    return [
        "  " + row[0].ljust(widths[0]) + "".join(
            f"  {cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True)
        )
        for row in rows
    ]  # fmt: skip


def _named(hosts: list[str]) -> str:
    if len(hosts) <= 2:
        return ", ".join(hosts)
    return f"{hosts[0]} .. {hosts[-1]} ({len(hosts)})"
