"""Proc meshes: processes, in a shape, in which actors are spawned."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from monarch.actor import lending
from monarch.actor.actor import Actor
from monarch.actor.actor_mesh import ActorMesh, stop_actors
from monarch.actor.arguments import check_arguments
from monarch.actor.future import Future, promise_of
from monarch.actor.gather import gather, within
from monarch.actor.logs import LogTargets, flush_printed, hosts_of
from monarch.actor.mesh_ref import OwnMeshRef, select
from monarch.actor.spawn_hooks import stand_ins
from monarch.actor.starting_mesh import StartingMesh
from monarch.config import settings
from monarch.core.fanout import Members, Tree, TreePlace
from monarch.core.supervision import ROOT
from monarch.errors import ActorError, SupervisionError
from monarch.mesh import Point, Shape, Slice
from monarch.net.identifiers import new_uid
from monarch.offers import offered
from monarch.runtime import process
from monarch.runtime.answers import Response
from monarch.runtime.cells.endpoint_spec import check_actor_class, is_async_actor
from monarch.runtime.code_states import UNBORN, CodeState
from monarch.runtime.context import qualified_name, running
from monarch.runtime.held import refers
from monarch.runtime.promise import Promise
from monarch.wire import payload
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.by_value import dump_arguments, is_by_value
from monarch.wire.message import Ancestor, InspectProc, ProcReport, SpawnActor, StopProcs
from monarch.wire.unsendable import dump_or_say

if TYPE_CHECKING:
    from monarch.actor.env_report import EnvReport

Self = TypeVar("Self", bound="ProcMesh")

_KILL_SECONDS = 5.0


class _Hosts(Protocol):
    """The host mesh on which procs were spawned. ``HostMesh`` has this method."""

    def _of_rank(self, rank: int) -> Any: ...


def check_name(name: str) -> None:
    """Raise ``ValueError`` for a name that cannot be encoded as text."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"{name!r} is no name: it has surrogates in it, which are no text on their own"
        ) from None


def _no_actor_words(cls: object) -> str:
    if isinstance(cls, Actor):
        name = type(cls).__name__
        return (
            f"this is an object of {name}, and each proc makes its own: give the class, and the "
            f"arguments after it, as in `.spawn('{name.lower()}', {name}, ...)`"
        )
    if not isinstance(cls, type):
        return f"{cls!r} is no class: `.spawn(name, YourActor, ...)`"
    return (
        f"{cls.__qualname__} is no actor: `class {cls.__name__}(Actor)`, with `Actor` of "
        "`monarch.actor` (it must subclass it to be spawned)"
    )


class Ownership:
    """The uid and the members of a mesh of procs, for whoever ends them.

    It does not refer to the mesh, so that the mesh is freed when the program drops it.
    """

    def __init__(self, uid: Uid, procs: Sequence[ProcAddress]) -> None:
        self.uid = uid
        self.procs = procs
        self.is_stopped = False

    def expect_end(self) -> None:
        """Record that the procs are about to end, which is no failure."""
        agent = process.current()
        agent.supervisor.stopped(self.uid)
        agent.collector.forget(self.uid)


