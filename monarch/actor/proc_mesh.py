"""Processes, in a shape, that actors are spawned in."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from monarch.actor.actor import Actor
from monarch.actor.actor_mesh import ActorMesh, stop_actors
from monarch.actor.endpoint import check_arguments
from monarch.actor.future import Future, make_future
from monarch.actor.gather import gather
from monarch.actor.mesh_ref import MeshRef, select
from monarch.config import settings
from monarch.core.supervision import ROOT
from monarch.errors import SupervisionError
from monarch.mesh import MeshTrait, Shape, Slice
from monarch.runtime import process
from monarch.runtime.client_agent import ClientAgent
from monarch.runtime.context import running
from monarch.runtime.endpoint_spec import check_actor_class, is_async_actor
from monarch.runtime.node import Outcome
from monarch.runtime.promise import Promise
from monarch.wire import payload
from monarch.wire.address import ProcAddress, Uid, new_uid
from monarch.wire.message import Inspect, SpawnActor, StopProcs

if TYPE_CHECKING:
    from monarch_sync import SyncReport, Workspace

__all__ = ["ProcMesh"]

Self = TypeVar("Self", bound="ProcMesh")


class ProcMesh(MeshTrait):
    """A reference to processes. What ``spawn_procs`` returned owns them; slices do not."""

    def __init__(
        self, uid: Uid, name: str, shape: Shape, procs: Sequence[ProcAddress], owned: bool = False
    ) -> None:
        self._uid = uid
        self._name = name
        self._shape = shape
        self._procs = tuple(procs)
        self._is_owned = owned
        self._is_stopped = False

    @property
    def _ndslice(self) -> Slice:
        return self._shape.ndslice

    @property
    def _labels(self) -> Sequence[str]:
        return self._shape.labels

    def _new_with_shape(self, shape: Shape) -> ProcMesh:
        return ProcMesh(self._uid, self._name, shape, select(self._procs, self._shape, shape))

    def spawn(self, name: str, cls: type, *args: Any, **kwargs: Any) -> Any:
        """Make one actor of ``cls`` in each proc, without waiting for it.

        Raises ``ValueError`` for a class that cannot be an actor and ``TypeError`` for
        constructor arguments that do not fit. An ``__init__`` that raises makes later calls
        raise ``SupervisionError``, and is reported to the owner.
        """
        if not (isinstance(cls, type) and issubclass(cls, Actor)):
            raise ValueError(f"{cls} must subclass monarch.service.Actor to spawn it.")
        check_actor_class(cls, lambda endpoint: hasattr(ActorMesh, endpoint))
        if "__init__" in {name for base in cls.__mro__[:-1] for name in vars(base)}:
            check_arguments(cls.__init__, 1, args, kwargs)
        elif args or kwargs:
            raise TypeError(f"{cls.__qualname__}() takes no arguments")
        data = payload.dump((cls, args, kwargs))
        # Ranks of the new mesh are counted from 0, whatever slice it is spawned on.
        dense = Shape(self._labels, Slice.new_row_major(self._shape.ndslice.sizes))
        ref = MeshRef(new_uid(), name, cls, dense, self._procs)
        agent = process.current()
        owner, creator = current_owner()
        agent.supervisor.owned(
            owner, ref.uid, name, "actor", ref.proc_uids,
            lambda: _stop_quietly(ref),
        )  # fmt: skip
        is_async = is_async_actor(cls)
        with agent.node.casting:
            for rank, proc in enumerate(ref.procs):
                spawn = SpawnActor(
                    ref.uid, name, ref.class_name, rank, ref.labels, ref.sizes,
                    agent.node.address, owner, is_async, creator,
                )  # fmt: skip
                agent.node.send(proc, spawn, data.data, data.buffers)
        return ActorMesh(ref)

    @property
    def initialized(self) -> Future[bool]:
        """True once every proc is up; raises ``SupervisionError`` if one never came up."""
        node = process.current().node
        outcomes = [
            node.request(proc, lambda port: Inspect(port, node.uid)) for proc in self._procs
        ]
        done = gather(outcomes, self._check_up)
        return make_future(done._promise, lambda value: done._resolve(value) is None)

    def _check_up(self, outcome: Outcome) -> None:
        if outcome.error:
            raise SupervisionError(f"a proc of {self._name} is not there: {outcome.error}")

    def stop(self, reason: str = "stopped by client") -> Future[None]:
        """End the processes; their actors run ``__cleanup__`` first.

        Raises ``ValueError`` on a slice or a received reference: only the owner may.
        """
        if not self._is_owned:
            raise ValueError("ProcMesh is not owned; must be stopped by an owner")
        self._is_stopped = True
        process.current().supervisor.stopped(self._uid)
        return stop_procs(self._procs, reason)

    async def sync_workspace(
        self,
        workspace: Workspace,
        conda: bool = False,
        auto_reload: bool = True,
        *,
        reload: str = "auto",
    ) -> SyncReport:
        """Bring ``workspace`` to the machines of this mesh, and its code into live processes.

        All procs that this program owns there switch between the same two messages, or none
        does; see ``monarch_sync.SyncReport`` for what is told.
        """
        # Imported when used: a program without a workspace need not pay for it.
        from monarch.actor.sync import sync_procs

        return await sync_procs(self._procs, workspace, reload if auto_reload else "off")

    async def logging_option(
        self,
        stream_to_client: bool = True,
        aggregate_window_sec: int | None = 3,
        level: int = logging.INFO,
    ) -> None:
        """Whether the procs' output is printed here (it is by default)."""
        if not 0 <= level <= 255:
            raise ValueError(f"a log level lies between 0 and 255, not at {level}")
        if aggregate_window_sec is not None and not stream_to_client:
            raise RuntimeError("cannot set aggregate window without streaming to client")
        agent = process.current()
        if isinstance(agent, ClientAgent):
            agent.printer.is_enabled = stream_to_client

    async def __aenter__(self: Self) -> Self:
        if self._is_stopped:
            raise RuntimeError("`ProcMesh` has already been stopped")
        return self

    async def __aexit__(self, *error: object) -> None:
        if not self._is_stopped:
            await self.stop()

    def __await__(self: Self) -> Generator[Any, None, Self]:
        """Wait until the procs are up; the older spelling of a mesh that is usable at once."""
        yield from self.initialized.__await__()
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return ProcMesh, (self._uid, self._name, self._shape, self._procs)

    def __repr__(self) -> str:
        return f"ProcMesh({self._name!r}, {self.extent})"


