"""The running actor, and the rank that its message was sent to."""

from __future__ import annotations

from typing import NamedTuple

from monarch.actor.instance import Instance
from monarch.mesh import Extent, Point
from monarch.runtime import process
from monarch.runtime.cells import actor_log
from monarch.runtime.context import running


class Context(NamedTuple):
    """The actor that runs now, and its rank.

    ``message_rank`` is its rank in the mesh or slice to which the current message was sent.
    """

    actor_instance: Instance
    message_rank: Point

    @property
    def generation(self) -> int:
        """Return the generation of the workspace whose code this process runs; 0 before the
        first."""
        return process.current().generation


def context() -> Context:
    """Return the context of the running actor; outside of actors, that of the client."""
    actor = running.get()
    if actor is None:
        instance = Instance(None)
        if process.current().is_root:
            actor_log.name_the_client()
        return Context(instance, instance.rank)
    return Context(Instance(actor.record), Point(actor.rank, Extent(actor.labels, actor.sizes)))


def current_rank() -> Point:
    """Return this member's rank in the mesh or slice to which the current message was sent."""
    return context().message_rank


def current_size() -> dict[str, int]:
    """Return the sizes of the mesh or slice to which the current message was sent."""
    return dict(context().message_rank.extent)


def current_actor_name() -> str:
    """Return a unique name of the running actor: ``str()`` of its address."""
    return str(context().actor_instance.actor_id)