class ProcMesh(StartingMesh):
    """A reference to processes. The mesh that ``spawn_procs`` returned owns them; slices do not."""

    _MADE_BY = "`this_host().spawn_procs({'gpus': 2})`, or by other hosts' `spawn_procs`"
    _ELSEWHERE: ClassVar = {
        "spawn_procs": "procs are made on hosts: `this_host().spawn_procs({'gpus': 2})`"
    }

    def __init__(
        self,
        uid: Uid,
        name: str,
        shape: Shape,
        procs: Sequence[ProcAddress],
        *,
        owned: bool = False,
        hosts: _Hosts | None = None,
        num_per_host: int = 1,
        tree: Tree | None = None,
        born: CodeState = UNBORN,
        whole: ProcMesh | None = None,
    ) -> None:
        self._uid = uid
        self._name = name
        self._shape = shape
        self._procs = tuple(procs)
        #: The mesh that this is a slice of; ``None`` for a whole mesh, which ends when dropped.
        self._part_of = whole
        #: The ``Client`` of distributed tensors, of a whole mesh that was activated.
        self._tensor_engine: Any = None
        #: Whether this mesh was spawned here, and is neither a slice nor a received reference.
        self._is_owned = owned
        self._ownership = Ownership(uid, self._procs)
        #: The tree that messages to many hosts take, if there is one.
        self._tree = tree
        #: The hosts that the whole mesh was spawned on.
        self._hosts = hosts
        #: How many procs the whole mesh has on each host.
        self._num_per_host = num_per_host
        #: The code for which the procs were spawned.
        self._born = born

    def _new_with_shape(self, shape: Shape) -> ProcMesh:
        return self._over(shape, select(self._procs, self._shape, shape))

    def _over(self, shape: Shape, procs: Sequence[ProcAddress]) -> ProcMesh:
        whole = self._whole
        return ProcMesh(self._uid, self._name, shape, procs, whole=whole, **self._shared_fields())

    def _shared_fields(self) -> dict[str, Any]:
        """Return the keyword arguments that slices and references have in common with this mesh."""
        return {
            "hosts": self._hosts,
            "num_per_host": self._num_per_host,
            "tree": self._tree,
            "born": self._born,
        }

    @property
    def _whole(self) -> ProcMesh:
        return self._part_of or self

    @property
    def _is_stopped(self) -> bool:
        return self._ownership.is_stopped

    @classmethod
    def from_alloc(cls, alloc: Any, setup: Callable[[], Any] | None = None) -> ProcMesh:
        """Return procs on an allocation of ``monarch.actor.alloc``; the older way to get procs."""
        procs: ProcMesh = alloc._spawn(setup)
        return procs

    @property
    def host_mesh(self) -> Any:
        """Return the host of a mesh of one proc; raises ``NotImplementedError`` for a larger
        mesh."""
        if len(self._procs) != 1 or self._hosts is None:
            raise NotImplementedError("only a mesh of a single proc has one host: slice it first")
        rank = self._shape.ndslice.offset // self._num_per_host
        return self._hosts._of_rank(rank)

    def to_table(self) -> str:
        """Return a text table of where the procs are: rank, coordinates, proc, host."""
        extent = self.extent
        rows = [("rank", *extent, "proc", "host")]
        for rank, proc in enumerate(self._procs):
            point = Point(rank, extent)
            host = proc.host_urls[0] if proc.host_urls else proc.host_uid
            rows.append((str(rank), *map(str, point.values()), proc.uid, host))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join(lines)

    @property
    def _device_mesh(self) -> Any:
        return offered("device_mesh_of")(self)

    def activate(self) -> Any:
        """Run the torch operations of this thread on these procs, from this call on.

        As a context manager, it ends with the block. The results are ``monarch.Tensor``: a handle
        for one tensor in each proc. Both sides need torch.
        """
        return self._device_mesh.activate()

    def rank_tensor(self, dim: str | Sequence[str]) -> Any:
        """Return a distributed tensor whose value in each proc is the proc's rank along ``dim``
        (one dimension or several).
        """
        return self._device_mesh.rank(dim)

    def rank_tensors(self) -> dict[str, Any]:
        """Return ``rank_tensor`` of each dimension, by name."""
        return {dim: self.rank_tensor(dim) for dim in self._labels}

    def spawn(self, name: str, cls: type, *args: Any, **kwargs: Any) -> Any:
        """Make one actor of ``cls`` in each proc, without waiting for it.

        Raises ``ValueError`` for an unsuitable class or name, and ``TypeError`` for constructor
        arguments that do not fit. If an ``__init__`` raises, later calls raise ``SupervisionError``
        and the owner is notified.
        """
        if self._is_stopped:
            raise RuntimeError("`ProcMesh` has already been stopped")
        first: Any = name
        if isinstance(first, type):
            raise TypeError(
                f"spawn takes the name first, then the class: `.spawn("
                f"{first.__name__.lower()!r}, {first.__name__}, ...)`"
            )
        check_name(name)
        cls = stand_ins.get(cls, cls)
        if not (isinstance(cls, type) and issubclass(cls, Actor)):
            raise ValueError(_no_actor_words(cls))
        return self._spawn(new_uid(), name, cls, *args, **kwargs)

    def _spawn(self, uid: Uid, name: str, cls: type, *args: Any, **kwargs: Any) -> ActorMesh[Any]:
        check_actor_class(cls, lambda endpoint: hasattr(ActorMesh, endpoint))
        called, init = f"{cls.__qualname__}()", cls.__init__  # type: ignore[misc]
        if init is not object.__init__:
            check_arguments(init, 1, args, kwargs, called)
        elif args or kwargs:
            raise TypeError(f"{called} takes no arguments")
        lent = lending.LentMessage([proc.uid for proc in self._procs], answers=False)
        dump = functools.partial(payload.dump, (cls, args, kwargs))
        with lent:
            data = dump_or_say(dump, called, init, 1, args=args, kwargs=kwargs)
            data = data.for_many(len(self._procs))
        # Ranks of the new mesh are counted from 0, whatever slice it is spawned on.
        dense = Shape(self._labels, Slice.new_row_major(self._shape.ndslice.sizes))
        place = None
        if self._tree is not None:
            members = Members.of(list(self._ndslice), self._ndslice.sizes)
            place = TreePlace(self._tree, members)
        ref = OwnMeshRef(uid, name, cls, dense, procs=self._procs, place=place, born=self._born)
        agent = process.current()
        agent.remember_imports()
        agent.spawned_on[uid] = _PickledMesh(self)
        owner, ancestors = current_owner()

        def stop_quietly() -> Promise[Any]:
            return promise_of(stop_actors(ref, "its owner has ended"))

        def name_of(rank: int) -> str:
            member = Ancestor(name, ref.class_name, rank, ref.labels, ref.sizes)
            return qualified_name((*ancestors, member))

        agent.supervisor.owned(owner, ref.uid, name, "actor", ref.proc_uids, stop_quietly, name_of)
        is_async = is_async_actor(cls)

        def spawn(rank: int) -> SpawnActor:
            return SpawnActor(
                actor=ref.uid,
                name=name,
                class_name=ref.class_name,
                rank=rank,
                labels=ref.labels,
                sizes=ref.sizes,
                owner=agent.node.address,
                owner_actor=owner,
                is_async=is_async,
                ancestors=ancestors,
            )

        by_value = is_by_value(cls)
        arguments = functools.partial(dump_arguments, args, kwargs) if by_value else None
        with agent.node.casting:
            agent.kept_spawns.keep(
                uid, name, ref.proc_uids, spawn, data, arguments, is_lent=bool(lent.loans)
            )
            if place is not None:
                route = agent.node.trees.route(place.tree)
                route.send(place.members, spawn(0), data.data, data.buffers)
            else:
                for rank, proc in enumerate(ref.procs):
                    agent.node.send(proc, spawn(rank), data.data, data.buffers)
        return ActorMesh(ref.for_programs())

    @property
    def initialized(self) -> Future[bool]:
        """Return a future that is True once every proc is up.

        It raises ``SupervisionError`` if a proc did not start, ``ActorError`` if its bootstrap
        raised.
        """
        node = process.current().node
        outcomes = [node.ask(proc, InspectProc()) for proc in self._procs]
        return gather(outcomes, self._check_up).then(lambda _: True)

    def _check_up(self, outcome: Response[ProcReport]) -> None:
        if outcome.error:
            agent = process.current()
            if running.get() is None:
                uids = [proc.uid for proc in self._procs]
                agent.heard_of([uid for uid in uids if agent.node.failure_of(uid) is not None])
            raise SupervisionError(f"a proc of {self._name} is not there: {outcome.error}")
        spoiled = outcome.answer.spoiled
        if spoiled:
            message = f"A proc of {self._name} cannot be used."
            raise ActorError(RuntimeError(spoiled), message, spoiled)

    def stop(self, reason: str = "stopped by client") -> Future[None]:
        """End the processes; their actors run ``__cleanup__`` first.

        Raises ``ValueError`` on a slice or a received reference: only the owner may stop a mesh.
        """
        if not self._is_owned:
            raise ValueError("ProcMesh is not owned; must be stopped by an owner")
        if self._tensor_engine is not None:
            self._tensor_engine.close()
        self._ownership.is_stopped = True
        self._ownership.expect_end()
        return stop_procs(self._procs, reason).then(lambda _: flush_printed())

    def env(self, *patterns: str, at_start: bool = False) -> EnvReport:
        """Return the environment variables of these procs, as in ``procs.env("NCCL_*", "HOME")``.

        ``at_start`` returns the values at the start of each process. Busy actors do not delay the
        answer; a proc that does not answer within 5 s is among the report's ``silent``.
        """
        from monarch.actor.env_report import ask_environment  # Few programs ask.

        return ask_environment(self._procs, patterns, at_start=at_start)

    def set_env(self, values: Mapping[str, str | None]) -> None:
        """Set variables of these procs while they run; ``None`` unsets a variable.

        Raises ``TypeError`` for a value that is not text, ``SupervisionError`` if a proc is gone or
        does not answer.
        """
        from monarch.actor.env_report import change_environment_of  # Few programs do.

        change_environment_of(self._procs, values)

    def view(self) -> Any:
        """Show in a notebook what these procs do, updated once a second; make it the last line of a
        cell.

        Live updates need the extra ``notebook``; without it, the view shows the present moment.
        """
        return offered("MeshView")(self._procs, repr(self))

    def _sync_hosts(self) -> list[ProcAddress]:
        return hosts_of(self._procs)

    def _log_targets(self) -> LogTargets:
        return LogTargets(hosts_of(self._procs), self._procs, self._uid)

    async def __aenter__(self: Self) -> Self:
        if self._is_stopped:
            raise RuntimeError("`ProcMesh` has already been stopped")
        return self

    async def __aexit__(self, *error: object) -> None:
        if not self._is_stopped:
            await self.stop()

    def __reduce__(self) -> tuple[Any, ...]:
        fields = self._shared_fields()
        return _received, (self._uid, self._name, self._shape, self._procs, fields)

    def _repr_html_(self) -> str:
        from monarch.actor.mesh_html import html_of  # In notebooks only.

        return html_of(repr(self), self._procs)

    def __repr__(self) -> str:
        return f"ProcMesh({self._name!r}, {self.extent})"


