"""Lists of CPUs or memory nodes as taskset and numactl write them: ``0-3,8,10-14:2``."""

from __future__ import annotations

__all__ = ["parse_cpu_list"]


def parse_cpu_list(text: str) -> frozenset[int]:
    """The numbers that a list names. Raises ``ValueError`` for anything else."""
    numbers: set[int] = set()
    for part in text.split(","):
        span, _, step = part.strip().partition(":")
        first, dash, last = span.partition("-")
        try:
            low, high = int(first), int(last) if dash else int(first)
            picked = range(low, high + 1, int(step) if step else 1)
        except ValueError:
            picked = range(0)
        if not picked or picked[0] < 0:
            raise ValueError(f"{text!r} is not a list of numbers and ranges such as '0-3,8'")
        numbers.update(picked)
    return frozenset(numbers)