def current_owner() -> tuple[Uid, str]:
    """Who owns what is spawned here: the running actor, or the root; with the path to it."""
    now = running.get()
    if now is None:
        return ROOT, "<root>"
    record = now.record
    return record.uid, f"{record.creator}.<{record.class_name} {record.name} {record.rank}>"


def stop_procs(procs: Sequence[ProcAddress], reason: str) -> Future[None]:
    """Ask the host agents of ``procs`` to end them."""
    node = process.current().node
    by_host: dict[Uid, list[ProcAddress]] = {}
    for proc in procs:
        by_host.setdefault(proc.host_uid, []).append(proc)
    grace = settings().stop_timeout_seconds
    outcomes = []
    for uid, members in by_host.items():
        host = ProcAddress(uid, members[0].host_urls, members[0].machine)
        uids = tuple(proc.uid for proc in members)
        make = _stop_message(uids, reason, grace, node.uid)
        outcomes.append(node.request(host, make))
    return gather(outcomes, lambda outcome: None)


def _stop_message(
    uids: tuple[Uid, ...], reason: str, grace: float, sender: Uid
) -> Callable[[int], StopProcs]:
    return lambda port: StopProcs(uids, reason, grace, port, sender)


def _stop_quietly(ref: MeshRef) -> Promise[Any]:
    return stop_actors(ref.uid, ref.procs, "its owner has ended")._promise
