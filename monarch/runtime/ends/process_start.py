"""When a process was started: what tells it from a later one that got its number."""

from __future__ import annotations

__all__ = ["process_start"]


def process_start(pid: int, *, even_ended: bool = False) -> int | None:
    """In ticks since boot; ``None`` if there is no such process.

    One that has ended, and that its parent has not heard of yet, counts only if ``even_ended``.
    """
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" and not even_ended else int(fields[19])
