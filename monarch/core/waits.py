"""The waits of a mesh as a graph: each edge, the rings (deadlocks), and both in words.

Each edge is one wait of one actor, or of the client, for another's answer. Actors that wait alike
are listed together, by ranges of ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from monarch.mesh.ranges import ranges_in_words


class Member(NamedTuple):
    """One actor of a mesh; or the client, whose ``rank`` is -1."""

    name: str
    rank: int = -1

    def __str__(self) -> str:
        return self.name if self.rank < 0 else f"{self.name} {self.rank}"


class WaitEdge(NamedTuple):
    """``waiter`` waits for the answer of ``awaited`` to a call of ``method``."""

    waiter: Member
    awaited: Member
    method: str
    seconds: float = 0.0


def rings(edges: Iterable[WaitEdge]) -> list[list[Member]]:
    """Return each ring of members that wait for each other, once, beginning with its least member.

    Pass only waits that block: a ring of such waits ends only by a timeout.
    """
    nexts: dict[Member, list[Member]] = defaultdict(list)
    for edge in edges:
        nexts[edge.waiter].append(edge.awaited)
    cycles: dict[tuple[Member, ...], None] = {}
    done: set[Member] = set()
    for start in sorted(nexts):
        path: list[Member] = []
        positions: dict[Member, int] = {}
        stack = [(start, iter(nexts[start]))]
        if start in done:
            continue
        positions[start], path = 0, [start]
        while stack:
            member, rest = stack[-1]
            for step in rest:
                if step in positions:
                    ring = path[positions[step] :]
                    least = ring.index(min(ring))
                    cycles[tuple(ring[least:] + ring[:least])] = None
                elif step not in done and step in nexts:
                    positions[step] = len(path)
                    path.append(step)
                    stack.append((step, iter(nexts[step])))
                    break
            else:
                stack.pop()
                path.pop()
                del positions[member]
                done.add(member)
    return [list(ring) for ring in cycles]


def ends(edges: Sequence[WaitEdge]) -> list[Member]:
    """Return the members that do not wait for anybody, but for which others wait: their work delays
    the rest.
    """
    waiters = {edge.waiter for edge in edges}
    return sorted({edge.awaited for edge in edges} - waiters)


def in_lines(edges: Sequence[WaitEdge]) -> list[str]:
    """Return a line for each group of actors of a mesh that wait for the same answer: ``trainers
    4-7 wait 14 s for trainers 3 (step)``. The longest wait comes first.
    """
    by_waiter: dict[tuple[Member, str], list[WaitEdge]] = defaultdict(list)
    for edge in edges:
        by_waiter[edge.waiter, edge.method].append(edge)
    alike: dict[tuple[str, str, tuple[Member, ...]], list[Member]] = defaultdict(list)
    longest: dict[tuple[str, str, tuple[Member, ...]], float] = defaultdict(float)
    for (waiter, method), waits in by_waiter.items():
        key = (waiter.name, method, tuple(sorted({edge.awaited for edge in waits})))
        alike[key].append(waiter)
        longest[key] = max(longest[key], *(edge.seconds for edge in waits))
    lines = []
    for key in sorted(alike, key=lambda key: -longest[key]):
        _, method, awaited = key
        verb = "waits" if len(alike[key]) == 1 else "wait"
        lines.append(
            f"{members_in_words(alike[key])} {verb} {longest[key]:.1f} s for "
            f"{members_in_words(awaited)} ({method})"
        )
    return lines


def members_in_words(members: Iterable[Member]) -> str:
    """Return members as text: ``trainers 0-3, 7 and loaders 1``."""
    ranks: dict[str, list[int]] = defaultdict(list)
    for member in members:
        ranks[member.name].append(member.rank)
    words = [
        name if numbers == [-1] else f"{name} {ranges_in_words(numbers)}"
        for name, numbers in ranks.items()
    ]
    return " and ".join(words)
