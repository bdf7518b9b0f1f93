"""When a process was started, which tells it from a later one that got its number; and by whom."""

from __future__ import annotations

__all__ = ["parent_of", "process_start"]


def process_start(pid: int, *, even_ended: bool = False) -> int | None:
    """In ticks since boot; ``None`` if there is no such process.

    One that has ended, and that its parent has not heard of yet, counts only if ``even_ended``.
    """
    fields = _status(pid)
    if not fields:
        return None
    return None if fields[0] == "Z" and not even_ended else int(fields[19])


def parent_of(pid: int) -> int | None:
    """``None`` if there is no such process."""
    fields = _status(pid)
    return int(fields[1]) if fields else None


def _status(pid: int) -> list[str]:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []
