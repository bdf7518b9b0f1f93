"""Groups ranks that gave equal answers, and marks the odd ones out. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from monarch.core.rank_sets import in_ranges

A = TypeVar("A", bound=Hashable)


@dataclass(frozen=True)  # Python 3.10 has no generic NamedTuple.
class SameAnswer(Generic[A]):
    """Ranks that gave the same answer. ``is_odd``: they are few, and more than half of all ranks
    gave another answer."""

    answer: A
    ranks: tuple[int, ...]
    is_odd: bool

    @property
    def who(self) -> str:
        """Return the ranks as text: ``rank 3`` or ``ranks 0-2,4``."""
        return f"rank{'' if len(self.ranks) == 1 else 's'} {in_ranges(self.ranks)}"


def group(answers: Mapping[int, A]) -> list[SameAnswer[A]]:
    """Turn answers by rank into ranks by answer, the most common answer first.

    If more than half of at least three ranks agree, all other answers are odd.
    """
    ranks: dict[A, list[int]] = {}
    for rank in sorted(answers):
        ranks.setdefault(answers[rank], []).append(rank)
    found = sorted(ranks.items(), key=lambda item: (-len(item[1]), item[1][0]))
    has_majority = len(answers) > 2 and len(found[0][1]) * 2 > len(answers) if found else False
    return [
        SameAnswer(answer, tuple(of), has_majority and index > 0)
        for index, (answer, of) in enumerate(found)
    ]


ODD = "<- odd one out"


def table(groups: list[SameAnswer[str]], width: int = 10) -> list[str]:
    """Return lines of text: the ranks, their answer, and a mark at the ranks that differ."""
    widest = max([width, *(len(one.who) for one in groups)])
    lines = []
    for one in groups:
        mark = f"      {ODD}" if one.is_odd else ""
        first, *more = one.answer.splitlines() or [""]
        lines.append(f"    {one.who:<{widest}}  {first}{mark}")
        lines.extend(f"    {'':<{widest}}  {line}" for line in more)
    return lines
