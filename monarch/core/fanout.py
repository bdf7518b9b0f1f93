"""Chooses the path of a message to many hosts: a tree, and the members in each branch.

A **tree** spans the hosts of a proc mesh, in their order. A process that holds a part of that
order, a range of hosts, cuts it into as many pieces as the degree allows. It hands each piece to
the first host in it, which does the same with the rest of its own. The sender holds the whole. So a
route depends on nothing but the tree, and one sender's messages to one host always take the same
route, which keeps them in order.

A dead host cannot forward: the process above it in the tree forwards in its place, and no other
route changes.

**Members** are positions in the mesh, in the order of their ranks in the addressed mesh: the mesh
itself, a slice, or a mesh of actors on a slice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from monarch.mesh import Slice
from monarch.wire.address import ProcAddress, Uid

Wire = tuple[tuple[int, tuple[int, ...], tuple[int, ...]], ...]
"""Members in a message: for each part an offset, sizes and strides."""


class Tree(NamedTuple):
    """The hosts of a proc mesh with ``per_host`` procs on each, along which messages are forwarded.

    ``degree`` is the number of branches at a host.
    """

    mesh: Uid
    hosts: tuple[ProcAddress, ...]
    per_host: int
    degree: int

    @property
    def everybody(self) -> Members:
        return Members([Slice.new_row_major([len(self.hosts) * self.per_host])])

    def below(self, host: int, dead: Sequence[int] = (), first_degree: int = 0) -> list[int]:
        """Return the hosts to which ``host`` forwards messages.

        ``first_degree``: the number of branches at the sender, if that differs from ``degree``.
        """
        num = len(self.hosts)
        return [
            other
            for other in range(num)
            if other not in dead
            and host in heads_above(other, num, self.degree, dead, first_degree)
        ]


def proc_uid(mesh: Uid, position: int) -> Uid:
    """Return the uid of the proc at ``position`` in a mesh with a tree."""
    return f"{mesh}.{position}"


def place_of(uid: Uid) -> tuple[Uid, int] | None:
    """Return the mesh and the position in a uid from ``proc_uid``; ``None`` for other uids."""
    mesh, dot, position = uid.partition(".")
    return (mesh, int(position)) if dot and position.isdecimal() else None


class Branch(NamedTuple):
    """A range of hosts. The first host gets the message and forwards it to the others."""

    start: int
    stop: int


def branches(start: int, stop: int, degree: int, dead: Sequence[int] = ()) -> list[Branch]:
    """Divide a range of hosts into branches, and return them. The first host of each branch is not
    among the ``dead``.
    """
    parts: list[Branch] = []
    size, rest = divmod(stop - start, degree)
    while start < stop:
        end = start + size + (rest > 0)
        rest -= 1
        if start in dead:
            parts.extend(branches(start + 1, end, degree, dead))
        else:
            parts.append(Branch(start, end))
        start = end
    return parts


def heads_above(
    host: int, num_hosts: int, degree: int, dead: Sequence[int] = (), first_degree: int = 0
) -> list[int]:
    """Return the hosts that forward messages to ``host``, in order from the sender."""
    above: list[int] = []
    start, stop = 0, num_hosts
    while True:
        wide = degree if above else first_degree or degree
        start, stop = next(b for b in branches(start, stop, wide, dead) if b[0] <= host < b[1])
        if start == host:
            return above
        above.append(start)
        start += 1


def depth(num_hosts: int, degree: int) -> int:
    """Return the number of hops from the sender to the farthest host."""
    longest = 0
    for start, stop in branches(0, num_hosts, degree):
        longest = max(longest, 1 + (depth(stop - start - 1, degree) if stop - start > 1 else 0))
        if start:
            break  # The first piece is as long as any; the second may be one shorter.
    return longest


class Members:
    """Positions of members in a mesh: the first is that of rank 0 of the receivers, and so on."""

    __slots__ = ("parts", "size")

    def __init__(self, parts: Sequence[Slice]) -> None:
        self.parts = tuple(parts)
        self.size = sum(map(len, self.parts))

    @classmethod
    def of(cls, places: Sequence[int], sizes: Sequence[int] = ()) -> Members:
        """Return the members at ``places``, in the order of their ranks. If the positions are
        evenly spaced in the shape ``sizes``, they take little memory.
        """
        even = _even(places, sizes)
        return cls([even] if even is not None else Slice.from_list(places))

    @classmethod
    def from_wire(cls, wire: Wire) -> Members:
        return cls([Slice(offset=o, sizes=s, strides=t) for o, s, t in wire])

    def to_wire(self) -> Wire:
        return tuple((p.offset, tuple(p.sizes), tuple(p.strides)) for p in self.parts)

    def __reduce__(self) -> tuple[object, ...]:
        return Members, (self.parts,)

    def __iter__(self) -> Iterator[int]:
        for part in self.parts:
            yield from part

    def count(self, start: int, stop: int) -> int:
        """Return how many of these members have positions from ``start`` up to, not including,
        ``stop``.
        """
        return sum(
            _count(part.offset, list(zip(part.sizes, part.strides, strict=True)), start, stop)
            for part in self.parts
        )

    def within(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return (position, rank) of each member whose position is from ``start`` up to, not
        including, ``stop``.

        Takes time for each position, so the range should be short.
        """
        positions = []
        for position in range(start, stop):
            base = 0
            for part in self.parts:
                if position in part:
                    positions.append((position, base + part.index(position)))
                    break
                base += len(part)
        return positions


