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
    by_size = sorted(ranks.items(), key=lambda item: (-len(item[1]), item[1][0]))
    has_majority = len(answers) > 2 and len(by_size[0][1]) * 2 > len(answers) if by_size else False
    return [
        SameAnswer(answer, tuple(ranks_of_answer), has_majority and index > 0)
        for index, (answer, ranks_of_answer) in enumerate(by_size)
    ]


ODD = "<- odd one out"


def table(groups: list[SameAnswer[str]], width: int = 10) -> list[str]:
    """Return lines of text: the ranks, their answer, and a mark at the ranks that differ."""
    widest = max([width, *(len(same.who) for same in groups)])
    lines = []
    for same in groups:
        mark = f"      {ODD}" if same.is_odd else ""
        first, *more = same.answer.splitlines() or [""]
        lines.append(f"    {same.who:<{widest}}  {first}{mark}")
        lines.extend(f"    {'':<{widest}}  {line}" for line in more)
    return lines
