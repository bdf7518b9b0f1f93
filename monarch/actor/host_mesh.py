"""Host meshes: machines, in a shape, on which procs are spawned."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, NoReturn, TypeVar

from monarch.actor.bootstrap_command import BootstrapCommand, default_bootstrap_cmd
from monarch.actor.future import Future
from monarch.actor.gather import gather
from monarch.actor.host import Host, link
from monarch.actor.logs import LogTargets
from monarch.actor.proc_mesh import Ownership, ProcMesh, check_name, stop_procs
from monarch.actor.spawn_hooks import tell, with_stand_ins
from monarch.actor.spawning import SpawnPlan, spawn
from monarch.actor.starting_mesh import StartingMesh
from monarch.errors import MonarchError
from monarch.mesh import Point, Shape, Slice
from monarch.net.io_loop import IoLoop, check_room_for
from monarch.runtime import process
from monarch.runtime.answers import Response
from monarch.runtime.client_agent import ClientAgent
from monarch.runtime.procs.proc_agent import ProcAgent
from monarch.wire.address import ProcAddress, Uid
from monarch.wire.host_url import HostUrl
from monarch.wire.message import Command, Preload, Shutdown

Self = TypeVar("Self", bound="HostMesh")


def _check_per_host(per_host: Any, unknown: Mapping[str, Any]) -> None:
    """Raise ``TypeError`` if ``per_host`` does not map dimensions to sizes, or if there are
    ``unknown`` arguments.
    """
    if unknown:
        sizes = {name: size for name, size in unknown.items() if isinstance(size, int)}
        raise TypeError(
            f"spawn_procs() got an unexpected keyword argument {next(iter(unknown))!r}"
            + (f"; dimensions go into a dict: `spawn_procs({sizes})`" if sizes else "")
        )
    if per_host is None:
        return
    if not isinstance(per_host, Mapping):
        raise TypeError(
            f"spawn_procs takes names and sizes of dimensions, as in "
            f"`spawn_procs({{'gpus': {per_host if isinstance(per_host, int) else 2}}})`"
        )
    for label, size in per_host.items():
        if not isinstance(size, int):
            raise TypeError(f"spawn_procs: {label!r} has the size {size!r}, which is no int")


class HostMesh(StartingMesh):
    """A reference to host agents. Only the mesh from a job or ``attach_to_workers`` owns them."""

    _MADE_BY = "`this_host()`, or by a job: `job.state(...)`"
    _ELSEWHERE: ClassVar = {
        "spawn": "actors live in procs: `hosts.spawn_procs({'gpus': 2}).spawn(name, YourActor)`"
    }

    def __init__(
        self,
        name: str,
        shape: Shape,
        hosts: Sequence[Host],
        *,
        owned: bool = False,
        command: Command | None = None,
    ) -> None:
        self._name = name
        self._shape = shape
        self._hosts = tuple(hosts)
        self._is_owned = owned
        #: What starts procs; ``None`` for this interpreter.
        self._command = command
        self._is_shut_down = False
        #: The procs that this mesh has spawned.
        self._spawned: list[Ownership] = []

    def _over(self, shape: Shape, hosts: Sequence[Host]) -> HostMesh:
        """Return a reference to these hosts. Its procs start with this mesh's bootstrap command."""
        return HostMesh(self._name, shape, hosts, command=self._command)

    def _new_with_shape(self, shape: Shape) -> HostMesh:
        index = self._shape.ndslice.index
        return self._over(shape, [self._hosts[index(rank)] for rank in shape.ndslice])

    def _among(self, urls: Collection[str]) -> HostMesh:
        """Return the hosts of this mesh that listen at these URLs, as a mesh of one dimension."""
        wanted = {HostUrl.parse(url).advertise for url in urls}
        hosts = [host for host in self._hosts if host.url in wanted]
        return self._over(one_dimension(len(hosts)), hosts)

    def _places_in(self, other: HostMesh) -> list[int]:
        """Return the ranks that these hosts have in ``other``; empty if ``other`` lacks a host of
        ours.
        """
        ranks = [rank for rank, host in enumerate(other._hosts) if host in self._hosts]
        return ranks if len(ranks) == len(self._hosts) else []

    def _with(self, ranks: Sequence[int], others: HostMesh) -> HostMesh:
        """Return this mesh's hosts in one dimension; ``others`` replace the hosts at ``ranks``."""
        hosts = list(self._hosts)
        for rank, host in zip(ranks, others._hosts, strict=True):
            hosts[rank] = host
        return self._over(one_dimension(len(hosts)), hosts)

    def _of_rank(self, rank: int) -> HostMesh:
        """Return the host with this rank, as a mesh of one host."""
        base = self._shape.ndslice.get(rank)
        return self._over(Shape([], Slice(offset=base, sizes=[], strides=[])), [self._hosts[rank]])

    @classmethod
    def allocate_nonblocking(
        cls, name: str, extent: Mapping[str, int], allocator: Any, alloc_constraints: Any = None
    ) -> HostMesh:
        """Return the hosts of an allocator of ``monarch.actor.alloc``; the older way to get
        hosts."""
        hosts: HostMesh = allocator._host_mesh(extent, alloc_constraints)
        return hosts

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
        **unknown: NoReturn,
    ) -> ProcMesh:
        """Make procs on each host, without waiting for them.

        The mesh has the hosts' dimensions, then those of ``per_host``.

        ``bootstrap``, a function or a coroutine function, runs first in each proc; if it raises,
        actors there fail with its error, as if by their ``__init__``. ``proc_bind`` says for each
        proc of a host which CPUs and memory it may use: ``cpus`` or ``physcpubind`` ("0-3,8"),
        ``cpunodebind``, ``membind``. With ``bootstrap_command`` (a command, or a function that
        returns one for each point) procs are started by that program, and not forked from a
        template.

        ``env`` is added to the environment of each proc. ``preload`` names heavy modules, such as
        ``["torch"]``, that are imported before procs are forked: the first spawn that names them
        pays for the import, later ones do not.
        """
        self._check_usable()
        check_name(name or "")
        _check_per_host(per_host, unknown)
        plan = SpawnPlan.of(
            self._shape,
            per_host or {},
            with_stand_ins(bootstrap),
            proc_bind,
            bootstrap_command,
            env or {},
        )
        self._check_room(math.prod((per_host or {}).values()))
        mesh = spawn(
            self._hosts, plan, name or "procs", tuple(preload), self._command, self._reference()
        )
        self._spawned = [*self._running(), mesh._ownership]
        tell(mesh)
        return mesh

    def _check_room(self, num_per_host: int) -> None:
        node = process.current(spawns=True).node
        if isinstance(node.loop, IoLoop):  # else in a world without sockets
            num_here = sum(host.address.uid == node.uid for host in self._hosts)
            num_elsewhere = len(self._hosts) - num_here
            check_room_for(num_per_host * num_here, num_per_host * num_elsewhere)

    def _reference(self) -> HostMesh:
        return self._over(self._shape, self._hosts)

    def _running(self) -> list[Ownership]:
        return [owned for owned in self._spawned if not owned.is_stopped]

    def preload(self, modules: Sequence[str]) -> Future[None]:
        """Import heavy modules in each host's template process, ahead of the first spawn."""
        node = process.current().node
        outcomes = [node.ask(host.address, Preload(tuple(modules))) for host in self._hosts]
        return gather(outcomes, _check)

    @property
    def initialized(self) -> Future[bool]:
        """Return a future that is True once every host agent has accepted this program.

        It raises ``HostBusy`` if a host serves another client, ``HostUnreachable`` if none answers.
        """
        agent = process.current()
        links = [link(agent, host) for host in self._hosts]
        links = [host_link for host_link in links if host_link is not None]

        def check(error: MonarchError | None) -> None:
            if error is not None:
                agent.heard_of([lost.address.uid for lost in links if lost.is_lost])
                raise error

        return gather([host_link.ready for host_link in links], check).then(lambda _: True)

    def stop(self, reason: str = "stopped by client") -> Future[None]:
        """End all procs that this mesh spawned; the host agents keep running.

        Raises ``RuntimeError`` on a slice or a received reference: only the owner may stop a mesh.
        """
        self._check_usable()
        self._check_owned("stop")
        procs: list[ProcAddress] = []
        for owned in self._running():
            owned.is_stopped = True
            owned.expect_end()
            procs.extend(owned.procs)
        return stop_procs(procs, reason)

    def shutdown(self) -> Future[None]:
        """End the host agents too; on ``this_host()``, which ends with the program, only its procs.

        Raises ``RuntimeError`` on a slice or a received reference: only the owner may shut hosts
        down.
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
        for owned in self._spawned:
            owned.expect_end()
        if isinstance(agent, ClientAgent):
            for host in self._hosts:
                agent.expect_end(host.url)
        outcomes = [node.ask(host.address, Shutdown()) for host in self._hosts]
        return gather(outcomes, lambda outcome: None)

    def _check_owned(self, doing: str) -> None:
        if not self._is_owned:
            raise RuntimeError(f"cannot {doing} `HostMesh` that is a reference instead of owned")

    def _check_usable(self) -> None:
        if self._is_shut_down:
            raise RuntimeError("HostMesh has already been shut down")

    def with_python_executable(self, python_executable: str) -> HostMesh:
        """Return the same hosts, whose procs run another interpreter.

        That interpreter must have this package installed. Procs that are spawned from such a proc
        on its host use the interpreter too.
        """
        command = default_bootstrap_cmd(str(python_executable))._as_command()
        return HostMesh(self._name, self._shape, self._hosts, owned=self._is_owned, command=command)

    @property
    def is_fake_in_process(self) -> bool:
        """Whether the hosts are fakes of ``monarch.testing``: always False here."""
        return False

    @property
    def stream_logs(self) -> bool:
        """Whether the client shows the procs' output: always True here."""
        return True

    def _sync_hosts(self) -> list[ProcAddress]:
        self._check_usable()
        return [host.address for host in self._hosts]

    def _log_targets(self) -> LogTargets:
        hosts = [host.address for host in self._hosts]
        procs = [proc for owned in self._running() for proc in owned.procs]
        return LogTargets(hosts, procs, self._name, later_procs=True)

    async def __aenter__(self: Self) -> Self:
        self._check_usable()
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._is_owned and not self._is_shut_down:
            await self.shutdown()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, HostMesh):
            return NotImplemented
        return self._uids() == other._uids() and self.extent == other.extent

    def __hash__(self) -> int:
        return hash(self._uids())

    def _uids(self) -> tuple[Uid, ...]:
        return tuple(host.address.uid for host in self._hosts)

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (self._name, self._shape, self._hosts, self._command)

    def _repr_html_(self) -> str:
        from monarch.actor.mesh_html import html_of  # In notebooks only.

        return html_of(repr(self), [host.address for host in self._hosts])

    def __repr__(self) -> str:
        return f"HostMesh({self._name!r}, {self.extent})"


