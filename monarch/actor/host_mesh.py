"""Machines, in a shape, that procs are spawned on."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from monarch.actor.bootstrap_command import BootstrapCommand, default_bootstrap_cmd
from monarch.actor.future import Future, make_future
from monarch.actor.gather import gather
from monarch.actor.logs import DEFAULT_WINDOW, set_logging
from monarch.actor.proc_mesh import ProcMesh, current_owner, stop_procs
from monarch.config import inherited_config, settings
from monarch.core.fanout import Tree, proc_uid
from monarch.errors import MonarchError
from monarch.mesh import Extent, MeshTrait, Point, Region, Shape, Slice
from monarch.runtime import process
from monarch.runtime.answers import Outcome
from monarch.runtime.binding import check_binding
from monarch.runtime.client_agent import ClientAgent
from monarch.runtime.proc_agent import ProcAgent
from monarch.runtime.promise import Promise
from monarch.wire import payload
from monarch.wire.address import ProcAddress, Uid, new_uid
from monarch.wire.message import Command, Preload, ProcDown, ProcSpec, Shutdown, SpawnProcs

if TYPE_CHECKING:
    from monarch_sync import SyncReport, Workspace

__all__ = ["Host", "HostMesh", "this_host", "this_proc"]

Self = TypeVar("Self", bound="HostMesh")


class Host(NamedTuple):
    """One machine: its agent, and the URL that we attached to, where we did."""

    address: ProcAddress
    url: str = ""


class HostMesh(MeshTrait):
    """A reference to host agents. What a job or ``attach_to_workers`` made owns them."""

    def __init__(
        self,
        name: str,
        shape: Shape,
        hosts: Sequence[Host],
        owned: bool = False,
        command: Command | None = None,
    ) -> None:
        self._name = name
        self._shape = shape
        self._hosts = tuple(hosts)
        self._is_owned = owned
        self._command = command
        self._is_shut_down = False
        self._spawned: list[ProcMesh] = []

    @property
    def _ndslice(self) -> Slice:
        return self._shape.ndslice

    @property
    def _labels(self) -> Sequence[str]:
        return self._shape.labels

    @property
    def region(self) -> Region:
        return self._shape.region

    def _new_with_shape(self, shape: Shape) -> HostMesh:
        index = self._shape.ndslice.index
        hosts = [self._hosts[index(rank)] for rank in shape.ndslice]
        return HostMesh(self._name, shape, hosts, command=self._command)

    def _of_rank(self, rank: int) -> HostMesh:
        """One host, by its rank among these."""
        base = self._shape.ndslice.get(rank)
        one = Shape([], Slice(offset=base, sizes=[], strides=[]))
        return HostMesh(self._name, one, [self._hosts[rank]], command=self._command)

    def spawn_procs(
        self,
        per_host: dict[str, int] | None = None,
        bootstrap: Callable[[], Any] | None = None,
        name: str | None = None,
        proc_bind: Sequence[dict[str, str]] | None = None,
        bootstrap_command: BootstrapCommand | Callable[[Point], BootstrapCommand] | None = None,
        *,
        env: dict[str, str] | None = None,
        preload: Sequence[str] = (),
    ) -> ProcMesh:
        """Make procs on each host, without waiting for them.

        The mesh has the hosts' dimensions, then those of ``per_host``.

        ``bootstrap``, a function or a coroutine function, runs in each proc before anything else
        does; if it raises, actors there fail with it, as if by their ``__init__``. ``proc_bind``
        says for each proc of a host which CPUs and memory it may use: ``cpus`` or ``physcpubind``
        ("0-3,8"), ``cpunodebind``, ``membind``. With ``bootstrap_command`` (one, or a function
        that gives one for each point) procs are started by that program, and not forked from a
        template.

        ``env`` is added to the environment of all. ``preload`` names heavy modules that the
        procs find imported already (``["torch"]``): the first spawn that asks for them pays for
        the import, later ones do not.
        """
        self._check_usable()
        per_host = per_host or {}
        shared = sorted(set(per_host) & set(self._labels))
        if shared:
            raise ValueError(
                f"per_host labels {list(per_host)} overlap with host labels {list(self._labels)}"
            )
        bad = {label: size for label, size in per_host.items() if size < 1}
        if bad:
            raise ValueError(f"per_host sizes must be at least 1: {bad}")
        num_per_host = Extent(list(per_host), list(per_host.values())).nelements
        if bootstrap is not None and not callable(bootstrap):
            raise TypeError(
                f"bootstrap must be a function, not {bootstrap!r}; a name goes into name="
            )
        if proc_bind is not None and len(proc_bind) != num_per_host:
            raise ValueError(
                f"proc_bind length ({len(proc_bind)}) must equal procs_per_host ({num_per_host})"
            )
        for bind in proc_bind or ():
            check_binding(bind)
        labels = [*self._labels, *per_host]
        sizes = [*self._shape.ndslice.sizes, *per_host.values()]
        shape = Shape(labels, Slice.new_row_major(sizes))
        extent = Extent(labels, sizes)
        specs = [
            ProcSpec(
                new_uid(), rank, env or {}, dict(bind), _command(bootstrap_command, rank, extent)
            )
            for rank, bind in enumerate([*(proc_bind or [{}] * num_per_host)] * len(self._hosts))
        ]
        mesh = self._spawn(name or "procs", shape, specs, bootstrap, tuple(preload))
        self._spawned.append(mesh)
        return mesh

    def _spawn(
        self,
        name: str,
        shape: Shape,
        specs: Sequence[ProcSpec],
        bootstrap: Callable[[], Any] | None,
        preload: tuple[str, ...],
    ) -> ProcMesh:
        agent = process.current()
        node = agent.node
        uid = new_uid()
        owner, _ = current_owner()
        setup = b"" if bootstrap is None else _pickled(bootstrap)
        num_hosts = len(self._hosts)
        num_per_host = len(specs) // num_hosts
        tree = self._tree(uid, specs[:num_per_host], specs)
        if tree is not None:
            specs = [msgspec.structs.replace(spec, uid=proc_uid(uid, spec.rank)) for spec in specs]

        def order(part: Sequence[ProcSpec]) -> SpawnProcs:
            return SpawnProcs(
                uid, name, node.address, owner, tuple(shape.labels),
                tuple(shape.ndslice.sizes), tuple(part), preload, tuple(filter(None, sys.path)),
                agent.root, self._command, tree is not None, inherited_config(),
            )  # fmt: skip

        procs = [
            ProcAddress(spec.uid, (), host.address.machine, host.address.uid, host.address.urls)
            for spec, host in zip(
                specs, (host for host in self._hosts for _ in range(num_per_host)), strict=True
            )
        ]
        # First: a host may be lost at any moment from here on, and that is told once.
        agent.supervisor.owned(
            owner, uid, name, "proc", [proc.uid for proc in procs], lambda: _stop_quietly(procs),
            lambda rank: f"{name}{Point(rank, shape.extent)}" if shape.labels else name,
        )  # fmt: skip
        try:
            for number, host in enumerate(self._hosts):
                _link(agent, host)
                if tree is None:
                    part = slice(number * num_per_host, (number + 1) * num_per_host)
                    for proc in procs[part]:
                        node.expect(proc)
                    node.send(host.address, order(specs[part]), setup)
            if tree is not None:
                # Each host agent gives its procs their uids and ranks.
                route = node.trees.route(tree)
                route.send(tree.everybody, order(specs[:num_per_host]), setup)
        except BaseException:
            agent.supervisor.stopped(uid)
            raise
        agent.own_procs(procs)
        for host in self._hosts:
            failure = node.failure_of(host.address.uid)
            if failure is not None:
                # Some may have been told of as lost with it; these came after that.
                why = f"its host is gone: {failure.reason}"
                late = [ProcDown(p.uid, why) for p in procs if p.host_uid == host.address.uid]
                node.peers_down(late, host.address.uid)
        return ProcMesh(uid, name, shape, procs, True, self._reference(), num_per_host, tree)

    def _tree(
        self, mesh: Uid, on_each: Sequence[ProcSpec], specs: Sequence[ProcSpec]
    ) -> Tree | None:
        """The tree along which a mesh on many hosts is reached, if it is to be."""
        addresses = tuple(host.address for host in self._hosts)
        if len(addresses) < settings().tree_min_hosts or len(set(addresses)) < len(addresses):
            return None
        if any(spec.command != on_each[i % len(on_each)].command for i, spec in enumerate(specs)):
            return None  # One order goes to all hosts.
        return Tree(mesh, addresses, len(on_each), settings().tree_degree)

    def _reference(self) -> HostMesh:
        return HostMesh(self._name, self._shape, self._hosts, False, self._command)

    def preload(self, modules: Sequence[str]) -> Future[None]:
        """Import heavy modules in each host's template process, ahead of the first spawn."""
        node = process.current().node
        outcomes = [
            node.request(host.address, lambda port: Preload(tuple(modules), port, node.uid))
            for host in self._hosts
        ]
        return gather(outcomes, _check)

    @property
    def initialized(self) -> Future[bool]:
        """True once every host agent has accepted us; raises what kept one from it."""
        agent = process.current()
        links = [link for host in self._hosts if (link := _link(agent, host)) is not None]

        def check(error: MonarchError | None) -> None:
            if error is not None:
                raise error

        done = gather([link.ready for link in links], check)
        return make_future(done._promise, lambda value: done._resolve(value) is None)

    def stop(self, reason: str = "stopped by client") -> Future[None]:
        """End all procs that were spawned here; the host agents go on.

        Raises ``RuntimeError`` on a slice or a received reference: only the owner may.
        """
        self._check_usable()
        self._check_owned("stop")
        agent = process.current()
        procs: list[ProcAddress] = []
        for mesh in self._spawned:
            if not mesh._is_stopped:
                mesh._is_stopped = True
                agent.supervisor.stopped(mesh._uid)
                procs.extend(mesh._procs)
        return stop_procs(procs, reason)

    def shutdown(self) -> Future[None]:
        """End the host agents too; on ``this_host()``, which ends with the program, its procs.

        Raises ``RuntimeError`` on a slice or a received reference: only the owner may.
        """
        self._check_usable()
        self._check_owned("shut down")
        if not any(host.url for host in self._hosts):
            done = self.stop("its host mesh was shut down")
            self._is_shut_down = True
            return done
        self._is_shut_down = True
        agent = process.current()
        node = agent.node
        for mesh in self._spawned:
            agent.supervisor.stopped(mesh._uid)
        if isinstance(agent, ClientAgent):
            for host in self._hosts:
                agent.expect_end(host.url)
        outcomes = [
            node.request(host.address, lambda port: Shutdown(port, node.uid))
            for host in self._hosts
        ]
        return gather(outcomes, lambda outcome: None)

    def _check_owned(self, doing: str) -> None:
        if not self._is_owned:
            raise RuntimeError(f"cannot {doing} `HostMesh` that is a reference instead of owned")

    def _check_usable(self) -> None:
        if self._is_shut_down:
            raise RuntimeError("HostMesh has already been shut down")

    def with_python_executable(self, python_executable: str) -> HostMesh:
        """The same hosts, with procs that run another interpreter.

        It must have this package installed. What the procs spawn on their host runs it too.
        """
        command = default_bootstrap_cmd(str(python_executable))._as_command()
        return HostMesh(self._name, self._shape, self._hosts, self._is_owned, command)

    @property
    def is_fake_in_process(self) -> bool:
        """Whether the hosts are fakes of ``monarch.testing``; these are real."""
        return False

    @property
    def stream_logs(self) -> bool:
        """Whether what procs print is shown by the client."""
        return True

    async def sync_workspace(
        self,
        workspace: Workspace,
        conda: bool = False,
        auto_reload: bool = True,
        *,
        reload: str = "auto",
    ) -> SyncReport:
        """Bring ``workspace`` to these machines, and its code into the live processes on them."""
        # Imported when used: a program without a workspace need not pay for it.
        from monarch.actor.sync import sync_hosts

        mode = reload if auto_reload else "off"
        return await sync_hosts([host.address for host in self._hosts], workspace, mode)

    async def logging_option(
        self,
        stream_to_client: bool = True,
        aggregate_window_sec: float | None = DEFAULT_WINDOW,
        level: int = logging.INFO,
    ) -> None:
        """As ``ProcMesh.logging_option``, for all procs of these hosts, later ones too."""
        procs = [proc for mesh in self._spawned if not mesh._is_stopped for proc in mesh._procs]
        await set_logging(
            [host.address for host in self._hosts], procs, self._name,
            stream_to_client, aggregate_window_sec, level, later_procs=True,
        )  # fmt: skip

    async def __aenter__(self: Self) -> Self:
        self._check_usable()
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._is_owned and not self._is_shut_down:
            await self.shutdown()

    def __await__(self: Self) -> Generator[Any, None, Self]:
        yield from self.initialized.__await__()
        return self

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, HostMesh):
            return NotImplemented
        return self._uids() == other._uids() and self.extent == other.extent

    def __hash__(self) -> int:
        return hash(self._uids())

    def _uids(self) -> tuple[Uid, ...]:
        return tuple(host.address.uid for host in self._hosts)

    def __reduce__(self) -> tuple[Any, ...]:
        return HostMesh, (self._name, self._shape, self._hosts, False, self._command)

    def __repr__(self) -> str:
        return f"HostMesh({self._name!r}, {self.extent})"


def _link(agent: ProcAgent, host: Host) -> Any:
    """Our attachment to a host; hosts that come with the process need none."""
    return agent.link(host.url) if host.url and isinstance(agent, ClientAgent) else None


def _check(outcome: Outcome) -> None:
    if outcome.error:
        raise MonarchError(outcome.error)


def _stop_quietly(procs: Sequence[ProcAddress]) -> Promise[Any]:
    return stop_procs(procs, "its owner has ended")._promise


def _command(
    given: BootstrapCommand | Callable[[Point], BootstrapCommand] | None, rank: int, extent: Extent
) -> Command | None:
    """The command for one proc of a mesh."""
    if callable(given):
        given = given(Point(rank, extent))
    return given._as_command() if given is not None else None


def _pickled(bootstrap: Callable[[], Any]) -> bytes:
    data, buffers = payload.dump(bootstrap)
    return msgspec.msgpack.encode([data, *buffers])


def this_host() -> HostMesh:
    """The machine that this code runs on: a mesh without dimensions."""
    agent = process.current()
    hosts = [Host(agent.host)]
    return HostMesh("this_host", Shape.unity(), hosts, agent.is_root, agent.command)


def this_proc() -> ProcMesh:
    """The process that this code runs in, the client's too: a mesh without dimensions."""
    node = process.current().node
    uid = _own_mesh_uid(node.uid)
    return ProcMesh(
        uid, "this_proc", Shape.unity(), [node.address], False, this_host()._reference()
    )


def _own_mesh_uid(uid: Uid) -> Uid:
    return f"{uid}.self"
