"""Actors of one class, one in each proc of a mesh."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, TypeVar

from monarch.actor.endpoint import Endpoint, NotAnEndpoint
from monarch.actor.future import Future, make_future
from monarch.actor.gather import gather
from monarch.actor.mesh_ref import MeshRef
from monarch.mesh import MeshTrait, Shape, Slice
from monarch.runtime import process
from monarch.runtime.endpoint_spec import EndpointSpec
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.message import PING, StopActor

__all__ = ["ActorMesh"]

Self = TypeVar("Self", bound="ActorMesh")


class ActorMesh(MeshTrait):
    """A reference to actors: call their endpoints, slice it, send it to anybody.

    Only the mesh that ``spawn`` returned, in the process that called it, owns the actors;
    slices and received copies refer to the same ones.
    """

    def __init__(self, ref: MeshRef) -> None:
        self._ref = ref

    @property
    def _ndslice(self) -> Slice:
        return self._ref.shape.ndslice

    @property
    def _labels(self) -> Sequence[str]:
        return self._ref.labels

    def _new_with_shape(self, shape: Shape) -> ActorMesh:
        return ActorMesh(self._ref.over(shape))

    def __getattr__(self, name: str) -> Any:
        # Looked up in the class each time: a reload may have added it a moment ago.
        if name.startswith("__") or name == "_ref":
            raise AttributeError(name)
        for base in self._ref.cls.__mro__:
            if name in vars(base):
                found = vars(base)[name]
                spec = getattr(found, "endpoint_spec", None)
                if isinstance(spec, EndpointSpec):
                    return Endpoint(self._ref, name, spec)
                if callable(found):
                    return NotAnEndpoint(self._ref, name, found)
        raise AttributeError(f"{self._ref.cls.__qualname__} has no endpoint {name!r}")

    @property
    def initialized(self) -> Future[bool]:
        """True once every member's ``__init__`` has returned."""
        answers = Endpoint[[], None](self._ref, PING, EndpointSpec(_ping)).call()
        return make_future(answers._promise, lambda raw: answers._resolve(raw) is not None)

    def stop(self, reason: str = "stopped by client") -> Future[None]:
        """End the actors after what was sent to them before; each runs its ``__cleanup__``."""
        process.current().supervisor.members_stopped(self._ref.uid, self._ref.proc_uids)
        return stop_actors(self._ref.uid, self._ref.procs, reason)

    def __await__(self: Self) -> Generator[Any, None, Self]:
        """Wait until they are up; the older spelling of a mesh that is usable at once."""
        yield from self.initialized.__await__()
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return ActorMesh, (self._ref,)

    def __repr__(self) -> str:
        return f"ActorMesh({self._ref.name!r}, {self.extent})"


def _ping(self: object) -> None: ...


def stop_actors(uid: Uid, procs: Sequence[ProcAddress], reason: str) -> Future[None]:
    """Ask the members of an actor mesh to end. Those in dead procs count as ended."""
    node = process.current().node
    outcomes = [
        node.request(proc, lambda port: StopActor(uid, reason, port, node.uid)) for proc in procs
    ]
    return gather(outcomes, lambda outcome: None)