class _PickledMesh:
    """A mesh in its pickled form, for processes that ask on which procs an actor was spawned.

    It does not refer to the mesh, so that the mesh is freed when the program drops it.
    """

    def __init__(self, mesh: ProcMesh) -> None:
        self._reduced = mesh.__reduce__()

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reduced


refers(ProcMesh, lambda mesh: [proc.uid for proc in mesh._procs])


def _received(
    uid: Uid, name: str, shape: Shape, procs: Sequence[ProcAddress], fields: dict[str, Any]
) -> ProcMesh:
    return ProcMesh(uid, name, shape, procs, **fields)


def current_owner() -> tuple[Uid, tuple[Ancestor, ...]]:
    """Return the owner of actors that are spawned here, and the path to it.

    The owner is the running actor, or else the root.
    """
    actor = running.get()
    if actor is None or actor.instance is None:
        return ROOT, ()
    return actor.record.uid, actor.record.path


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
        late = (
            f"procs on {members[0].host_urls} have not ended, though they were killed: a process "
            "that the kernel holds (look for state D in ps) cannot be"
        )
        # By way of the tree that the order to make them took, if there is one, to come after it.
        via = members[0] if node.trees.leads_to(members[0].uid) else None
        outcome = node.ask(host, StopProcs(uids, reason, grace), via=via)
        outcomes.append(within(node.loop, outcome, grace + _KILL_SECONDS, late))
    return gather(outcomes, _check_ended)


def _check_ended(outcome: Response[None]) -> None:
    if outcome.error and not outcome.is_down:
        raise SupervisionError(outcome.error)
