"""A reference to actors: their class, their procs, and the shape of the mesh."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from monarch.core.fanout import TreePlace
from monarch.errors import GenerationBehind
from monarch.mesh import Point, Shape
from monarch.runtime.code_states import UNBORN, CodeState, CodeStates, Laggards
from monarch.runtime.held import refers
from monarch.wire.address import ProcAddress, Uid


class MeshRef:
    """The members of an actor mesh, or of a slice of one. Ranks count from 0 in ``procs``."""

    __slots__ = (
        "born",
        "cls",
        "labels",
        "name",
        "place",
        "proc_uids",
        "procs",
        "shape",
        "sizes",
        "uid",
    )

    def __init__(
        self,
        uid: Uid,
        name: str,
        cls: type,
        shape: Shape,
        procs: Sequence[ProcAddress],
        place: TreePlace | None = None,
        born: CodeState = UNBORN,
    ) -> None:
        self.uid = uid
        self.name = name
        self.cls = cls
        self.shape = shape
        self.procs = tuple(procs)
        self.proc_uids = [proc.uid for proc in self.procs]
        #: The names and sizes of the shape's dimensions, as messages have them.
        self.labels = tuple(shape.labels)
        self.sizes = tuple(shape.ndslice.sizes)
        #: The members' place in the tree of their proc mesh, if it has one.
        self.place = place
        #: The code for which the procs were spawned.
        self.born = born

    @property
    def class_name(self) -> str:
        return f"{self.cls.__module__}.{self.cls.__qualname__}"

    def over(self, shape: Shape) -> MeshRef:
        """Return the part of this mesh whose ranks are in ``shape``."""
        index = self.shape.ndslice.index
        chosen = [index(rank) for rank in shape.ndslice]
        place = None if self.place is None else self.place.over(chosen, shape.ndslice.sizes)
        procs = [self.procs[rank] for rank in chosen]
        return MeshRef(
            self.uid, self.name, self.cls, shape, procs=procs, place=place, born=self.born
        )

    def __reduce__(self) -> tuple[Any, ...]:
        state = (self.uid, self.name, self.cls, self.shape, self.procs, self.place)
        return MeshRef, state if self.born == UNBORN else (*state, self.born)


class OwnMeshRef(MeshRef):
    """A reference that the runtime keeps for itself.

    It does not count when the runtime looks whether programs still refer to the procs.
    """

    __slots__ = ()

    def for_programs(self) -> MeshRef:
        """Return a plain ``MeshRef`` to the same mesh, which counts as a program's reference."""
        rebuild, state = self.__reduce__()
        return rebuild(*state)  # type: ignore[no-any-return]


refers(MeshRef, lambda ref: ref.proc_uids)


def select(procs: Sequence[ProcAddress], whole: Shape, part: Shape) -> list[ProcAddress]:
    """Return the members of ``procs`` whose ranks are in ``part``; ``procs`` fill the shape
    ``whole``.
    """
    index = whole.ndslice.index
    return [procs[index(rank)] for rank in part.ndslice]


_MAX_NAMED = 4


def check_undivided(states: CodeStates, mesh: MeshRef, method: str) -> int:
    """Raise ``GenerationBehind`` if some members of ``mesh`` run older code than others.

    Returns the generation of a switch in progress that will divide the members, else 0. A call that
    carries it is refused if it arrives after the switch.
    """
    if states.is_one or len(mesh.procs) == 1:
        return 0
    hosts = {proc.host_uid for proc in mesh.procs}
    behind = states.laggards(hosts, mesh.born)
    if behind is not None:
        raise _refusal(mesh, method, behind)
    return states.crossing(hosts, mesh.born)


def _refusal(mesh: MeshRef, method: str, behind: Laggards) -> GenerationBehind:
    extent = mesh.shape.extent
    who = [
        f"{mesh.name}{Point(rank, extent)}"
        for rank, proc in enumerate(mesh.procs)
        if proc.host_uid in behind.hosts
    ]
    named = ", ".join(who[:_MAX_NAMED])
    more = f" and {len(who) - _MAX_NAMED} more" if len(who) > _MAX_NAMED else ""
    runs = max(state.generation for state in behind.hosts.values())
    why = "a push to others has left it behind"
    return GenerationBehind(named + more, method, runs, behind.wanted.generation, why)