def one_dimension(num_hosts: int) -> Shape:
    """Return the shape of so many hosts in the dimension ``hosts``."""
    return Shape(["hosts"], Slice.new_row_major([num_hosts]))


def _received(name: str, shape: Shape, hosts: Sequence[Host], command: Command | None) -> HostMesh:
    return HostMesh(name, shape, hosts, command=command)


def _check(outcome: Response[None]) -> None:
    if outcome.error:
        raise MonarchError(outcome.error)


def this_host() -> HostMesh:
    """Return the machine that this code runs on, as a mesh without dimensions."""
    return _host_of(process.current(spawns=True))


def _host_of(agent: ProcAgent) -> HostMesh:
    hosts = [Host(agent.host)]
    return HostMesh("this_host", Shape.unity(), hosts, owned=agent.is_root, command=agent.command)


def proc_mesh(
    *,
    gpus: int = 1,
    hosts: int = 1,
    env: dict[str, str] | None = None,
    setup: Callable[[], Any] | None = None,
) -> ProcMesh:
    """Spawn ``hosts`` times ``gpus`` procs on this machine, as ``this_host().spawn_procs(...)``
    does.
    """
    return this_host().spawn_procs({"hosts": hosts, "gpus": gpus}, setup, env=env)


local_proc_mesh = proc_mesh


def this_proc() -> ProcMesh:
    """Return the process that this code runs in, as a mesh without dimensions.

    It is a proc, or the client's own process.
    """
    agent = process.current()
    uid, hosts = f"{agent.node.uid}.self", _host_of(agent)._reference()
    return ProcMesh(uid, "this_proc", Shape.unity(), [agent.node.address], hosts=hosts)
