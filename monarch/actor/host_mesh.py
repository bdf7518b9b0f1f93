"""Machines, in a shape, that procs are spawned on."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from monarch.actor.future import Future, make_future
from monarch.actor.gather import gather
from monarch.actor.proc_mesh import ProcMesh, current_owner, stop_procs
from monarch.errors import MonarchError
from monarch.mesh import Extent, MeshTrait, Region, Shape, Slice
from monarch.runtime import process
from monarch.runtime.client_agent import ClientAgent
from monarch.runtime.node import Outcome
from monarch.runtime.proc_agent import ProcAgent
from monarch.runtime.promise import Promise
from monarch.wire.address import ProcAddress, Uid, new_uid
from monarch.wire.message import Preload, ProcDown, ProcSpec, Shutdown, SpawnProcs

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
        self, name: str, shape: Shape, hosts: Sequence[Host], owned: bool = False, python: str = ""
    ) -> None:
        self._name = name
        self._shape = shape
        self._hosts = tuple(hosts)
        self._is_owned = owned
        self._python = python
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
        return HostMesh(self._name, shape, hosts, python=self._python)

    def spawn_procs(
        self,
        per_host: dict[str, int] | None = None,
        name: str | None = None,
        *,
        env: dict[str, str] | None = None,
        proc_bind: list[dict[str, str]] | None = None,
        preload: Sequence[str] = (),
    ) -> ProcMesh:
        """Make procs on each host, without waiting for them.

        The mesh has the hosts' dimensions, then those of ``per_host``. ``preload`` names heavy
        modules that the procs find imported already (``["torch"]``): the first spawn that asks
        for them pays for the import, later ones do not. ``proc_bind`` gives the environment of
        each proc on a host, ``env`` that of all.
        """
        self._check_usable()
        per_host = per_host or {}
        shared = sorted(set(per_host) & set(self._labels))
        if shared:
            raise ValueError(f"per_host labels {shared} overlap with host labels {self._labels}")
        bad = {label: size for label, size in per_host.items() if size < 1}
        if bad:
            raise ValueError(f"per_host sizes must be at least 1: {bad}")
        num_per_host = Extent(list(per_host), list(per_host.values())).nelements
        if proc_bind is not None and len(proc_bind) != num_per_host:
            raise ValueError(f"proc_bind has {len(proc_bind)} entries for {num_per_host} procs")
        labels = [*self._labels, *per_host]
        sizes = [*self._shape.ndslice.sizes, *per_host.values()]
        shape = Shape(labels, Slice.new_row_major(sizes))
        environments = [{**(env or {}), **bind} for bind in proc_bind or [{}] * num_per_host]
        mesh = self._spawn(name or "procs", shape, environments, tuple(preload))
        self._spawned.append(mesh)
        return mesh

    def _spawn(
        self, name: str, shape: Shape, env: Sequence[dict[str, str]], preload: tuple[str, ...]
    ) -> ProcMesh:
        agent = process.current()
        node = agent.node
        uid = new_uid()
        owner, _ = current_owner()
        ranks = itertools.count()
        procs: list[ProcAddress] = []
        for host in self._hosts:
            specs = tuple(ProcSpec(new_uid(), next(ranks), bind) for bind in env)
            link = _link(agent, host)
            for spec in specs:
                proc = ProcAddress(
                    spec.uid, (), host.address.machine, host.address.uid, host.address.urls
                )
                node.expect(proc)
                procs.append(proc)
                if link is not None:
                    link.procs.add(spec.uid)
            order = SpawnProcs(
                uid, name, node.address, owner, tuple(shape.labels),
                tuple(shape.ndslice.sizes), specs, preload, tuple(filter(None, sys.path)),
                self._python,
            )  # fmt: skip
            node.send(host.address, order)
        agent.own_procs(procs)
        uids = [proc.uid for proc in procs]
        agent.supervisor.owned(owner, uid, name, "proc", uids, lambda: _stop_quietly(procs))
        for proc in procs:
            failure = node.failure_of(proc.host_uid)
            if failure is not None:
                node.peer_down(ProcDown(proc.uid, f"its host is gone: {failure.reason}"))
        return ProcMesh(uid, name, shape, procs, owned=True)

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
        """End all procs that were spawned here; the host agents go on."""
        agent = process.current()
        procs: list[ProcAddress] = []
        for mesh in self._spawned:
            if not mesh._is_stopped:
                mesh._is_stopped = True
                agent.supervisor.stopped(mesh._uid)
                procs.extend(mesh._procs)
        return stop_procs(procs, reason)

    def shutdown(self) -> Future[None]:
        """End the host agents too. Only for the mesh that owns them."""
        self._check_usable()
        if not self._is_owned:
            raise ValueError("HostMesh is not owned; must be shut down by an owner")
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

    def _check_usable(self) -> None:
        if self._is_shut_down:
            raise RuntimeError("HostMesh has already been shut down")

    def with_python_executable(self, path: str) -> HostMesh:
        """The same hosts, with procs that run another interpreter."""
        return HostMesh(self._name, self._shape, self._hosts, self._is_owned, str(path))

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
        return self._hosts == other._hosts and self._shape == other._shape

    def __hash__(self) -> int:
        return hash(self._hosts)

    def __reduce__(self) -> tuple[Any, ...]:
        return HostMesh, (self._name, self._shape, self._hosts, False, self._python)

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


def this_host() -> HostMesh:
    """The machine that this code runs on: a mesh without dimensions."""
    return HostMesh("this_host", Shape.unity(), [Host(process.current().host)])


def this_proc() -> ProcMesh:
    """The process that this code runs in, the client's too: a mesh without dimensions."""
    node = process.current().node
    return ProcMesh(_own_mesh_uid(node.uid), "this_proc", Shape.unity(), [node.address])


def _own_mesh_uid(uid: Uid) -> Uid:
    return f"{uid}.self"