class TreePlace:
    """The positions, in a ``tree``, of the ``members`` of an actor mesh or a slice of it.

    ``whole`` has the positions of the whole actor mesh; None: ``members`` are the whole mesh.
    """

    __slots__ = ("members", "tree", "whole")

    def __init__(self, tree: Tree, members: Members, whole: Members | None = None) -> None:
        self.tree = tree
        self.members = members
        self.whole = whole or members

    def over(self, ranks: Sequence[int], sizes: Sequence[int]) -> TreePlace:
        """Return the part with the members of these ranks."""
        places = list(self.members)
        return TreePlace(self.tree, Members.of([places[rank] for rank in ranks], sizes), self.whole)

    def at(self, rank: int) -> Members:
        """Return the member of one rank."""
        for part in self.members.parts:
            if rank < len(part):
                return Members([Slice(offset=part.get(rank), sizes=[], strides=[])])
            rank -= len(part)
        raise IndexError(rank)

    def __reduce__(self) -> tuple[object, ...]:
        return TreePlace, (self.tree, self.members, self.whole)


def _even(places: Sequence[int], sizes: Sequence[int]) -> Slice | None:
    """Return a slice that has the shape ``sizes`` and exactly these positions, in this order; None
    if there is no such slice.
    """
    shape = Slice.new_row_major(sizes)
    if not places or len(shape) != len(places):
        return None
    unit = [shape.strides[dim] if size > 1 else 0 for dim, size in enumerate(sizes)]
    strides = [places[step] - places[0] for step in unit]
    if min(strides, default=0) < 0:
        return None
    try:
        even = Slice(offset=places[0], sizes=sizes, strides=strides)
    except ValueError:
        return None
    return even if all(a == b for a, b in zip(even, places, strict=True)) else None


def _count(offset: int, dims: list[tuple[int, int]], start: int, stop: int) -> int:
    total, last = 1, offset
    for size, stride in dims:
        total *= size
        last += (size - 1) * stride
    if not total or last < start or offset >= stop:
        return 0
    if start <= offset and last < stop:
        return total
    # Along the longest stride, all but the parts at the ends lie wholly inside or outside.
    longest = max(range(len(dims)), key=lambda dim: dims[dim][1] * (dims[dim][0] > 1))
    size, stride = dims[longest]
    rest = dims[:longest] + dims[longest + 1 :]
    inner = last - offset - (size - 1) * stride
    first_whole = max(0, -((offset - start) // stride))
    end_whole = min(size, (stop - 1 - inner - offset) // stride + 1)
    num_whole = max(0, end_whole - first_whole)
    total_inside = num_whole * (total // size)
    first_part = max(0, -((offset + inner - start) // stride))
    end_part = min(size, (stop - 1 - offset) // stride + 1)
    for step in range(first_part, end_part):
        if not (num_whole and first_whole <= step < end_whole):
            total_inside += _count(offset + step * stride, rest, start, stop)
    return total_inside
