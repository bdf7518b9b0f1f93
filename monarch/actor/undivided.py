"""A call to many must meet one code, or none."""

from __future__ import annotations

from monarch.actor.mesh_ref import MeshRef
from monarch.errors import GenerationBehind
from monarch.mesh import Point
from monarch.runtime.code_states import CodeStates, Laggards

__all__ = ["check_undivided"]

_MAX_NAMED = 4


def check_undivided(states: CodeStates, mesh: MeshRef, method: str) -> int:
    """Raise ``GenerationBehind`` where members of ``mesh`` run older code than others do.

    Gives the generation that is being switched to at this moment if it will come between them,
    else 0: a call that is on its way then is refused where it arrives too late.
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
