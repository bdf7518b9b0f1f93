"""Ways: the folders that lead to where a folder of the workspace lands."""

from __future__ import annotations

from collections.abc import Iterator

from monarch_sync.entry import Entry, Kind, folders_above

__all__ = ["add_way", "way_to"]

_MODE = 0o755  # of those that nobody has, so that only the host will


def add_way(landing: str, entries: dict[str, Entry]) -> None:
    """Add the folders above a landing that are nobody's."""
    for folder in folders_above(landing):
        entries.setdefault(folder, Entry(folder, Kind.DIR, _MODE))


def way_to(landing: str, entries: dict[str, Entry]) -> Iterator[Entry]:
    """What `add_way` would add, highest first, and then the landing, which is in ``entries``."""
    for folder in reversed(list(folders_above(landing))):
        if folder not in entries:
            yield Entry(folder, Kind.DIR, _MODE)
    if landing:
        yield entries[landing]
