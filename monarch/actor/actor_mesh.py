"""Actors of one class, one in each proc of a mesh."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Generic, TypeVar

from monarch.actor.actor import OfRay
from monarch.actor.endpoint import Endpoint, NotAnEndpoint
from monarch.actor.future import Future
from monarch.actor.gather import gather, within
from monarch.actor.logs import LoggedMesh, LogTargets, hosts_of
from monarch.actor.mesh_ref import MeshRef
from monarch.actor.syncable import Syncable
from monarch.config import settings
from monarch.errors import SupervisionError
from monarch.mesh import MeshTrait, Shape, Slice
from monarch.runtime import process
from monarch.runtime.answers import Response
from monarch.runtime.cells.endpoint_spec import EndpointSpec, endpoint_specs
from monarch.wire.address import ProcAddress
from monarch.wire.message import PING, StopActor

Self = TypeVar("Self", bound="ActorMesh[Any]")
T = TypeVar("T")

_CUT_OFF_SECONDS = 1.0


class ActorMesh(Syncable, LoggedMesh, MeshTrait, Generic[T]):
    """A reference to actors: call their endpoints, slice it, send it anywhere.

    Only the mesh that ``spawn`` returned, in the process that called it, owns the actors. Slices
    and copies in other processes refer to the same actors, and do not own them.
    """

    def __init__(self, ref: MeshRef) -> None:
        if not isinstance(ref, MeshRef):
            raise TypeError(
                "an ActorMesh is made by `procs.spawn('name', YourActor, ...)`, not by hand"
            )
        self._ref = ref

    @property
    def _ndslice(self) -> Slice:
        return self._ref.shape.ndslice

    @property
    def _labels(self) -> Sequence[str]:
        return self._ref.labels

    def _new_with_shape(self, shape: Shape) -> ActorMesh[T]:
        return ActorMesh(self._ref.over(shape))

    def __getattr__(self, name: str) -> Any:
        # Looked up in the class each time: a reload may have added it.
        if name.startswith("__") or name == "_ref":
            raise AttributeError(name)
        for base in self._ref.cls.__mro__:
            if name in vars(base):
                attribute = vars(base)[name]
                spec = getattr(attribute, "endpoint_spec", None)
                if isinstance(spec, EndpointSpec):
                    return Endpoint(self._ref, name, spec)
                if callable(attribute) and not isinstance(attribute, OfRay):
                    return NotAnEndpoint(self._ref, name, attribute)
        if name == "get":
            return self._get  # Unless the actors have a `get` of their own, as many do.
        raise AttributeError(_no_endpoint(self._ref.cls, name))

    @property
    def initialized(self) -> Future[None]:
        """Return a future that is done once every member's ``__init__`` has returned.

        It raises the error of an ``__init__`` that failed.
        """
        answers = Endpoint[[], None](self._ref, PING, EndpointSpec(_ping)).call()
        return answers.then(lambda _: None)

    def stop(self, reason: str = "stopped by client") -> Future[None]:
        """End the actors when they have handled all earlier messages. Each runs ``__cleanup__``."""
        agent = process.current()
        if agent.supervisor.members_stopped(self._ref.uid, self._ref.proc_uids):
            agent.forget_mesh(self._ref.uid)
        return stop_actors(self._ref, reason)

    def upgrade(self, new: type) -> Future[None]:
        """Give live actors a new version of a class that came from a script or notebook.

        For classes that are sent whole (of ``__main__``, or made in functions); classes and
        functions imported from a file reload with ``sync_workspace``. All members switch between
        the same two messages of this process, or none does: they keep their state, run the new
        methods, and ``__reload__`` if that is defined. References to the mesh know the new
        endpoints, and actors of either class that are spawned from then on have the new code. The
        script's globals that the methods read come with them, as they are now. On a slice only its
        members change.

        Raises ``ValueError`` for another class, or one that is imported; the future raises
        ``ReloadRefused`` if a member cannot take it, as when ``__slots__`` differ.
        """
        # Imported when used: most programs never do.
        from monarch.actor.upgrade import upgrade

        return upgrade(self._ref, new, lambda name: hasattr(ActorMesh, name), self.initialized)

    def _sync_hosts(self) -> list[ProcAddress]:
        return hosts_of(self._ref.procs)

    def _log_targets(self) -> LogTargets:
        return LogTargets(hosts_of(self._ref.procs), self._ref.procs, self._ref.uid)

    def __await__(self: Self) -> Generator[Any, None, Self]:
        """Wait until the actors are up, and return this mesh.

        Nobody needs it: a mesh can be used at once. Older programs await it.
        """
        yield from self.initialized.__await__()
        return self

    def _get(self: Self, timeout: float | None = None) -> Self:
        self.initialized.get(timeout)
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return ActorMesh, (self._ref,)

    def _repr_html_(self) -> str:
        from monarch.actor.mesh_html import html_of  # In notebooks only.

        return html_of(repr(self), self._ref.procs)

    def __repr__(self) -> str:
        return f"ActorMesh({self._ref.name!r}, {self.extent})"


def _no_endpoint(cls: type, name: str) -> str:
    import difflib  # For mistakes only.

    names = sorted(endpoint_specs(cls))
    near = difflib.get_close_matches(name, names, 1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    others = f"It has {', '.join(names)}." if names else "It has none: mark methods with @endpoint."
    return f"{cls.__qualname__} has no endpoint {name!r}{hint} {others}"


def _ping(self: object) -> None: ...


def stop_actors(ref: MeshRef, reason: str) -> Future[None]:
    """Ask the members of an actor mesh to end. Members in dead procs count as ended.

    After ``stop_timeout_seconds`` a member is cut off: its current coroutine is cancelled, and an
    ``__init__`` that has not returned is abandoned with a warning. Raises ``SupervisionError`` if a
    ``__cleanup__`` raised, or if a member runs code that cannot be cancelled.
    """
    node = process.current().node
    if ref.place is not None:
        node.trees.route(ref.place.tree)
    seconds = settings().stop_timeout_seconds
    outcomes = []
    for rank, proc in enumerate(ref.procs):
        outcome = node.ask(proc, StopActor(ref.uid, reason, seconds))
        node.outboxes.behind_fence.sent([proc.uid])
        late = (
            f"rank {rank} has not stopped within {seconds:g} s: it is still busy with what it was "
            "sent before, and stops after that; stop its procs to end it now"
        )
        outcomes.append(within(node.loop, outcome, seconds + _CUT_OFF_SECONDS, late))

    def check(outcome: Response[None]) -> None:
        if outcome.error and not outcome.is_down:
            raise SupervisionError(f"{ref.name} did not stop as it should: {outcome.error}")

    return gather(outcomes, check)
