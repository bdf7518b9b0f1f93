"""Which line of an edited file is the one that was meant before. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Sequence


def moved_line(before: Sequence[str], after: Sequence[str], line: int) -> int | None:
    """The new number of ``line``, both counted from 1; ``None`` where it was taken out.

    A line that was edited where it stands is the line with the same place among its neighbours.
    """
    index = line - 1
    if not 0 <= index < len(before):
        return line if line <= len(after) else None
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for kind, first, last, new_first, new_last in matcher.get_opcodes():
        if not first <= index < last:
            continue
        moved = new_first + index - first
        if kind == "equal" or (kind == "replace" and moved < new_last):
            return moved + 1
        return None
    return None
