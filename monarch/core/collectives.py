"""Finds the ranks of a process group that wait in different collectives.

All members of a group run its collectives in the same order, which torch counts. So collectives of
one number belong together: a rank without it has not reached it, and ranks with different
operations, or shapes, wait for each other forever. Torch records them for gloo and for NCCL alike.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from monarch.mesh.ranges import ranges_in_words

# Ranks give these different shapes, by their nature.
_UNEVEN = ("gather", "scatter", "alltoall", "all_to_all", "allgather_v", "barrier", "coalesced")


class Collective(NamedTuple):
    """A collective that a rank has begun. ``sizes`` are the shapes of its inputs, ``place`` is the
    line of the user's code that called it.
    """

    group: str
    seq: int
    op: str
    sizes: str = ""
    dtypes: str = ""
    is_done: bool = False
    place: str = ""

    @property
    def kind(self) -> str:
        """The operation with its dtypes and shapes as text, which must be the same on all ranks.

        Shapes are left out for operations in which they may differ by rank.
        """
        is_even = not any(part in self.op for part in _UNEVEN) or self.op == "all_gather"
        return " ".join(filter(None, (self.op, self.sizes if is_even else "", self.dtypes)))


@dataclass(frozen=True)
class CollectiveMismatch:
    """The first collective of a group in which its ranks differ.

    ``by_kind`` has the ranks that have begun this collective, by the operation that they called.
    ``missing`` has the ranks that have not begun it, each with the last collective that is known of
    it, or None.
    """

    group: str
    seq: int
    by_kind: dict[str, list[int]]
    places: dict[str, str]
    missing: dict[int, Collective | None]

    @property
    def text(self) -> str:
        """Return the mismatch as a sentence."""
        parts = []
        for kind, ranks in self.by_kind.items():
            at = f" at {self.places[kind]}" if self.places.get(kind) else ""
            parts.append(f"{_rank_words(ranks)} in {kind}{at}")
        lasts: dict[str, list[int]] = defaultdict(list)
        for rank, last in self.missing.items():
            lasts["" if last is None else f" (last: #{last.seq} {last.op})"].append(rank)
        for last_text, ranks in lasts.items():
            verb = "has" if len(ranks) == 1 else "have"
            parts.append(f"{_rank_words(sorted(ranks))} {verb} not come{last_text}")
        return f"group {self.group}, collective #{self.seq}: {'; '.join(parts)}"


def mismatches(records: Mapping[int, Sequence[Collective]]) -> list[CollectiveMismatch]:
    """Return the mismatches of collectives, at most one for each process group.

    ``records`` has the latest collectives of each rank. Collectives that match, and are still under
    way, are no mismatch.
    """
    groups: dict[str, dict[int, dict[int, Collective]]] = defaultdict(dict)
    for rank, record in records.items():
        for collective in record:
            groups[collective.group].setdefault(rank, {})[collective.seq] = collective
    firsts = (_first(group, by_rank) for group, by_rank in sorted(groups.items()))
    return [mismatch for mismatch in firsts if mismatch is not None]


def _first(
    group: str, by_rank: Mapping[int, Mapping[int, Collective]]
) -> CollectiveMismatch | None:
    # Some rank has forgotten all that is older than this.
    begin = max(min(record) for record in by_rank.values())
    end = max(max(record) for record in by_rank.values())
    for seq in range(begin, end + 1):
        reached = {rank: record[seq] for rank, record in sorted(by_rank.items()) if seq in record}
        missing = [rank for rank in sorted(by_rank) if rank not in reached]
        kinds: dict[str, list[int]] = defaultdict(list)
        for rank, collective in reached.items():
            kinds[collective.kind].append(rank)
        waits = any(not collective.is_done for collective in reached.values())
        if len(kinds) > 1 or (missing and waits):
            places = {collective.kind: collective.place for collective in reached.values()}
            lasts = {rank: by_rank[rank][max(by_rank[rank])] for rank in missing}
            return CollectiveMismatch(group, seq, dict(kinds), places, dict(lasts))
    return None


def _rank_words(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranges_in_words(ranks)}"
